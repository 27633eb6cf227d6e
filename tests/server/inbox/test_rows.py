"""The page of one question about many calls: rows are left out and edited, and nothing is decided by accident."""

import json
import re
from itertools import product
from urllib.parse import urljoin

from pydantic import JsonValue

from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.server.inbox.row_choice import ROWS_PER_PAGE
from planwarden.server.settings.rules import build_rule_book
from tests.kit import ITEM, Ledger, Suspension, Tool, define, governed, requirement, tool_step
from tests.server.inbox.support import Browser, Inbox, Page, inbox

pytestmark = requirement("inbox:rows")


def _loop(items: list[JsonValue], **extra: JsonValue) -> dict[str, JsonValue]:
    return {**tool_step("wipe", "erase", {"ids": [ITEM]}), "forEach": items, "maxItems": max(1, len(items)), **extra}


async def _open(found: Inbox, *steps: dict[str, JsonValue]) -> tuple[Suspension, Browser, Page]:
    asked = await found.ask(*steps)
    browser = await found.log_in()
    return asked, browser, await browser.open_question(asked)


def _find_input(page: Page, row: int, label: str) -> str:
    found = re.search(rf'<label for="(row{row}\.[^"]+)">{label}[ <]', page.text)
    assert found is not None, (row, label)
    return found[1]


@requirement("inbox:layout")
async def test_a_person_edits_one_row_of_a_table_sees_the_difference_and_approves_exactly_that() -> None:
    async with inbox() as found:
        asked, browser, page = await _open(found, _loop([7, 8, 9]))
        # One column an argument; the origins stand behind a toggle, and how the question works is no warning.
        assert page.text.count('<th scope="col">') == 2 and page.text.count('data-label="ids"') == 3
        assert page.text.count('<span class="origin">from the item</span>') == 1 and 'id="origins"' in page.text
        assert 'class="found"' in page.text and "found warns" not in page.text
        typed = {_find_input(page, 1, "ids"): "[80, 81]"}
        seen = await browser.submit(page.form("/decision"), press="approve", row=["1", "2"], **typed)
        assert seen.status == 200 and "2 of 3 rows run as follows" in seen.words and found.ledger.lines == []
        assert "This does not run: row 1." in seen.words and "You edited 1 row" in seen.words
        assert (await browser.submit(seen.form("/decision"), press="approve")).status == 303
        assert found.ledger.lines == ["erase [80, 81]", "erase [9]"]
        after = await browser.open_question(asked)
        assert "with edited arguments" in after.words and "edited by ann (a person, in the inbox)" in after.words
        assert "left out" in after.words and "row 2: ids" in after.words


async def test_a_value_that_does_not_fit_is_shown_at_its_row_and_nothing_is_decided() -> None:
    faults = {
        "[1,": "Row 2 needs another look",
        "": "this field is required",
        '"all"': "Row 2 does not fit erase",
        '["x"]': "Row 2 does not fit erase",
    }
    async with inbox() as found:
        asked, browser, page = await _open(found, _loop([7, 8, 9]))
        first, second = _find_input(page, 1, "ids"), _find_input(page, 2, "ids")
        for (typed, why), press in product(faults.items(), ("approve", "review", None)):
            fields: dict[str, str | list[str] | None] = {first: typed, second: "[90]", "row": ["1", "2"]}
            fields |= {} if press else {"page": "1"}
            bad = await browser.submit(page.form("/decision"), press=press, **fields)
            assert bad.status == 422 and why in bad.words and "nothing was decided" in bad.words
            again = bad.form("/decision").fields
            assert (again[first], again[second], again["row"]) == ([typed], ["[\n  90\n]"], ["1", "2"])
        assert found.ledger.lines == [] and (await found.current_execution(asked)).status == "suspended"
        left_out = await browser.submit(page.form("/decision"), press="approve", row=["0"], **{first: "[80]"})
        assert left_out.status == 303 and found.ledger.lines == ["erase [7]"]
        state = await found.warden.service.find(asked.execution_id)
        assert state.suspensions[asked.suspension_id].question.revision == 1, "a row that is left out is not edited"


async def test_what_was_chosen_on_other_pages_stays_and_unopened_pages_are_asked_about_once_more() -> None:
    ledger = Ledger()
    count = ROWS_PER_PAGE * 2 + 20
    async with inbox(ledger) as found:
        _, browser, first = await _open(found, _loop(list(range(count))))
        assert f"Rows 1 to {ROWS_PER_PAGE} are on this page" in first.words and "Page 1 of 3" in first.words
        ticked = [str(row) for row in range(ROWS_PER_PAGE) if row != 3]
        typed = {_find_input(first, 5, "ids"): "[500]"}
        last = await browser.submit(first.form("/decision"), page="3", row=ticked, **typed)
        assert last.status == 200 and "Page 3 of 3" in last.words and ledger.lines == []
        assert "So far 1 left out and 1 edited" in last.words and "1 page of rows was not opened" in last.words
        unticked = [str(row) for row in range(100, count) if row not in (110, 111)]
        back = await browser.submit(last.form("/decision"), page="1", row=unticked)
        assert back.form("/decision").fields["row"] == ticked
        assert back.form("/decision").fields[_find_input(back, 5, "ids")] == ["[\n  500\n]"]
        seen = await browser.submit(back.form("/decision"), press="approve")
        assert "50 of them are on pages that you have not opened: rows 51-100" in seen.words
        assert "These do not run: rows 4, 111-112." in seen.words and ledger.lines == []
        kept = await browser.submit(seen.form("/decision"), press="edit")
        assert "So far 3 left out and 1 edited" in kept.words
        assert (await browser.submit(seen.form("/decision"), press="approve")).status == 303
    expected = [f"erase [{500 if row == 5 else row}]" for row in range(count) if row not in (3, 110, 111)]
    assert ledger.lines == expected


async def test_all_rows_are_ticked_or_none_on_all_pages_at_once() -> None:
    async with inbox() as found:
        _, browser, page = await _open(found, _loop(list(range(60))))
        none = await browser.submit(page.form("/decision"), tick="none")
        refused = await browser.submit(none.form("/decision"), press="approve")
        assert refused.status == 422 and "Tick the rows to approve" in refused.words
        second = await browser.submit(none.form("/decision"), page="2", row=["4"])
        assert "row" not in second.form("/decision").fields and "59 left out" in second.words
        every = await browser.submit(second.form("/decision"), tick="all")
        assert len(every.form("/decision").fields["row"]) == 10 and "left out" not in every.words
        assert (await browser.submit(second.form("/decision"), press="approve", row=["59"])).status == 303
    assert found.ledger.lines == ["erase [4]", "erase [59]"]


HOSTILE: dict[str, tuple[str, ...]] = {
    "shown": ("2", "-1", "²", "9" * 5_000),
    "page": ("0", "1e3"),
    "tick": ("some",),
    "out": ("4", "0-99999"),
    "opened": ("2",),
    "row": ("3", "-1", "x"),
    "edited": ("[]", "{", '{"3": {"ids": [1]}}', '{"0": [1]}', "[" * 20_000),
}


async def test_a_form_that_no_page_sends_decides_nothing() -> None:
    async with inbox() as found:
        asked, browser, page = await _open(found, _loop([7, 8, 9]))
        for name, values in HOSTILE.items():
            for value in values:
                answer = await browser.submit(page.form("/decision"), press="approve", **{name: value})
                assert answer.status in (413, 422), (name, value[:20])
        assert found.ledger.lines == [] and (await found.current_execution(asked)).status == "suspended"


async def test_edits_that_the_summary_did_not_show_are_not_approved() -> None:
    async with inbox() as found:
        _, browser, page = await _open(found, _loop([7, 8]))
        typed = {_find_input(page, 1, "ids"): "[80]"}
        seen = await browser.submit(page.form("/decision"), press="approve", **typed)
        other = await browser.submit(seen.form("/decision"), press="approve", edited='{"1": {"ids": [666]}}')
        assert other.status == 200 and "666" in other.words and found.ledger.lines == []
        long = '{"1": {"ids": [%s1]}}' % ("1000000, " * 40_000)
        refused = await browser.submit(seen.form("/decision"), press="approve", edited=long)
        assert refused.status == 422 and "approve some of them first" in refused.words and found.ledger.lines == []


async def test_a_row_that_a_rule_refuses_shows_why_with_what_was_chosen_and_nothing_is_decided() -> None:
    rules = build_rule_book([{"tool": "erase", "when": {"ids/0": {"in": [80]}}, "then": "deny"}])
    async with inbox(settings=governed(rules=rules)) as found:
        _, browser, page = await _open(found, _loop([7, 8, 9]))
        typed = {_find_input(page, 1, "ids"): "[80]"}
        seen = await browser.submit(page.form("/decision"), press="approve", row=["1", "2"], **typed)
        refused = await browser.submit(seen.form("/decision"), press="approve")
        assert refused.status == 422 and "refused for erase at index 1" in refused.words and found.ledger.lines == []
        again = refused.form("/decision").fields
        assert again["row"] == ["1", "2"] and json.loads(again[_find_input(refused, 1, "ids")][0]) == [80]


async def test_rows_of_a_tool_with_many_arguments_are_edited_as_one_value_each() -> None:
    sent: list[JsonValue] = []

    async def handle(arguments: dict[str, JsonValue], context: CallContext) -> str:
        sent.append(arguments)
        return "done"

    schema: JsonValue = {"type": "object", "properties": {name: {} for name in "nabcdefghijklmopq"}}
    wide = ToolDefinition(name="wide", description="Take many.", input_schema=schema, risk="dangerous")
    step = tool_step("many", "wide", {"n": ITEM}, forEach=list[JsonValue](range(ROWS_PER_PAGE)))
    async with inbox(tools=[Tool(define(wide), handle)]) as found:
        _, browser, page = await _open(found, step)
        name = _find_input(page, 2, "All arguments")
        bad = await browser.submit(page.form("/decision"), press="approve", **{name: "[]"})
        assert bad.status == 422 and "not a JSON object" in bad.words
        typed = {name: '{"n": 2, "g": "x"}'}
        seen = await browser.submit(page.form("/decision"), press="approve", row=["2"], **typed)
        assert (await browser.submit(seen.form("/decision"), press="approve")).status == 303
    assert sent == [{"n": 2, "g": "x"}]


async def test_whatever_is_pressed_after_somebody_else_decided_shows_what_became_of_it_and_all_rows() -> None:
    async with inbox() as found:
        asked, ann, page = await _open(found, _loop(list(range(60))))
        bob = await found.log_in("bob")
        form = (await bob.open_question(asked)).form("/decision")
        await ann.submit(page.form("/decision"), press="reject")
        for name, value in (("page", "2"), ("tick", "none"), ("decision", "review"), ("decision", "approve")):
            answer = await bob.send(form.action, {**form.fields, name: [value]})
            assert answer.status == 409 and "rejected by ann" in answer.words, name
            [link] = set(re.findall(r'rel="next" href="([^"]+)"', answer.text))
            later = await bob.open(urljoin(form.action, link))
            assert later.status == 200 and "Rows 51 to 60 are on this page" in later.words


async def test_a_thousand_rows_are_twenty_pages_before_and_after_the_decision() -> None:
    async with inbox() as found:
        asked, browser, page = await _open(found, _loop(list(range(10_000))))
        assert "Page 1 of 20" in page.words and len(page.text) < 300_000
        listed = await browser.open("/inbox")
        assert "1000 calls, one a row" in listed.words and len(listed.text) < 20_000
        await browser.submit(page.form("/decision"), press="reject")
        decided = await browser.open(f"/inbox/suspensions/{asked.suspension_id}?rows=20")
        assert "Rows 951 to 1000 are on this page" in decided.words and "did not run" in decided.words
        assert (await browser.open(f"/inbox/suspensions/{asked.suspension_id}?rows=21")).status == 422
