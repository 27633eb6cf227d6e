"""The page of a plan under review: what it shows, approving, covering, and editing in two steps."""

import json

import pytest
from pydantic import JsonValue

from planwarden.server.views.suspension import Suspension
from tests.requirements import requirement
from tests.server.inbox.support import Browser, Inbox, inbox
from tests.support.wardens import Ledger, plan, statuses, tool_step

pytestmark = pytest.mark.anyio

STEPS = (
    tool_step("find", "find", {"topic": "<b>x</b>"}),
    tool_step("known", "erase", {"ids": [7]}),
    tool_step("bound", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}),
)


async def ask(found: Inbox) -> tuple[Suspension, Browser]:
    written = plan(*STEPS)
    execution = await found.warden.execute_plan(written, goal="tidy up", options={"review": "person"})
    browser = await found.log_in()
    return execution.suspensions[0], browser


@requirement("plan:review")
async def test_the_page_shows_the_steps_the_risks_and_what_the_answer_can_cover() -> None:
    async with inbox() as found:
        asked, browser = await ask(found)
        page = await browser.open_question(asked)
    words = " ".join(page.words.split())
    assert "Start this plan?" in words and "Plan of 3 steps of tidy up" in words
    assert 'Calls of "erase" are dangerous.' in words and 'Only the run will know the arguments of "bound"' in words
    assert "Step 2 of 3: known" in words and "The same decision can cover, if you say so below, in known" in words
    assert "Approve also the 1 call that this answer can cover" in words
    assert "<b>x</b>" not in page.text and "The agent says (unverified) tidy up" in words
    assert json.loads(page.form("/decision").fields["plan"][0])["todoList"][1]["id"] == "known"


@requirement("plan:review")
async def test_an_edited_plan_is_approved_only_after_its_difference_was_seen() -> None:
    ledger = Ledger()
    edited = json.dumps(plan(tool_step("note", "note", {"text": "instead"})))
    async with inbox(ledger) as found:
        asked, browser = await ask(found)
        shown = await browser.decide(asked.suspension_id, "approve", plan=edited, cover="yes")
        assert shown.status == 200 and "You changed the plan" in shown.words and ledger.lines == []
        assert "step known" in shown.words and "instead" in shown.words and "the order of the steps" in shown.words
        back = await browser.submit(shown.form("/decision"), press="edit")
        assert "instead" in back.form("/decision").fields["plan"][0] and ledger.lines == []
        answer = await browser.submit(shown.form("/decision"), press="approve")
        assert answer.status == 303
        execution = await found.current_execution(asked)
    assert (execution.status, statuses(execution), ledger.lines) == (
        "completed",
        {"note": "completed"},
        ["note instead"],
    )


@requirement("plan:review")
@pytest.mark.parametrize(
    ("text", "says"), [("{", "The plan is"), ("[]", "no JSON object"), ('{"todoList": [{"id": "a"}]}', "description")]
)
async def test_a_wrong_edit_is_named_and_kept(text: str, says: str) -> None:
    async with inbox() as found:
        asked, browser = await ask(found)
        page = await browser.decide(asked.suspension_id, "approve", plan=text)
        if page.status == 200:
            page = await browser.submit(page.form("/decision"), press="approve")
        assert page.status == 422 and says in page.words
        kept: JsonValue = page.form("/decision").fields["plan"][0]
        execution = await found.current_execution(asked)
    assert json.dumps(kept) and str(kept).replace(" ", "") == text.replace(" ", "")
    assert execution.status == "suspended" and found.ledger.lines == []
