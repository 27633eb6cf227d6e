"""A review over MCP: a model proposes, a person decides, in a form where the whole plan fits into it."""

from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Era, approving, ids_of, nobody, ok, question_of, served
from tests.support.wardens import Ledger, plan, tool_step

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]

SHORT = plan({**tool_step("note", "note", {"text": "x"}), "description": "write x"})
EDIT: JsonValue = plan(tool_step("note", "note", {"text": "the model's"}))
REVIEW = {"review": "person"}


@requirement("plan:review")
@pytest.mark.parametrize("content", [None, {"cover": True}, {"plan": EDIT}, {"plan": EDIT, "cover": True}])
async def test_a_model_cannot_approve_edit_or_cover_a_plan(tmp_path: Path, era: Era, content: Any) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=SHORT, options=REVIEW)
        question = question_of(asked)
        assert (question["kind"], question["needs"], "stepId" in question) == ("review", "client", False)
        decision = {"approved": True} if content is None else {"approved": True, "content": content}
        still = await ok(client, "resume_execution", **ids_of(asked), decision=decision)
        assert (still["status"], still["awaiting"]) == ("suspended", "human")
        assert question_of(still)["digest"] == question["digest"] and "do not retry" in still["nextAction"]
    assert ledger.lines == []


@requirement("plan:review")
async def test_a_person_approves_in_a_form_what_the_form_shows_whatever_the_model_proposed(
    tmp_path: Path, era: Era
) -> None:
    ledger, person = Ledger(), approving()
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(client, "execute_plan", plan=SHORT, options=REVIEW)
        decision = {"approved": True, "content": {"plan": EDIT, "cover": True}}
        done = await ok(client, "resume_execution", **ids_of(asked), decision=decision)
        [form] = person.shown
    assert (done["status"], ledger.lines) == ("completed", ["note x"])
    lines = form.message.splitlines()
    assert lines[0].startswith("Start this plan? (risk: confirm)") and len(lines) <= 4
    shown = form.message.replace("\n| ", "")
    assert 'Step 1 of 1: note: note(text="x")' in shown and "1 step(s); 0 call(s) will ask a person" in shown
    assert lines[-1] == "The agent says (unverified): note: write x"
    assert set(form.requested_schema["properties"]) == {"decision", "reason"}


@requirement("plan:review")
async def test_a_plan_that_no_form_can_show_whole_is_not_decided_in_one(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    long = plan(*(tool_step(f"s{number}", "erase", {"ids": [number]}) for number in range(5)))
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=long, options=REVIEW)
        still = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})
        assert (still["status"], still["awaiting"]) == ("suspended", "human")
        gone = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": False})
    assert (gone["status"], ledger.lines) == ("rejected", [])
