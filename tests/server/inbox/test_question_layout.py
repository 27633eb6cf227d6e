"""What the pages of questions put first: danger before age, a person's own fields before facts, a table of rows."""

import re

import pytest
from pydantic import JsonValue

from planwarden.server.inbox.questions import PAGE_SIZE
from tests.requirements import requirement
from tests.server.inbox.support import inbox, visit
from tests.support.wardens import confirm, tool_step

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
