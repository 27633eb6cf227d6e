"""What a calling model is told of its plan before it runs, and of its thread after a plan ended early."""

from pathlib import Path

import pytest
from mcp import Client

from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Document, Era, ids_of, ok, question_of, served, text_of
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("era", ERAS)


@eras
@requirement("plan:promises")
async def test_a_model_whose_plan_confirms_unknown_calls_or_only_speaks_of_sending_is_told_in_the_next_answer(
    tmp_path: Path, era: Era
) -> None:
    ids: Document = {"$from": "find", "pointer": "/ids"}
    tell: Document = {"id": "tell", "description": "Send Ann a mail about it"}
    written = plan(
        confirm("ask", confirms=["wipe"]),
        tool_step("find", "find", {"topic": "t"}),
        tool_step("wipe", "erase", {"ids": [{"$from": "item"}]}, forEach=ids),
        tell,
    )
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "run_goal", goal="wipe them")
        answer = await client.call_tool("submit_answer", {**ids_of(asked), "content": written})
        document: Document = answer.structured_content or {}
        confirmed, spoken = document["warnings"]
        assert "to ask once, leave the confirmation out: the loop asks once" in confirmed
        assert spoken == "step 'tell' speaks of sending, but promises no tool; nothing will be sent"
        assert "nothing will be sent" in text_of(answer) and question_of(document)["kind"] == "confirmation"


@eras
@requirement("thread:effects")
async def test_a_model_whose_plan_ended_early_is_told_what_earlier_plans_of_the_thread_did(
    tmp_path: Path, era: Era
) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        done = await ok(client, "execute_plan", plan=plan(tool_step("a", "note", {"text": "once"})))
        thread = done["threadId"]
        failed = await ok(client, "execute_plan", threadId=thread, plan=plan(tool_step("b", "broken")))
        [effect] = failed["doneBefore"]
        assert (effect["toolName"], effect["arguments"], effect["stepId"]) == ("note", '{"text":"once"}', "a")
        told = await client.call_tool("get_execution", {"threadId": thread})
    assert failed["nextAction"].endswith("Completed by earlier plans of this thread, do not repeat: see doneBefore.")
    assert 'Done before: note "{\\"text\\":\\"once\\"}" in step "a" at ' in text_of(told)


@eras
@requirement("resume:table")
async def test_a_missing_decision_is_answered_with_how_the_person_decides(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
        sent: tuple[Document, ...] = ({}, {"decision": {}}, {"decision": {"reason": "fine"}})
        for given in sent:
            answer = await client.call_tool("resume_execution", {**ids_of(asked), **given})
            document: Document = answer.structured_content or {}
            text = text_of(answer)
            assert (document["status"], document["awaiting"]) == ("suspended", "human")
            assert "A person must decide" in document["nextAction"] or "person must decide" in document["nextAction"]
            assert "planwarden approve" in text and '"approved"' not in text
