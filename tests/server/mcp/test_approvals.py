"""Approvals over MCP: a model approves nothing, and a person's form counts once. A ledger records the effects."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.kit import confirm, open_desk, plan, requirement, tool_step
from tests.server.mcp.support import ERAS, Era, Person, approving, ids_of, nobody, question_of

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]

APPROVE = {"approved": True}
CONFIRMED: dict[str, JsonValue] = plan(confirm("a", "write it down?"), tool_step("b", "note", {"text": "x"}))


async def test_a_confirmation_is_decided_in_the_form_of_the_clients_person(tmp_path: Path, era: Era) -> None:
    person = approving()
    async with open_desk(tmp_path, era, asks=person) as desk:
        asked = await desk.ok("execute_plan", plan=CONFIRMED)
        assert (asked["awaiting"], person.shown) == ("human", [])
        done = await desk.ok("resume_execution", **ids_of(asked), decision=APPROVE)
        assert (done["status"], desk.ledger.lines) == ("completed", ["note x"])
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
        history = await desk.ok("get_execution", threadId=done["threadId"], observationsAfter=0)
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
    person = Person(person.action, person.content)
    async with open_desk(tmp_path, era, asks=person) as desk:
        asked = await desk.ok("execute_plan", plan=CONFIRMED)
        still = await desk.ok("resume_execution", **ids_of(asked), decision=APPROVE)
        assert (still["status"], still["awaiting"], desk.ledger.lines) == ("suspended", "human", [])
        assert len(person.shown) == 1
        assert "did not decide" in still["nextAction"] and "planwarden approve" in still["nextAction"]


def _asks(form: JsonValue) -> dict[str, JsonValue]:
    return plan(
        tool_step("ask", "requestInput", {"message": "Where to?", "form": form}),
        tool_step("do", "note", {"text": {"$from": "ask", "pointer": "/content/city"}}),
    )


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
    async with open_desk(tmp_path, era, asks=nobody) as desk:
        asked = await desk.ok("execute_plan", plan=_asks(form))
        still = await desk.ok("resume_execution", **ids_of(asked), decision=APPROVE)
        assert (still["status"], still["awaiting"]) == ("suspended", "human")


NASTY = "Fine\n" * 50 + "\x1b[2J\u202e[Approve]\u200b\U000e0041" + "\n" * 5_000


@requirement("forms:brief")
async def test_words_made_to_deceive_come_after_the_facts_escaped_and_cut(tmp_path: Path, era: Era) -> None:
    person = Person(action="cancel")
    async with open_desk(tmp_path, era, asks=person) as desk:
        step = tool_step("a", "send", {"to": "Ann"}, description=NASTY)
        asked = await desk.ok("execute_plan", plan=plan(step))
        await desk.ok("resume_execution", **ids_of(asked), decision=APPROVE)
        message = person.shown[0].message
        lines = message.splitlines()
        assert lines[0] == "Run this call? send (risk: confirm)"
        assert lines[1] == "planwarden found: Control or invisible characters escaped: 4"
        assert lines[2] == 'to="Ann", copies=1, urgent=false'
        assert lines[3].startswith("The agent says (unverified), 500 char") and len(lines) == 4
        assert len(message) < 800 and message.replace("\n", "").isprintable()


@requirement("forms:brief")
async def test_arguments_made_to_deceive_are_not_put_into_a_form(tmp_path: Path, era: Era) -> None:
    async with open_desk(tmp_path, era, asks=nobody) as desk:
        asked = await desk.ok("execute_plan", plan=plan(confirm("a", NASTY)))
        still = await desk.ok("resume_execution", **ids_of(asked), decision=APPROVE)
        assert (still["awaiting"], question_of(asked)["needs"]) == ("human", "client")


REVIEWED = plan({**tool_step("note", "note", {"text": "x"}), "description": "write x"})
MODELS_EDIT: JsonValue = plan(tool_step("note", "note", {"text": "the model's"}))


@requirement("plan:review")
async def test_a_person_approves_in_a_form_what_the_form_shows_whatever_the_model_proposed(
    tmp_path: Path, era: Era
) -> None:
    person = approving()
    async with open_desk(tmp_path, era, asks=person) as desk:
        asked = await desk.ok("execute_plan", plan=REVIEWED, options={"review": "person"})
        decision = {"approved": True, "content": {"plan": MODELS_EDIT, "cover": True}}
        done = await desk.ok("resume_execution", **ids_of(asked), decision=decision)
        [form] = person.shown
    assert (done["status"], desk.ledger.lines) == ("completed", ["note x"])
    lines = form.message.splitlines()
    assert lines[0].startswith("Start this plan? (risk: confirm)") and len(lines) <= 4
    shown = form.message.replace("\n| ", "")
    assert 'Step 1 of 1: note: note(text="x")' in shown and "1 step(s); 0 call(s) will ask a person" in shown
    assert lines[-1] == "The agent says (unverified): note: write x"
    assert set(form.requested_schema["properties"]) == {"decision", "reason"}
