"""The tools: how they are listed, what each does, and that text and structured content of a result each suffice."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.schema import Schema
from planwarden.server.mcp.results import LISTED_ROWS, MAX_STRUCTURED, make_presentable
from planwarden.server.mcp.server import INSTRUCTIONS
from planwarden.server.mcp.text import MAX_TEXT
from planwarden.server.mcp.tools.listing import TOOLS
from tests.kit import Client, model_step, plan, requirement, tool_step
from tests.server.mcp.support import ERAS, INBOX, Desk, Document, open_desk, question_of, served, text_of

PLANS: JsonValue = {"todoList": [{"id": "a", "description": "find some", "requiredTools": ["find"]}]}
FIND = tool_step("a", "find", {"topic": "x"})


async def test_the_tools_are_few_have_annotations_and_are_introduced(desk: Desk) -> None:
    tools = {tool.name: tool for tool in (await desk.client.list_tools()).tools}
    reading = {"search_tools", "get_tool_schemas", "get_execution", "list_suspensions"}
    assert list(tools) == [tool.name for tool in TOOLS] and reading < tools.keys()
    for name, tool in tools.items():
        hints = tool.annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.destructive_hint) == (name in reading, name == "resume_execution")
        assert hints.open_world_hint is False
        assert hints.title and tool.title and tool.output_schema and len(name) <= 32
        assert tool.input_schema["additionalProperties"] is False
    size = sum(len(t.name + (t.description or "") + json.dumps(t.input_schema)) for t in tools.values())
    assert size / 4 <= 3_000, "tokens, about, that each conversation pays"
    needs = "needs: client, a form of yours is enough; human, only the inbox or a terminal"
    assert needs in (tools["get_execution"].description or "")
    assert desk.client.instructions == INSTRUCTIONS
    for word in ("run_goal", "nextAction", "completed", "person"):
        assert word in INSTRUCTIONS[:200]
    for command in ("planwarden plans keep THREAD NAME", "planwarden schedule add NAME --cron"):
        assert command in INSTRUCTIONS
    assert len(INSTRUCTIONS) <= 2_000, "characters; hosts cut what is longer than about 2 KB"


async def test_the_schema_of_a_plan_takes_conditions_loops_and_attempts_as_the_server_does(desk: Desk) -> None:
    [schema] = (tool.input_schema for tool in (await desk.client.list_tools()).tools if tool.name == "execute_plan")
    one: JsonValue = {"value": {"$from": "a", "pointer": "/topic"}, "matches": {"const": "x"}}
    forms: tuple[JsonValue, ...] = (one, [one], json.dumps(one), json.dumps([one]))
    for when in forms:
        arguments: Document = {"plan": plan(FIND, tool_step("b", "note", {"text": "x"}, when=when))}
        assert isinstance(when, str) or Schema(schema).find_faults(arguments) == ()
        assert (await desk.ok("execute_plan", **arguments))["status"] == "completed"
    misfits: tuple[Document, ...] = ({"when": 5}, {"retry": {"times": 3}}, {"forEach": 5})
    for wrong in misfits:
        assert Schema(schema).find_faults({"plan": plan({**FIND, **wrong})}) != ()


async def test_the_catalogue_is_searched_page_by_page_and_schemas_are_given_in_full(desk: Desk) -> None:
    best = await desk.ok("search_tools", query="delete records", limit=2)
    found = {"name": "erase", "signature": "erase(ids)", "description": "Delete records."}
    assert best["tools"][0] == {**found, "executionMode": "immediate", "risk": "dangerous", "source": "python"}
    first = await desk.ok("search_tools", limit=6)
    second = await desk.ok("search_tools", limit=6, cursor=first["nextCursor"])
    names = [tool["name"] for tool in first["tools"] + second["tools"]]
    assert len(set(names)) == len(names) == first["total"] and "nextCursor" not in second
    everything = text_of(await desk.call("search_tools"))
    assert "erase(ids): Delete records. [risk dangerous, immediate, from python]" in everything
    nothing = text_of(await desk.call("search_tools", query="xylophone"))
    assert nothing == "no tool for plans matches; search_tools without query lists all"
    result = await desk.call("get_tool_schemas", names=["erase", "nope"])
    [tool] = result.structured_content["tools"]
    assert tool["inputSchema"]["properties"]["ids"]["type"] == "array"
    assert (tool["risk"], tool["effect"], len(tool["definitionDigest"])) == ("dangerous", "effect", 64)
    assert json.loads(text_of(result).splitlines()[0]) == tool
    assert result.structured_content["unknown"] == ["nope"] and '"nope"' in text_of(result)
    with pytest.raises(InvalidArguments, match="'names' is empty"):
        await desk.warden.get_tool_schemas([])
    with pytest.raises(LimitExceeded, match="999 names were asked for"):
        await desk.warden.get_tool_schemas(["erase"] * 999)


@requirement("plan:forecast", "rehearsal:record")
async def test_a_planned_and_a_rehearsed_execution_say_what_they_will_ask_and_why(desk: Desk, tmp_path: Path) -> None:
    loop = tool_step("loop", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2])
    bound = tool_step("bound", "erase", {"ids": {"$from": "a", "pointer": "/ids"}})
    think: JsonValue = {"id": "think", "description": "think"}
    script: list[JsonValue] = [{"when": {"purpose": "plan"}, "reply": {"plan": plan(FIND, loop, bound, think)}}]
    async with open_desk(tmp_path, script=script) as other:
        planned = text_of(await other.call("create_plan", goal="erase them"))
    for said in (
        "Will ask one question for all rows, a person, in the inbox or at a terminal: loop erase, because calls of",
        "Only the run knows: bound erase, from a\nA model writes the calls or text of: think",
    ):
        assert said in planned
    rehearsed = await desk.call("execute_plan", plan=plan(FIND, loop), options={"rehearse": True})
    said = 'erase({"ids": [1]}) rehearsed\n    would need {"risk": "dangerous", "asks": "approval", "needs": "human"}'
    assert said in text_of(rehearsed)
    assert 'Row at index 0: erase({"ids": [1]' in text_of(await desk.call("execute_plan", plan=plan(loop)))
    thread_id = rehearsed.structured_content["threadId"]
    with pytest.raises(InvalidArguments, match="observationsAfter must be 0 or more"):
        await desk.warden.get_execution(thread_id, observations_after=-1)
    for after in (2**63 - 1, 10**20, 1e300):
        assert (await desk.ok("get_execution", threadId=thread_id, observationsAfter=after)).get(
            "observations", []
        ) == []


async def test_where_the_text_cuts_a_result_it_says_where_the_rest_can_be_read(desk: Desk) -> None:
    find = tool_step("a", "find", {"topic": "x" * 5_000})
    done = await desk.call("execute_plan", plan=plan(find))
    address = f"planwarden://executions/{done.structured_content['threadId']}"
    assert f"\n  {address} has it whole" in text_of(done)
    assert "x" * 5_000 in str(await desk.client.read_resource(address))


async def test_the_text_says_each_way_to_decide_once(tmp_path: Path) -> None:
    async with open_desk(tmp_path, inbox_url=INBOX) as desk:
        asked = await desk.call("execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
        how = question_of(asked.structured_content)["howToAnswer"]
        listed = text_of(await desk.call("list_suspensions"))
        for way in (how["command"], how["inboxUrl"]):
            assert (text_of(asked).count(way), listed.count(way)) == (1, 1)


async def test_the_text_says_why_a_call_failed_once_beside_the_output(tmp_path: Path) -> None:
    @planwarden.tool(risk="read")
    def order() -> None:
        """Order."""
        raise planwarden.ToolError("order 4711 is closed")

    async with open_desk(tmp_path, "auto", order) as desk:
        failed = await desk.call("execute_plan", plan=plan(tool_step("a", "order")))
        before, _, steps = text_of(failed).partition("\nOutput:\n| ")
        output, _, steps = steps.partition("\n")
        assert [text.count("order 4711 is closed") for text in (before, output, steps)] == [1, 1, 0]
        assert "Error: tool_error: " in before and "\n  order({}) failed" in steps


@pytest.mark.parametrize("era", ERAS)
async def test_a_plan_runs_and_its_results_and_history_are_in_both_twins(desk: Desk) -> None:
    steps = plan(FIND, tool_step("b", "note", {"text": {"$from": "a", "pointer": "/topic"}}))
    result = await desk.call("execute_plan", plan=steps, goal="note it")
    document: Document = result.structured_content
    assert (document["status"], desk.ledger.lines) == ("completed", ["note x"]) and "observations" not in document
    assert [step["result"] for step in document["steps"]] == [{"ids": [1, 2, 3], "topic": "x"}, {"written": "x"}]
    for needed in ('{"ids": [1, 2, 3], "topic": "x"}', '{"written": "x"}', "completed", document["threadId"]):
        assert needed in text_of(result)
    result = await desk.call("get_execution", threadId=document["threadId"], observationsAfter=0)
    history = result.structured_content["observations"]
    types = [entry["type"] for entry in history]
    step = ["STEP_STARTED", "TOOL_CALLED", "TOOL_RETURNED", "STEP_COMPLETED"]
    assert types == ["PLAN_ACCEPTED", *step, *step, "EXECUTION_COMPLETED"]
    assert all(kind in text_of(result) for kind in types)
    after = history[2]["sequence"]
    later = await desk.ok("get_execution", threadId=document["threadId"], observationsAfter=after)
    assert [entry["type"] for entry in later["observations"]] == types[3:]


async def test_open_questions_are_listed_by_addressee_until_their_execution_is_cancelled(desk: Desk) -> None:
    mine = await desk.ok("run_goal", goal="x")
    theirs = await desk.ok("execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
    page = await desk.call("list_suspensions", addressee="human")
    [question] = page.structured_content["suspensions"]
    assert question["suspensionId"] == question_of(theirs)["suspensionId"]
    assert question["howToAnswer"]["command"] in text_of(page)
    assert (await desk.ok("list_suspensions"))["total"] == 2
    one = await desk.ok("list_suspensions", threadId=mine["threadId"])
    assert [found["addressee"] for found in one["suspensions"]] == ["caller"]
    for reason in ("no longer needed", None):
        over = await desk.ok("cancel_execution", threadId=mine["threadId"], reason=reason)
        assert (over["status"], over["suspensions"]) == ("cancelled", [])
    over = await desk.ok("cancel_execution", threadId=theirs["threadId"])
    assert (over["steps"][0]["status"], over["output"]) == ("skipped", "a skipped - use erase")
    assert (await desk.ok("list_suspensions"))["total"] == 0


async def test_tools_registered_beside_ours_work_as_on_any_server(tmp_path: Path) -> None:
    async with served(tmp_path) as found:

        @found.server.tool()
        def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        async with Client(found.server) as client:
            assert len((await client.list_tools()).tools) == len(TOOLS) + 1
            assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


@requirement("mcp:bounded-answers")
async def test_a_result_that_no_window_could_hold_is_cut_in_both_twins(tmp_path: Path) -> None:
    @planwarden.tool(risk="read", effect="read")
    async def flood() -> str:
        """A lot of text."""
        return "x" * 200_000

    async with open_desk(tmp_path, "auto", flood) as desk:
        result = await desk.call("execute_plan", plan=plan(*(tool_step(f"s{n}", "flood") for n in range(5))))
        document = result.structured_content
        assert document["status"] == "completed"
        assert document["steps"][4]["result"] == {"truncated": True, "sizeBytes": 200_000, "preview": "x" * 2_000}
        assert len(json.dumps(document)) <= MAX_STRUCTURED and len(text_of(result)) <= MAX_TEXT


async def test_every_open_question_is_named_even_when_the_prompts_do_not_fit(desk: Desk) -> None:
    steps = plan(*(model_step(f"s{n}", "find", description="x" * 9_000, dependencies=[]) for n in range(10)))
    result = await desk.call("execute_plan", plan=steps)
    questions = result.structured_content["suspensions"]
    assert len(questions) == 10 and len(text_of(result)) == MAX_TEXT
    assert all(question["suspensionId"] in text_of(result) for question in questions)


@requirement("mcp:bounded-answers")
async def test_a_list_of_questions_about_many_calls_has_the_first_rows_and_their_count(desk: Desk) -> None:
    rows = list[JsonValue](f"{number} {'x' * 500}" for number in range(90))
    step = tool_step("each", "send", {"to": {"$from": "item"}}, forEach=rows)
    ids = {(await desk.warden.execute_plan(plan(step))).suspensions[0].suspension_id for _ in range(30)}
    listed, more = list[Document](), dict[str, JsonValue]()
    while more or not listed:
        page = await desk.call("list_suspensions", limit=100, **more)
        document: Document = page.structured_content
        assert len(json.dumps(document)) <= MAX_STRUCTURED and len(text_of(page)) <= MAX_TEXT
        listed += document["suspensions"]
        more = {"cursor": document["nextCursor"]} if "nextCursor" in document else {}
        assert document["total"] == 30
    assert len(listed) == 30 and {question["suspensionId"] for question in listed} == ids
    assert {(len(question["calls"]), question["callCount"]) for question in listed} == {(LISTED_ROWS, 90)}


@requirement("mcp:bounded-answers")
@pytest.mark.parametrize(
    ("entry", "count"), [(7, 300_000), ("x" * 1_500, 500), ({"result": "y" * 5_000}, 200), (["z" * 90_000], 9)]
)
def test_any_document_is_cut_to_the_limit_and_lists_say_how_long_they_were(entry: JsonValue, count: int) -> None:
    document: dict[str, JsonValue] = {"status": "completed", "steps": [{"id": "a", "found": [entry] * count}]}
    cut = make_presentable(document)
    assert len(json.dumps(cut, ensure_ascii=False)) <= MAX_STRUCTURED
    assert cut["status"] == "completed"
    [step] = cut["steps"]
    assert len(step["found"]) == count or step["foundCount"] == count
    if isinstance(entry, dict):
        assert step["found"][0]["result"]["sizeBytes"] == 5_000
