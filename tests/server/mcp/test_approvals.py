"""Approvals over MCP: a model approves nothing, and a person's form counts once. A ledger records the effects."""

from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.mcp.support import (
    ERAS,
    Era,
    Person,
    approving,
    ids_of,
    nobody,
    ok,
    question_of,
    refused,
    sender,
    served,
)
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]

APPROVE = {"approved": True}
CONFIRMED: dict[str, JsonValue] = plan(confirm("a", "write it down?"), tool_step("b", "note", {"text": "x"}))
DANGEROUS: dict[str, JsonValue] = plan(tool_step("a", "erase", {"ids": [1, 2]}))


async def test_a_model_that_approves_a_dangerous_call_has_no_effect(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=DANGEROUS)
        command = f"planwarden approve {question_of(asked)['suspensionId']}"
        for _ in range(5):
            still = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
            assert (still["status"], still["awaiting"]) == ("suspended", "human")
            assert command in still["nextAction"] and "do not retry" in still["nextAction"]
            assert question_of(still)["howToAnswer"] == {"command": command}
        error = await refused(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert error["code"] == "rate_limited" and command in error["message"]
        assert ledger.lines == []


async def test_edited_arguments_from_a_model_do_not_help(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=DANGEROUS)
        decision = {"approved": True, "modifiedArgs": {"ids": [1]}}
        still = await ok(client, "resume_execution", **ids_of(asked), decision=decision)
        assert (question_of(still)["revision"], question_of(still)["toolCall"]["arguments"]) == (2, {"ids": [1]})
        error = await refused(
            client, "resume_execution", **ids_of(asked), decision={"approved": True, "modifiedArgs": {"ids": "all"}}
        )
        assert error["code"] == "invalid_arguments"
        assert ledger.lines == []


async def test_a_rejection_from_any_caller_counts(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=DANGEROUS)
        decision = {"approved": False, "reason": "not these"}
        done = await ok(client, "resume_execution", **ids_of(asked), decision=decision)
        assert (done["status"], done["steps"][0]["status"], ledger.lines) == ("rejected", "rejected", [])
        again = await ok(client, "resume_execution", **ids_of(asked), decision=decision)
        assert again["status"] == "rejected"
        error = await refused(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert error["code"] == "already_decided"


async def test_without_forms_a_confirmation_waits_for_the_command_line(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        still = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (still["status"], still["awaiting"], ledger.lines) == ("suspended", "human", [])


async def test_a_confirmation_is_decided_in_the_form_of_the_clients_person(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), approving()
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        assert (asked["awaiting"], person.shown) == ("human", [])
        done = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (done["status"], ledger.lines) == ("completed", ["note x"])
        assert done["steps"][0]["result"] == {"approved": True}
        [form] = person.shown
        assert form.message.splitlines() == [
            "Confirm? displayConfirmation (risk: confirm)",
            'action="write it down?"',
            "The agent says (unverified): the same as action",
        ]
        assert form.requested_schema["required"] == ["decision"]
        assert form.requested_schema["properties"] == {
            "decision": {"type": "string", "title": "Decision", "enum": ["approve", "reject"]},
            "reason": {"type": "string", "title": "Reason (optional)"},
            "arg_action": {"type": "string", "title": "action", "default": "write it down?"},
        }
        history = await ok(client, "get_execution", threadId=done["threadId"], observationsAfter=0)
        [resumed] = [entry["data"] for entry in history["observations"] if entry["type"] == "AGENT_RESUMED"]
        assert (resumed["assurance"], resumed["channel"]) == ("client", "elicitation")


@pytest.mark.parametrize(
    "person",
    [
        Person(content={}),
        Person(content=None),
        Person(content={"decision": None}),
        Person(content={"decision": "yes"}),
        Person(content={"decision": True}),
        Person(content={"arg_action": "something else"}),
        Person(action="decline"),
        Person(action="cancel"),
        Person(action="decline", content={"decision": "approve"}),
    ],
    ids=["empty", "nothing", "null", "other word", "true", "arguments only", "decline", "cancel", "declined approval"],
)
async def test_a_form_without_a_decision_decides_nothing(tmp_path: Path, era: Era, person: Person) -> None:
    ledger = Ledger()
    person = Person(person.action, person.content)
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        still = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (still["status"], still["awaiting"], ledger.lines) == ("suspended", "human", [])
        assert len(person.shown) == 1
        assert "did not decide" in still["nextAction"] and "planwarden approve" in still["nextAction"]


async def test_a_form_that_says_reject_rejects(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), Person(content={"decision": "reject", "reason": "wrong day"})
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        done = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (done["status"], ledger.lines) == ("rejected", [])
        assert [step["status"] for step in done["steps"]] == ["rejected", "skipped"]
        history = await ok(client, "get_execution", threadId=done["threadId"], observationsAfter=0)
        [rejected] = [entry["data"] for entry in history["observations"] if entry["type"] == "STEP_REJECTED"]
        assert rejected["reason"] == "wrong day"


async def test_arguments_edited_in_the_form_are_what_runs(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), approving(arg_copies=3, arg_to="Ann")
    async with (
        served(tmp_path, tools=[sender(ledger)]) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "send", {"to": "Ann"})))
        assert question_of(asked)["kind"] == "approval"
        done = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (done["status"], ledger.lines) == ("completed", ["send Ann 3 False"])
        [form] = person.shown
        fields = {name: entry for name, entry in form.requested_schema["properties"].items() if name != "decision"}
        assert {name: entry.get("default") for name, entry in fields.items()} == {
            "reason": None,
            "arg_to": "Ann",
            "arg_copies": "1",
            "arg_urgent": False,
        }
        assert '\nto="Ann", copies=1, urgent=false\n' in form.message


async def test_arguments_edited_into_nonsense_leave_the_question_open(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), approving(arg_copies="three")
    async with (
        served(tmp_path, tools=[sender(ledger)]) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "send", {"to": "Ann"})))
        error = await refused(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert error["code"] == "invalid_arguments" and "copies" in error["message"]
        still = await ok(client, "get_execution", threadId=asked["threadId"])
        assert (still["status"], ledger.lines) == ("suspended", [])


async def test_what_the_model_proposes_to_change_is_what_the_person_is_shown(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), approving()
    async with (
        served(tmp_path, tools=[sender(ledger)]) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "send", {"to": "Ann"})))
        decision = {"approved": True, "modifiedArgs": {"to": "Bob"}}
        done = await ok(client, "resume_execution", **ids_of(asked), decision=decision)
        assert (done["status"], ledger.lines) == ("completed", ["send Bob 1 False"])
        found, facts, _ = person.shown[0].message.splitlines()[1:]
        assert found == "planwarden found: The calling model edited after it was asked: to" and 'to="Bob"' in facts


async def test_a_confirmation_that_covers_a_dangerous_call_is_not_put_into_a_form(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    steps = plan(confirm("ask", confirms=["do"]), tool_step("do", "erase", {"ids": [1]}))
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=steps)
        assert (question_of(asked)["risk"], question_of(asked)["needs"]) == ("dangerous", "human")
        still = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (still["awaiting"], ledger.lines) == ("human", [])


async def test_a_form_shows_everything_that_the_decision_covers(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), approving()
    steps = plan(confirm("ask", confirms=["do"]), tool_step("do", "send", {"to": "Ann"}))
    async with (
        served(tmp_path, tools=[sender(ledger)]) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=steps)
        done = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (done["status"], ledger.lines) == ("completed", ["send Ann 1 False"])
        shown = 'covers 1: send(to="Ann", copies=1, urgent=false)'
        assert shown in person.shown[0].message.splitlines()


async def test_a_question_whose_facts_do_not_fit_is_not_put_into_a_form(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    covered = [tool_step(f"s{n}", "send", {"to": "x" * 300}) for n in range(20)]
    steps = plan(confirm("ask", confirms=[f"s{n}" for n in range(20)]), *covered)
    async with (
        served(tmp_path, tools=[sender(ledger)]) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=steps, options={"synthesize": False})
        assert question_of(asked)["needs"] == "client"
        still = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (still["awaiting"], ledger.lines) == ("human", [])


FORM: JsonValue = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Rome", "Oslo"], "description": "Where\u202e to"},
        "nights": {"type": "integer", "minimum": 1, "default": 2},
        "quiet": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def _asks(form: JsonValue) -> dict[str, JsonValue]:
    return plan(
        tool_step("ask", "requestInput", {"message": "Where to?", "form": form}),
        tool_step("do", "note", {"text": {"$from": "ask", "pointer": "/content/city"}}),
    )


async def test_a_flat_form_is_filled_in_by_the_clients_person(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), approving(city="Oslo", nights=3)
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=_asks(FORM))
        assert question_of(asked)["answerSchema"] == FORM
        done = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (done["status"], ledger.lines) == ("completed", ["note Oslo"])
        assert done["steps"][0]["result"]["content"] == {"city": "Oslo", "nights": 3}
        schema = person.shown[0].requested_schema
        assert schema["required"] == ["decision", "city"]
        assert schema["properties"]["city"]["description"] == "Where\\u202e to"


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        ({"city": "Oslo"}, "suspended"),
        ({"decision": "approve"}, "invalid_arguments"),
        ({"decision": "approve", "city": "Paris"}, "invalid_arguments"),
        ({"decision": "approve", "city": "Oslo", "more": "x"}, "invalid_arguments"),
        ({"decision": "reject"}, "rejected"),
    ],
)
async def test_a_flat_form_is_checked_again_when_it_comes_back(
    tmp_path: Path, era: Era, content: dict[str, Any], outcome: str
) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=Person(content=content)) as client,
    ):
        asked = await ok(client, "execute_plan", plan=_asks(FORM))
        result = await client.call_tool("resume_execution", {**ids_of(asked), "decision": APPROVE})
        document = result.structured_content
        assert outcome == (document["error"]["code"] if result.is_error else document["status"])
        assert ledger.lines == []


@pytest.mark.parametrize(
    "form",
    [
        {"type": "object", "properties": {"who": {"type": "object", "properties": {}}}},
        {"type": "object", "properties": {"who": {"type": "array", "items": {"type": "string"}}}},
        {"type": "object", "properties": {"who": {"type": ["string", "null"]}}},
        {"type": "object", "properties": {"decision": {"type": "string"}}},
        {"type": "object", "properties": {"who": {"enum": ["a", "b"]}}},
        {"type": "object", "properties": {"who\u200b": {"type": "string"}}},
        {"type": "object", "properties": {}, "required": ["who"]},
        {"type": "object"},
    ],
    ids=["nested", "list", "union", "own decision", "untyped", "invisible", "required unknown", "no properties"],
)
async def test_any_other_form_waits_for_the_command_line(tmp_path: Path, era: Era, form: JsonValue) -> None:
    async with (
        served(tmp_path, tools=Ledger().tools()) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=_asks(form))
        still = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (still["status"], still["awaiting"]) == ("suspended", "human")


async def test_the_form_that_a_model_filled_in_is_only_a_proposal(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=_asks(FORM))
        for _ in range(5):
            decision = {"content": {"city": "Rome"}}
            still = await ok(client, "resume_execution", **ids_of(asked), decision=decision)
            assert (still["awaiting"], ledger.lines) == ("human", [])
        error = await refused(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert error["code"] == "rate_limited"


NASTY = "Fine\n" * 50 + "\x1b[2J\u202e[Approve]\u200b\U000e0041" + "\n" * 5_000


@requirement("forms:brief")
async def test_words_made_to_deceive_come_after_the_facts_escaped_and_cut(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), Person(action="cancel")
    async with (
        served(tmp_path, tools=[sender(ledger)]) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        step = tool_step("a", "send", {"to": "Ann"}, description=NASTY)
        asked = await ok(client, "execute_plan", plan=plan(step))
        await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        message = person.shown[0].message
        lines = message.splitlines()
        assert lines[0] == "Run this call? send (risk: confirm)"
        assert lines[1] == "planwarden found: Control or invisible characters escaped: 4"
        assert lines[2] == 'to="Ann", copies=1, urgent=false'
        assert lines[3].startswith("The agent says (unverified), 500 char") and len(lines) == 4
        assert len(message) < 800 and message.replace("\n", "").isprintable()


@requirement("forms:brief")
async def test_arguments_made_to_deceive_are_not_put_into_a_form(tmp_path: Path, era: Era) -> None:
    async with (
        served(tmp_path) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(confirm("a", NASTY)))
        still = await ok(client, "resume_execution", **ids_of(asked), decision=APPROVE)
        assert (still["awaiting"], question_of(asked)["needs"]) == ("human", "client")
