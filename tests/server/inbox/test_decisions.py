"""Deciding on a page: what was shown runs, once, with the edits that were seen, and whoever was first has decided."""

import json
import re
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.site import InboxSite
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import Ledger, ManualClock, MemoryStore, Settings, plan, requirement, tool_step, warden
from tests.server.inbox.support import HOST, Inbox, inbox, visit

pytestmark = pytest.mark.anyio

HOME = Path("/nonexistent")


def _key(page_text: str, label: str) -> str:
    """The name of the input with that label."""
    found = re.search(rf'<label for="([^"]+)">{label}[ <]', page_text)
    assert found is not None, label
    return found[1]


@requirement("inbox:edited-seen")
async def test_edited_arguments_run_only_after_their_difference_was_shown_however_they_are_sent() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        page = await browser.open_question(asked)
        for seen in ("", "0" * 64, asked.digest):
            answer = await browser.submit(page.form("/decision"), press="approve", edited='{"ids": [9]}', seen=seen)
            assert answer.status == 200 and "You changed 1 argument" in answer.words
        edited = {_key(page.text, "ids"): "[2]"}
        difference = await browser.submit(page.form("/decision"), press="approve", **edited)
        assert "[1, 2]" in difference.words and found.ledger.lines == []
        again = await browser.submit(difference.form("/decision"), press="edit")
        assert again.form("/decision").fields[_key(again.text, "ids")] == ["[\n  2\n]"]
        done = await browser.submit(difference.form("/decision"), press="approve")
        assert done.status == 303 and found.ledger.lines == ["erase [2]"]
        shown = (await browser.open(done.headers["location"])).words
        assert "with edited arguments" in shown
        assert "ann (a person, in the inbox) edited after it was asked: ids" in shown


@requirement("inbox:edited-seen")
async def test_arguments_that_do_not_fit_decide_nothing_and_come_back_for_another_look() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        page = await browser.open_question(asked)
        key = _key(page.text, "ids")
        for text in ("[1,", '["x"]', "", "{}", '{"a": 1, "a": 2}', "NaN", "[" * 3_000):
            answer = await browser.submit(page.form("/decision"), press="approve", **{key: text})
            assert answer.status == 422, text
            assert answer.form("/decision").fields[key] == [text]
        assert (await found.current_execution(asked)).status == "suspended" and found.ledger.lines == []


def _letters(ledger: Ledger) -> list[object]:
    @planwarden.tool
    async def send(
        to: str,
        body: str,
        copies: int = 1,
        urgent: bool = False,
        tags: list[str] | None = None,
        note: str | None = None,
    ) -> str:
        """Send a letter."""
        ledger.lines.append(json.dumps([to, body, copies, urgent, tags, note]))
        return "sent"

    return [send]


LETTER: dict[str, JsonValue] = {"to": "a@b.org", "body": "Dear all,\n\u202ebye\n", "note": "first\nsecond"}


async def test_each_kind_of_argument_is_edited_in_its_own_input() -> None:
    ledger = Ledger()
    async with visit(ledger, tools=_letters(ledger)) as (found, browser):
        asked = await found.ask(tool_step("s", "send", LETTER))
        page = await browser.open_question(asked)
        as_sent = {name: [value[0].replace("\n", "\r\n")] for name, value in page.form("/decision").fields.items()}
        answer = await browser.send(page.form("/decision").action, {**as_sent, "decision": ["approve"]})
        assert answer.status == 303, "a form that is sent back untouched changes no character"
        assert ledger.lines == [json.dumps([LETTER["to"], LETTER["body"], 1, False, None, LETTER["note"]])]
        page = await browser.open_question(await found.ask(tool_step("s", "send", LETTER)))
        keys = {name: _key(page.text, name) for name in ("to", "body", "copies", "urgent", "tags", "note")}
        fields = page.form("/decision").fields
        assert fields[keys["body"]] == ['"Dear all,\\n\\u202ebye\\n"'], "hidden characters are edited as escapes"
        assert fields[keys["urgent"]] == ["false"] and fields[keys["copies"]] == ["1"]
        changes: dict[str, str | list[str] | None] = {
            keys["to"]: "c@d.org",
            keys["body"]: '"Dear all"',
            keys["copies"]: "3",
            keys["urgent"]: "true",
            keys["tags"]: '["x"]',
        }
        difference = await browser.submit(page.form("/decision"), press="review", **changes)
        assert "You changed 5 arguments" in difference.words
        await browser.submit(difference.form("/decision"), press="approve")
        assert ledger.lines[1:] == [json.dumps(["c@d.org", "Dear all", 3, True, ["x"], "first\nsecond"])]


LONG = "w" * 1_500 + "END"
FORM: dict[str, JsonValue] = {
    "type": "object",
    "required": ["count", "size"],
    "properties": {
        "count": {"type": "integer", "minimum": 1, "description": f"How <b>many</b> {LONG}"},
        "size": {"type": "string", "enum": ["small", "large"]},
        "sure": {"type": "boolean"},
        "note": {"type": "string", "default": "none"},
        "extra": {"type": "object"},
    },
}


@requirement("forms:whole")
async def test_a_form_is_shown_whole_and_filled_in_on_the_page() -> None:
    async with visit() as (found, browser):
        asked = await found.ask(tool_step("s", "requestInput", {"message": f"Which? {LONG}", "form": FORM}))
        page = await browser.open_question(asked)
        keys = {name: _key(page.text, name) for name in ("count", "size", "sure", "note", "extra")}
        assert f"How <b>many</b> {LONG}" in page.words and f"Which? {LONG}" in page.words and "<b>many" not in page.text
        missing = await browser.submit(page.form("/decision"), press="approve", **{keys["count"]: "2"})
        assert missing.status == 422 and "this field is required" in missing.words
        wrong = await browser.submit(
            page.form("/decision"), press="approve", **{keys["count"]: "0", keys["size"]: '"small"'}
        )
        assert wrong.status == 422 and "minimum" in wrong.words
        given = {keys["count"]: "2", keys["size"]: '"large"', keys["extra"]: '{"a": 1}'}
        assert (await browser.submit(page.form("/decision"), press="approve", **given)).status == 303
        result = (await found.current_execution(asked)).steps[0].result
        content = {"count": 2, "size": "large", "note": "none", "extra": {"a": 1}}
        assert result == {"approved": True, "content": content}


@planwarden.tool(risk="read", effect="effect")
async def lost() -> str:
    """Never hears of it again."""
    raise planwarden.OutcomeUnknown("the line went dead")


FREE: tuple[JsonValue, ...] = ({"type": "object"}, {"type": "object", "additionalProperties": True, "title": "T"})
"""Forms whose fields nobody knows."""


@pytest.mark.parametrize(
    ("step", "wrong", "right", "result"),
    [
        (
            tool_step("s", "lost"),
            [{}, {"happened": "yes", "result": "{"}],
            {"happened": "yes", "result": '{"id": 7}'},
            {"id": 7},
        ),
        *(
            (
                tool_step("s", "requestInput", {"message": "Which?", "form": form}),
                [{"content": ""}],
                {"content": '{"a": [1]}'},
                {"approved": True, "content": {"a": [1]}},
            )
            for form in FREE
        ),
    ],
)
async def test_what_is_missing_or_broken_in_an_answer_decides_nothing(
    step: dict[str, JsonValue], wrong: list[dict[str, str]], right: dict[str, str], result: JsonValue
) -> None:
    async with visit(tools=[lost]) as (found, browser):
        asked = await found.ask(step)
        for fields in wrong:
            assert (await browser.decide(asked.suspension_id, "approve", **fields)).status == 422
        assert (await browser.decide(asked.suspension_id, "approve", **right)).status == 303
        assert (await found.current_execution(asked)).steps[0].result == result


@requirement("inbox:together")
async def test_several_are_decided_from_a_table_that_shows_every_call_each_by_itself() -> None:
    async with visit() as (found, browser):
        nothing = await browser.open("/inbox/review")
        assert nothing.status == 422 and "nothing is selected: tick the questions" in nothing.words
        asked = [await found.ask(tool_step("s", "erase", {"ids": [n]})) for n in range(4)]
        form = await found.ask(tool_step("s", "requestInput", {"message": "?", "form": FORM}))
        ids = [*(a.suspension_id for a in asked), form.suspension_id, "0" * 32]
        table = await browser.open("/inbox/review?" + "&".join(f"id={i}" for i in ids))
        assert "4 calls to decide together" in table.words and "Answer these on their own pages" in table.words
        assert "1 of the selected questions is no longer open" in table.words
        boxes = table.form("/decision").fields["decide"]
        assert boxes == [f"{question.suspension_id}:{question.digest}" for question in asked]
        await browser.decide(asked[1].suspension_id, "reject")
        stale = [f"{asked[2].suspension_id}:{'0' * 64}", f"{form.suspension_id}:{form.digest}"]
        chosen = [*boxes[:2], *stale, "nonsense", boxes[0], boxes[3]]
        done = await browser.submit(table.form("/decision"), press="approve", decide=chosen)
        assert "2 of 6 approved" in done.words and found.ledger.lines == ["erase [0]", "erase [3]"]
        assert (await found.current_execution(asked[2])).status == "suspended"
        for count in (0, 51):
            many = await browser.submit(table.form("/decision"), press="approve", decide=["x"] * count or None)
            assert many.status == 422


@requirement("inbox:any-process")
async def test_a_decision_counts_in_whichever_process_it_is_made(tmp_path: Path) -> None:
    ledger = Ledger()
    path = tmp_path / "planwarden.db"
    one, other = SqliteStore.open(path), SqliteStore.open(path)
    async with warden(ledger, store=one) as asking, inbox(ledger, store=other) as found:
        execution = await asking.execute_plan(plan(tool_step("s", "erase", {"ids": [1]})))
        browser = await found.log_in()
        page = await browser.open("/inbox")
        assert execution.suspensions[0].suspension_id in page.text
        assert (await browser.decide(execution.suspensions[0].suspension_id, "approve")).status == 303
        with anyio.fail_after(60):
            while (await asking.get_execution(execution.thread_id)).status != "completed":
                await anyio.lowlevel.checkpoint()
    assert ledger.lines == ["erase [1]"]
    await one.close()
    await other.close()


@requirement("inbox:any-process")
async def test_where_a_tool_is_missing_the_decision_is_recorded_and_the_process_that_has_it_goes_on() -> None:
    ledger, clock = Ledger(), ManualClock()
    store = MemoryStore(clock)
    async with warden(ledger, store=store) as asking:
        asked = (await asking.execute_plan(plan(tool_step("s", "erase", {"ids": [1]})))).suspensions[0]
        async with warden(store=store) as elsewhere:
            site = InboxSite(service=lambda: elsewhere.service, settings=Settings(home=HOME))
            found = Inbox(elsewhere, site, build_inbox_app(site, lambda: {HOST}))
            browser = await found.log_in()
            page = await browser.open_question(asked)
            assert "does not have erase" in page.words and "no longer registered" in page.words
            assert (await browser.decide(asked.suspension_id, "approve")).status == 303
            assert ledger.lines == []
        clock.advance(60)
        with anyio.fail_after(60):
            await asking.service.engine.tick()
            while (await asking.get_execution(asked.thread_id)).status != "completed":
                await anyio.lowlevel.checkpoint()
    assert ledger.lines == ["erase [1]"]


async def test_an_answer_that_is_none_of_the_buttons_decides_nothing() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        form = (await browser.open_question(asked)).form("/decision")
        for changes in ({"decision": "Approve"}, {"decision": ["approve", "approve"]}, {"digest": ""}, {}):
            answer = await browser.submit(form, **changes)  # pyright: ignore[reportArgumentType]
            assert answer.status == 422, changes
        long = await browser.submit(form, press="reject", reason="x" * 2_001)
        assert long.status == 413 and found.ledger.lines == []
