"""The tools: how they are listed, what each does, and that text and structured content of a result each suffice."""

import json
from pathlib import Path

import pytest
from mcp import Client
from mcp.types import Tool
from pydantic import JsonValue

import planwarden
from planwarden.server.mcp.server import INSTRUCTIONS
from planwarden.server.mcp.tools import TOOLS
from tests.server.mcp.support import ERAS, Era, ids_of, ok, question_of, refused, served, text_of
from tests.support.wardens import Ledger, model_step, plan, tool_step

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]

PLANS: JsonValue = {"todoList": [{"id": "a", "description": "find some", "requiredTools": ["find"]}]}


async def _listed(home: Path, era: Era) -> dict[str, Tool]:
    async with served(home) as found, Client(found.server, mode=era) as client:
        return {tool.name: tool for tool in (await client.list_tools()).tools}


async def test_the_tools_together_cost_at_most_3000_tokens(tmp_path: Path, era: Era) -> None:
    tools = await _listed(tmp_path, era)
    size = sum(len(t.name + (t.description or "") + json.dumps(t.input_schema)) for t in tools.values())
    assert size / 4 <= 3_000


async def test_get_execution_says_in_which_place_a_question_is_answered(tmp_path: Path, era: Era) -> None:
    described = (await _listed(tmp_path, era))["get_execution"].description or ""
    assert "needs: client, a form of yours is enough; human, only the inbox or a terminal" in described


async def test_the_tools_have_the_annotations_of_the_contract(tmp_path: Path, era: Era) -> None:
    tools = await _listed(tmp_path, era)
    assert list(tools) == [
        "search_tools",
        "get_tool_schemas",
        "create_plan",
        "run_goal",
        "execute_plan",
        "run_plan",
        "retry_execution",
        "ask_person",
        "get_execution",
        "list_suspensions",
        "submit_answer",
        "resume_execution",
        "cancel_execution",
    ]
    reading = {"search_tools", "get_tool_schemas", "get_execution", "list_suspensions"}
    for name, tool in tools.items():
        hints = tool.annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.destructive_hint) == (name in reading, name == "resume_execution")
        assert hints.open_world_hint is False
        assert hints.title and tool.title and tool.output_schema and len(name) <= 32
        assert tool.input_schema["additionalProperties"] is False


async def test_the_first_two_hundred_characters_of_the_instructions_say_what_to_do(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        assert client.instructions == INSTRUCTIONS
    for word in ("run_goal", "nextAction", "completed", "person"):
        assert word in INSTRUCTIONS[:200]


async def test_the_catalogue_is_searched_page_by_page(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        best = await ok(client, "search_tools", query="delete records", limit=2)
        assert best["tools"][0] == {
            "name": "erase",
            "signature": "erase(ids)",
            "description": "Delete records.",
            "executionMode": "immediate",
            "risk": "dangerous",
            "source": "python",
        }
        first = await ok(client, "search_tools", limit=6)
        second = await ok(client, "search_tools", limit=6, cursor=first["nextCursor"])
        names = [tool["name"] for tool in first["tools"] + second["tools"]]
        assert len(set(names)) == len(names) == first["total"] and "nextCursor" not in second
        everything = await client.call_tool("search_tools", {})
        assert "erase(ids): Delete records. [risk dangerous, immediate, from python]" in text_of(everything)


async def test_schemas_are_given_in_full_and_unknown_names_are_said(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        result = await client.call_tool("get_tool_schemas", {"names": ["erase", "nope"]})
        [tool] = result.structured_content["tools"]
        assert result.structured_content["unknown"] == ["nope"]
        assert tool["inputSchema"]["properties"]["ids"]["type"] == "array"
        assert (tool["risk"], tool["effect"], len(tool["definitionDigest"])) == ("dangerous", "effect", 64)
        assert json.loads(text_of(result).splitlines()[0]) == tool
        assert '"nope"' in text_of(result)


async def test_a_goal_runs_with_the_caller_as_its_model(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "run_goal", goal="find three ids")
        assert (asked["status"], question_of(asked)["addressee"], question_of(asked)["kind"]) == (
            "suspended",
            "caller",
            "plan",
        )
        assert "find(topic" in question_of(asked)["prompt"]

        asked = await ok(client, "submit_answer", **ids_of(asked), content=PLANS)
        step = question_of(asked)
        assert (step["kind"], step["stepId"], [tool["name"] for tool in step["tools"]]) == ("step", "a", ["find"])

        asked = await ok(client, "submit_answer", **ids_of(asked), content={"content": "I found 1, 2 and 3."})
        assert "did not count" in question_of(asked)["prompt"]
        whole = await ok(client, "get_execution", threadId=asked["threadId"])
        assert whole["steps"][0]["retries"] == 1

        answer = {"toolCalls": [{"toolName": "find", "arguments": {"topic": "x"}}]}
        asked = await ok(client, "submit_answer", **ids_of(asked), content=answer)
        assert question_of(asked)["kind"] == "synthesis"

        done = await ok(client, "submit_answer", **ids_of(asked), content={"content": "They are 1, 2, 3."})
        assert done["status"] == "completed"
        whole = await ok(client, "get_execution", threadId=asked["threadId"])
        assert (whole["output"], whole["steps"][0]["validationStatus"]) == ("They are 1, 2, 3.", "passed")


async def test_text_alone_is_enough_to_answer_a_question(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        result = await client.call_tool("execute_plan", {"plan": plan(model_step("a", "find"))})
        text, question = text_of(result), question_of(result.structured_content)
        for needed in (question["instructions"], question["prompt"], question["suspensionId"]):
            assert needed in text
        assert json.dumps(question["tools"][0]["inputSchema"]) in text
        assert "submit_answer" in text


async def test_every_open_question_is_named_even_when_the_prompts_do_not_fit(tmp_path: Path, era: Era) -> None:
    steps = plan(*(model_step(f"s{n}", "find", description="x" * 9_000, dependencies=[]) for n in range(10)))
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        result = await client.call_tool("execute_plan", {"plan": steps})
        questions = result.structured_content["suspensions"]
        assert len(questions) == 10 and len(text_of(result)) == 60_000
        assert all(question["suspensionId"] in text_of(result) for question in questions)


async def test_a_plan_runs_and_its_results_are_in_both_twins(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    steps = plan(
        tool_step("a", "find", {"topic": "x"}),
        tool_step("b", "note", {"text": {"$from": "a", "pointer": "/topic"}}),
    )
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        result = await client.call_tool("execute_plan", {"plan": steps, "goal": "note it"})
        document = result.structured_content
        assert (document["status"], ledger.lines) == ("completed", ["note x"])
        assert [step["result"] for step in document["steps"]] == [
            {"ids": [1, 2, 3], "topic": "x"},
            {"written": "x"},
        ]
        for needed in ('{"ids": [1, 2, 3], "topic": "x"}', '{"written": "x"}', "completed", document["threadId"]):
            assert needed in text_of(result)


async def test_a_plan_is_made_first_and_run_later(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    reply: JsonValue = {"reply": {"plan": plan(tool_step("a", "note", {"text": "x"}))}}
    async with (
        served(tmp_path, tools=ledger.tools(), script=[reply]) as found,
        Client(found.server, mode=era) as client,
    ):
        planned = await ok(client, "create_plan", goal="note x")
        assert (planned["status"], ledger.lines) == ("planned", [])
        done = await ok(client, "execute_plan", threadId=planned["threadId"])
        assert (done["status"], ledger.lines) == ("completed", ["note x"])


async def test_an_execution_is_looked_at_with_its_history(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        done = await ok(client, "execute_plan", plan=plan(tool_step("a", "find", {"topic": "x"})))
        assert "observations" not in done
        result = await client.call_tool("get_execution", {"threadId": done["threadId"], "observationsAfter": 0})
        history = result.structured_content["observations"]
        types = [entry["type"] for entry in history]
        assert types == [
            "PLAN_ACCEPTED",
            "STEP_STARTED",
            "TOOL_CALLED",
            "TOOL_RETURNED",
            "STEP_COMPLETED",
            "EXECUTION_COMPLETED",
        ]
        assert all(kind in text_of(result) for kind in types)
        later = await ok(client, "get_execution", threadId=done["threadId"], observationsAfter=history[2]["sequence"])
        assert [entry["type"] for entry in later["observations"]] == types[3:]


async def test_open_questions_are_listed_by_addressee(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        mine = await ok(client, "run_goal", goal="x")
        theirs = await ok(client, "execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
        page = await client.call_tool("list_suspensions", {"addressee": "human"})
        [question] = page.structured_content["suspensions"]
        assert question["suspensionId"] == question_of(theirs)["suspensionId"]
        assert question["howToAnswer"]["command"] in text_of(page)
        everything = await ok(client, "list_suspensions")
        assert everything["total"] == 2
        one = await ok(client, "list_suspensions", threadId=mine["threadId"])
        assert [found["addressee"] for found in one["suspensions"]] == ["caller"]


async def test_a_cancelled_execution_stays_cancelled(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "run_goal", goal="x")
        first = await ok(client, "cancel_execution", threadId=asked["threadId"], reason="no longer needed")
        again = await ok(client, "cancel_execution", threadId=asked["threadId"])
        assert (first["status"], again["status"], again["suspensions"]) == ("cancelled", "cancelled", [])


async def test_a_caller_question_is_also_answered_through_resume_execution(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "run_goal", goal="x", options={"synthesize": False})
        asked = await ok(client, "resume_execution", **ids_of(asked), decision={"content": PLANS})
        assert question_of(asked)["kind"] == "step"


async def test_the_same_answer_again_changes_nothing(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "run_goal", goal="x")
        first = await ok(client, "submit_answer", **ids_of(asked), content=PLANS)
        again = await ok(client, "submit_answer", **ids_of(asked), content=PLANS)
        assert ids_of(again) == ids_of(first)
        assert (await ok(client, "get_execution", threadId=asked["threadId"]))["usage"]["modelCalls"] == 1


async def test_a_result_that_no_window_could_hold_is_cut_in_both_twins(tmp_path: Path, era: Era) -> None:
    @planwarden.tool(risk="read", effect="read")
    async def flood() -> str:
        """A lot of text."""
        return "x" * 200_000

    async with served(tmp_path, tools=[flood]) as found, Client(found.server, mode=era) as client:
        result = await client.call_tool(
            "execute_plan", {"plan": plan(*(tool_step(f"s{n}", "flood") for n in range(5)))}
        )
        document = result.structured_content
        assert document["status"] == "completed"
        assert document["steps"][4]["result"] == {"truncated": True, "sizeBytes": 200_000, "preview": "x" * 2_000}
        assert len(json.dumps(document)) < 256_000
        assert len(text_of(result)) <= 60_000


async def test_unknown_arguments_are_named(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        error = await refused(client, "run_goal", goal="x", thread_id="y", mode=None)
        assert error["code"] == "invalid_arguments"
        assert "'mode', 'thread_id'" in error["message"] and "threadId" in error["message"]
        error = await refused(client, "run_goal", goal="x", options={"maxIteration": 3})
        assert "maxIteration" in error["message"]
        decision = {"approved": False, "approve": True}
        error = await refused(client, "resume_execution", threadId="t", suspensionId="s", decision=decision)
        assert "approve" in error["message"] and error["code"] == "invalid_arguments"


@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("run_goal", {}, "goal"),
        ("run_goal", {"goal": 3}, "goal"),
        ("run_goal", {"goal": "  "}, "goal"),
        ("run_goal", {"goal": "x", "options": {"waitSeconds": 301}}, "waitSeconds"),
        ("run_goal", {"goal": "x", "options": {"maxIterations": "many"}}, "maxIterations"),
        ("get_tool_schemas", {"names": "find"}, "names"),
        ("search_tools", {"limit": 0}, "limit"),
        ("search_tools", {"limit": True}, "limit"),
        ("search_tools", {"cursor": "-1"}, "cursor"),
        ("list_suspensions", {"addressee": "clock"}, "addressee"),
        ("get_execution", {"threadId": "t", "observationsAfter": -1}, "observationsAfter"),
        ("submit_answer", {"threadId": "t", "suspensionId": "s", "content": None}, "content"),
        ("submit_answer", {"threadId": "t", "suspensionId": "s", "content": {}, "waitSeconds": -1}, "waitSeconds"),
        ("resume_execution", {"threadId": "t", "suspensionId": "s", "decision": {"approved": "false"}}, "approved"),
        ("resume_execution", {"threadId": "t", "suspensionId": "s", "decision": {"approved": 1}}, "approved"),
        ("resume_execution", {"threadId": "t", "suspensionId": "s", "decision": True}, "decision"),
    ],
)
async def test_wrong_arguments_are_refused_by_name(
    tmp_path: Path, era: Era, name: str, arguments: dict[str, object], word: str
) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        error = await refused(client, name, **arguments)
        assert error["code"] == "invalid_arguments"
        assert word in error["message"]


async def test_null_means_left_out(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "run_goal", goal="x", threadId=None, options=None)
        done = await ok(
            client, "resume_execution", **ids_of(asked), decision={"approved": False, "reason": None, "content": None}
        )
        assert done["status"] == "rejected"


async def test_a_tool_for_plans_called_directly_is_explained(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        error = await refused(client, "displayConfirmation", action="x")
        assert error["code"] == "unknown_tool" and "execute_plan" in error["message"]
        error = await refused(client, "no_such_tool")
        assert error["code"] == "unknown_tool" and "run_goal" in error["message"]


async def test_tools_registered_beside_ours_work_as_on_any_server(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found:

        @found.server.tool()
        def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        async with Client(found.server, mode=era) as client:
            assert len((await client.list_tools()).tools) == len(TOOLS) + 1
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}
