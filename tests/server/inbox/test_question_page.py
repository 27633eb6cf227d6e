"""The page of a question: what comes first, plans under review, rules that apply, and where it comes from."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.ports.policy import OnceRule
from planwarden.server.inbox.questions import PAGE_SIZE
from planwarden.server.settings.rules import build_rule_book
from tests.kit import OperatorPolicy, Settings, Suspension, confirm, plan, requirement, tool_step
from tests.server.inbox.support import Browser, Inbox, inbox, visit

pytestmark = pytest.mark.anyio

FORM: JsonValue = {
    "type": "object",
    "required": ["city"],
    "properties": {"city": {"type": "string"}, "letter": {"type": "string", "maxLength": 500}},
}
ASK = tool_step("ask", "requestInput", {"message": "Where to?", "form": FORM})
LOOP = tool_step("wipe", "erase", {"ids": [{"$from": "item"}]}, forEach=[7, 8, 9])


@requirement("inbox:layout")
async def test_what_is_dangerous_waits_on_the_first_page_however_many_older_questions_there_are() -> None:
    async with visit() as (found, browser):
        older = [(await found.ask(confirm(f"a{number}"))).suspension_id for number in range(PAGE_SIZE)]
        dangerous = (await found.ask()).suspension_id
        page = await browser.open("/inbox")
        rest = await browser.open(f"/inbox?after={older[-2]}")
    assert re.findall(r'id="q-(\w+)"', page.text) == [dangerous, *older[:-1]]
    assert f"after={older[-2]}" in page.text and re.findall(r'id="q-(\w+)"', rest.text) == [older[-1]]


@requirement("inbox:layout")
async def test_the_fields_of_a_person_come_before_the_call_that_asks_and_longer_texts_have_room() -> None:
    async with inbox() as found:
        asked = await found.ask(ASK)
        page = await (await found.log_in()).open(f"/inbox/suspensions/{asked.suspension_id}")
    assert page.text.index("Your answer") < page.text.index("The call that asks")
    assert "the form, as this page shows it" in page.words and "below" not in page.words
    assert len(re.findall(r"<textarea id=\"arg", page.text)) == 1 and '<textarea id="reason"' in page.text


@requirement("inbox:layout")
async def test_rows_are_a_table_with_one_column_an_argument_whose_origins_stand_behind_a_toggle() -> None:
    async with inbox() as found:
        asked = await found.ask(LOOP)
        page = await (await found.log_in()).open(f"/inbox/suspensions/{asked.suspension_id}")
    assert page.text.count('<th scope="col">') == 2 and page.text.count('data-label="ids"') == 3
    assert page.text.count('<span class="origin">from the item</span>') == 1 and 'id="origins"' in page.text
    assert [f"Edit row {row}" in page.words for row in range(5)] == [False, True, True, True, False]
    # How the question works is no warning.
    assert 'class="found"' in page.text and "found warns" not in page.text
    assert 'class="card decide sticky"' in page.text


@requirement("inbox:layout")
async def test_history_says_what_a_person_answered_and_which_rows_were_approved() -> None:
    async with visit() as (found, browser):
        asked, rows, whole = await found.ask(ASK), await found.ask(LOOP), await found.ask(LOOP)
        form = (await browser.open_question(asked)).form("/decision")
        city = next(name for name in form.fields if name.startswith("arg."))
        await browser.submit(form, press="approve", **{city: "Bremen <b>"})
        await browser.decide(rows.suspension_id, "approve", row=["0", "2"])
        await browser.decide(whole.suspension_id, "approve")
        history = await browser.open("/inbox/history")
    assert '{"city": "Bremen <b>"}' in history.words and "<b>}" not in history.text
    assert "rows 1, 3 of 3, without row 2" in history.words and "all 3 rows" in history.words


REVIEWED = (
    tool_step("find", "find", {"topic": "<b>x</b>"}),
    tool_step("known", "erase", {"ids": [7]}),
    tool_step("bound", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}),
)


async def ask_for_review(found: Inbox) -> tuple[Suspension, Browser]:
    written = plan(*REVIEWED)
    execution = await found.warden.execute_plan(written, goal="tidy up", options={"review": "person"})
    browser = await found.log_in()
    return execution.suspensions[0], browser


@requirement("plan:review")
async def test_the_page_shows_the_steps_the_risks_and_what_the_answer_can_cover() -> None:
    async with inbox() as found:
        asked, browser = await ask_for_review(found)
        page = await browser.open_question(asked)
    words = page.said
    assert "Start this plan?" in words and "Plan of 3 steps of tidy up" in words
    assert 'Calls of "erase" are dangerous.' in words and 'Only the run will know the arguments of "bound"' in words
    assert "Step 2 of 3: known" in words and "The same decision can cover, if you say so below, in known" in words
    assert "Approve also the 1 call that this answer can cover" in words
    assert "<b>x</b>" not in page.text and "The agent says (unverified) tidy up" in words
    assert json.loads(page.form("/decision").fields["plan"][0])["todoList"][1]["id"] == "known"


@requirement("plan:review")
async def test_a_wrong_edit_is_named_and_kept_and_a_right_one_is_shown_and_can_be_edited_further() -> None:
    faults = {"{": "The plan is", "[]": "no JSON object", '{"todoList": [{"id": "a"}]}': "description"}
    async with inbox() as found:
        asked, browser = await ask_for_review(found)
        for text, says in faults.items():
            page = await browser.decide(asked.suspension_id, "approve", plan=text)
            if page.status == 200:
                page = await browser.submit(page.form("/decision"), press="approve")
            assert page.status == 422 and says in page.words
            assert page.form("/decision").fields["plan"][0].replace(" ", "") == text.replace(" ", "")
        edited = json.dumps(plan(tool_step("note", "note", {"text": "instead"})))
        shown = await browser.decide(asked.suspension_id, "approve", plan=edited, cover="yes")
        assert shown.status == 200 and "You changed the plan" in shown.words
        assert "step known" in shown.words and "instead" in shown.words and "the order of the steps" in shown.words
        back = await browser.submit(shown.form("/decision"), press="edit")
        assert "instead" in back.form("/decision").fields["plan"][0]
        assert (await found.current_execution(asked)).status == "suspended" and found.ledger.lines == []


RULES = """
[[rules]]
tool = "note"
when = { text = { prefix = "ask" } }
then = "ask"
because = "<b>by hand</b>"
[[rules]]
tool = "erase"
when = { "ids/0" = { min = 1, max = 9 } }
then = "allow"
[[rules]]
tool = "erase"
then = "deny"
because = "kept"
"""


def settings_with_rules() -> Settings:
    rules, facts = build_rule_book(tomllib.loads(RULES)["rules"])
    return Settings(home=Path("/nonexistent"), policy=OperatorPolicy(rules=rules, facts={"rules": facts}))


@requirement("rules:calls")
async def test_a_question_and_a_call_name_their_rule_and_its_values() -> None:
    async with visit(settings=settings_with_rules()) as (found, browser):
        asked = await found.ask(tool_step("a", "note", {"text": "ask <i>me</i>"}))
        question = await browser.open_question(asked)
        waiting = await browser.open("/inbox")
        for page in (question, waiting):
            assert 'Rule 1 applies: ask note when text begins with "ask" (<b>by hand</b>)' in page.words
            assert 'here text = "ask <i>me</i>"' in page.words
            assert "<b>by" not in page.text and "<i>me" not in page.text
        for number, says in (
            (5, "Allowed by rule 2: allow erase when ids/0"),
            (50, "rule 3 of the operator denies it: kept"),
        ):
            done = await found.warden.execute_plan(plan(tool_step("a", "erase", {"ids": [number]})), wait_seconds=60)
            assert says in (await browser.open(f"/inbox/executions/{done.execution_id}")).words


ONCE = Settings(home=Path("/nonexistent"), policy=OperatorPolicy(once={"erase": OnceRule(("/ids/0",), 90 * 86_400.0)}))


@requirement("rules:once")
async def test_the_second_approval_is_refused_and_the_pages_name_the_first_call() -> None:
    async with visit(settings=ONCE) as (found, browser):
        asked = [await found.ask(), await found.ask()]
        pages = [await browser.open_question(question) for question in asked]
        approved = await browser.submit(pages[0].form("/decision"), press="approve")
        answer = await browser.submit(pages[1].form("/decision"), press="approve")
        assert (approved.status, answer.status) == (303, 409)
        first = asked[0].execution_id
        assert f"call 'erase:1' of execution '{first}'" in answer.words
        assert "planwarden once forget erase --key ids/0=1" in answer.words and found.ledger.lines == ["erase [1, 2]"]
        refused = await browser.open(f"/inbox/executions/{asked[1].execution_id}")
        assert first in refused.words and "planwarden once forget erase --key ids/0=1" in refused.words
        done = await browser.open(f"/inbox/executions/{first}")
        assert "once per ids/0 = 1" in done.words


TIDY = """
title: Tidy up
todoList:
  - id: erase
    description: Erase it
    toolCalls: [{toolName: erase, arguments: {ids: [7]}}]
"""


@requirement("inbox:lineage")
async def test_a_question_of_a_saved_plan_names_it_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "tidy.yaml").write_text(TIDY)
    async with visit(settings=Settings(home=tmp_path)) as (found, browser):
        run = await found.warden.run_plan("tidy")
        assert run.saved_plan is not None and run.status == "suspended"
        version = run.saved_plan.version
        page = await browser.open(f"/inbox/suspensions/{run.suspensions[0].suspension_id}")
        assert "Step 1 of 1 of Tidy up" in page.words and f"tidy, version {version[:12]}" in page.words
        shown = await browser.open(f"/inbox/executions/{run.execution_id}")
        assert f"tidy, version {version[:12]}" in shown.words
        await browser.submit(page.form("/decision"), press="approve")
        history = await browser.open("/inbox/history")
        assert f"Saved plan: tidy, version {version[:12]}" in history.words and "Step 1 of 1" in history.words


@requirement("inbox:lineage")
async def test_a_retry_and_the_execution_that_it_goes_on_from_lead_to_each_other() -> None:
    mended: list[bool] = []

    @planwarden.tool(name="mend", risk="read", effect="effect")
    async def mend() -> str:
        """Works once it is mended."""
        if not mended:
            raise planwarden.ToolError("it is broken")
        return "mended"

    steps: list[dict[str, JsonValue]] = [
        tool_step("a", "note", {"text": "a"}),
        tool_step("mend", "mend", dependencies=["a"]),
        tool_step("wipe", "erase", {"ids": [1]}, dependencies=["mend"]),
    ]
    async with visit(tools=[mend]) as (found, browser):
        first = await found.warden.execute_plan(plan(*steps), goal="Tidy up")
        mended.append(True)
        second = await found.warden.retry(first.thread_id)
        page = await browser.open(f"/inbox/suspensions/{second.suspensions[0].suspension_id}")
        assert "Step 3 of 3 of Tidy up" in page.words
        assert f"execution {first.execution_id}; took over from there: a" in page.words
        assert f'href="/inbox/executions/{first.execution_id}"' in page.text
        earlier = await browser.open(f"/inbox/executions/{first.execution_id}")
        others = earlier.words.partition("Other runs of this thread")[2]
        assert "later" in others and f'href="/inbox/executions/{second.execution_id}"' in earlier.text
        later = await browser.open(f"/inbox/executions/{second.execution_id}")
        assert "took over from there: a" in later.words and f"execution {first.execution_id}" in later.words


@requirement("inbox:lineage")
async def test_a_rehearsal_says_that_it_is_one() -> None:
    async with inbox() as found:
        run = await found.warden.execute_plan(
            plan(tool_step("wipe", "erase", {"ids": [1]})), options={"rehearse": True}
        )
        assert run.is_rehearsal is True
        browser = await found.log_in()
        shown = await browser.open(f"/inbox/executions/{run.execution_id}")
        assert "Rehearsal" in shown.words and "nothing is done" in shown.words
