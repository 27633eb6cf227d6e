"""The page of a question: what it shows in which order, what its form takes, and where the question comes from."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

import planwarden
from tests import kit
from tests.kit import plan
from tests.server.inbox.support import Browser, Inbox, open_inbox, visit

Json = dict[str, JsonValue]
LOOK = kit.tool_step("look", "find", {"topic": "old"})
LOOP = kit.tool_step("wipe", "erase", {"ids": [{"$from": "item"}]}, forEach=[7, 8, 9])


def _key(page_text: str, label: str, row: str = "") -> str:
    found = re.search(rf'<label for="({row}[^"]+)">{label}[ <]', page_text)
    assert found is not None, label
    return found[1]


@kit.requirement("inbox:facts-first")
async def test_a_question_shows_tool_source_arguments_origins_risk_and_then_what_the_agent_says() -> None:
    wipe = kit.tool_step("wipe", "erase", {"ids": {"$from": "look", "pointer": "/ids"}}, description="Remove them")
    async with visit() as (found, browser):
        words = (await browser.open_question(await found.ask(LOOK, wipe, goal="Tidy up"))).words
        wanted = (
            "Step 2 of 2 of",
            "Tidy up",
            "Run",
            "erase",
            "dangerous",
            "Python tool",
            "ids",
            "from the result of look at /ids",
            "The agent says (unverified)",
        )
        shown = words[words.index("Step 2 of 2 of") :]
        places = [shown.index(text) for text in wanted]
        assert places == sorted(places) and "Remove them" in shown[places[-1] :]


@kit.requirement("inbox:facts-first")
async def test_calls_that_a_confirmation_covers_show_where_their_arguments_come_from() -> None:
    bound = kit.tool_step("bound", "erase", {"ids": {"$from": "look", "pointer": "/ids"}})
    confirmation = kit.confirm("ask", confirms=["bound", "plain", "wipe"])
    async with visit() as (found, browser):
        asked = await found.ask(LOOK, confirmation, bound, kit.tool_step("plain", "erase", {"ids": [9]}), LOOP)
        words = (await browser.open_question(asked)).words
    origins = ("from the result of look at /ids", "from the plan", "from the item")
    assert [words.count(origin) for origin in origins] == [1, 2, 3]


@kit.requirement("inbox:edited-seen")
async def test_edited_arguments_run_only_after_their_difference_was_shown_however_they_are_sent() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        page = await browser.open_question(asked)
        for seen in ("", "0" * 64, asked.digest):
            answer = await browser.submit(page.form("/decision"), press="approve", edited='{"ids": [9]}', seen=seen)
            assert answer.status == 200 and "You changed 1 argument" in answer.words
        key = _key(page.text, "ids")
        difference = await browser.submit(page.form("/decision"), press="approve", **{key: "[2]"})
        assert "[1, 2]" in difference.words and found.ledger.lines == []
        again = await browser.submit(difference.form("/decision"), press="edit")
        assert again.form("/decision").fields[_key(again.text, "ids")] == ["[\n  2\n]"]
        for text in ("[1,", "", "[" * 3_000):
            answer = await browser.submit(page.form("/decision"), press="approve", **{key: text})
            assert answer.status == 422 and answer.form("/decision").fields[key] == [text], "what was typed stays"
        done = await browser.submit(difference.form("/decision"), press="approve")
        assert done.status == 303 and found.ledger.lines == ["erase [2]"]
        shown = (await browser.open(done.headers["location"])).words
        assert "with edited arguments" in shown
        assert "ann (a person, in the inbox) edited after it was asked: ids" in shown


EDITED = json.dumps(plan(kit.tool_step("note", "note", {"text": "instead"})))


@kit.requirement("inbox:edited-seen")
@pytest.mark.parametrize(
    ("steps", "options", "typed", "ran"),
    [
        ((kit.tool_step("a", "erase", {"ids": [1]}),), {}, {"ids": "[2]"}, ["erase [2]"]),
        ((LOOP,), {}, {"row1.ids": "[2]"}, ["erase [7]", "erase [2]", "erase [9]"]),
        ((LOOP,), {}, {"row1.ids": "[2]", "row": ["1", "2"]}, ["erase [2]", "erase [9]"]),
        ((LOOP,), {"review": "person"}, {"plan": EDITED}, ["note instead"]),
    ],
    ids=["call", "rows", "some rows", "plan"],
)
async def test_a_second_click_on_approve_with_changes_is_the_same_answer_and_another_edit_is_not(
    steps: tuple[Json, ...], options: Json, typed: dict[str, str | list[str]], ran: list[str]
) -> None:
    async with visit() as (found, browser):
        [asked] = (await found.warden.execute_plan(plan(*steps), options=options)).suspensions
        page = await browser.open_question(asked)
        names = {name: name if name in ("plan", "row") else _key(page.text, "ids", name[:-3]) for name in typed}
        typed = {names[name]: value for name, value in typed.items()}
        difference = await browser.submit(page.form("/decision"), press="approve", **typed)
        assert difference.status == 200 and found.ledger.lines == []
        clicks = [await browser.submit(difference.form("/decision"), press="approve") for _ in range(3)]
        assert [click.status for click in clicks] == [303] * 3
        assert {click.headers["location"] for click in clicks} == {f"/inbox/suspensions/{asked.suspension_id}"}
        sent = difference.form("/decision").fields["edited"][0]
        changed = sent.replace("2", "3").replace("instead", "again")
        other = await browser.submit(difference.form("/decision"), press="approve", edited=changed)
        assert other.status == 409 and found.ledger.lines == ran


@asynccontextmanager
async def visit_two_approvers() -> AsyncGenerator[tuple[Inbox, Browser, kit.Ledger]]:
    """An inbox in which two people have to approve each call of `wipe`, and its first visitor."""
    ledger, settings = kit.Ledger(), kit.governed(critical="second", quorum=2)
    wipe = kit.acting("wipe", ledger.lines, "critical")
    async with visit(ledger, tools=[wipe], settings=settings) as (found, ann):
        yield found, ann, ledger


@kit.requirement("approval:quorum")
async def test_two_approvers_who_ticked_different_rows_can_agree_on_the_page() -> None:
    async with visit_two_approvers() as (found, ann, ledger):
        asked = await found.ask(kit.tool_step("a", "wipe", {"n": {"$from": "item"}}, forEach=[7, 8, 9]))
        bob = await found.log_in("bob")
        for browser, rows in ((ann, ["0", "1"]), (bob, ["0", "2"]), (ann, ["0", "2"])):
            page = await browser.open_question(asked)
            assert '<button class="approve" type="submit" name="decision" value="approve">' in page.text
            assert ledger.lines == []
            assert (await browser.decide(asked.suspension_id, "approve", row=rows)).status == 303
    assert ledger.lines == ["wipe 7", "wipe 9"]


@kit.requirement("inbox:edited-seen", "approval:quorum")
@pytest.mark.parametrize(
    ("step", "typed", "ran"),
    [
        ({"n": 1}, {"n": "2"}, ["wipe 2"]),
        ({"n": kit.ITEM, "forEach": [7, 8, 9]}, {"row1.n": "2"}, ["wipe 7", "wipe 2", "wipe 9"]),
        ({"n": kit.ITEM, "forEach": [7, 8, 9]}, {"row1.n": "2", "row": ["1", "2"]}, ["wipe 2", "wipe 9"]),
    ],
    ids=["call", "rows", "some rows"],
)
async def test_a_second_click_of_the_first_of_two_approvers_is_the_same_answer_and_another_edit_is_not(
    step: Json, typed: dict[str, str | list[str]], ran: list[str]
) -> None:
    ledger = kit.Ledger()

    @planwarden.tool(risk="critical")
    async def wipe(n: int) -> str:
        """Wipe."""
        ledger.lines.append(f"wipe {n}")
        return "wiped"

    settings = kit.governed(critical="second", quorum=2)
    async with visit(ledger, tools=[wipe], settings=settings) as (found, ann):
        loop: Json = {name: step[name] for name in step if name == "forEach"}
        asked = await found.ask(kit.tool_step("a", "wipe", {"n": step["n"]}, **loop))
        page, bob = await ann.open_question(asked), await found.log_in("bob")
        old = (await bob.open_question(asked)).form("/decision")
        names = {name: name if name == "row" else _key(page.text, "n", name[:-1]) for name in typed}
        shown = await ann.submit(
            page.form("/decision"), press="approve", **{names[name]: value for name, value in typed.items()}
        )
        form = shown.form("/decision")
        clicks = [await ann.submit(form, press="approve") for _ in range(2)]
        edited = form.fields["edited"][0].replace("2", "3")
        other = await ann.submit(form, press="approve", edited=edited)
        assert [click.status for click in (*clicks, other)] == [303, 303, 409] and "was revised" in other.words
        assert (await bob.submit(form, press="approve", csrf=old.fields["csrf"][0])).status == 409
        late = await bob.submit(old, press="approve", **{name: "x" for name in names.values() if name != "row"})
        assert late.status == 409 and "was revised" in late.words and ledger.lines == []
        rows = {"row": typed["row"]} if "row" in typed else {}
        assert (await bob.decide(asked.suspension_id, "approve", **rows)).status == 303
    assert ledger.lines == ran


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


@kit.requirement("forms:whole", "inbox:layout")
async def test_a_form_is_shown_whole_before_the_call_that_asks_and_filled_in_on_the_page() -> None:
    async with visit() as (found, browser):
        asked = await found.ask(kit.tool_step("s", "requestInput", {"message": f"Which? {LONG}", "form": FORM}))
        page = await browser.open_question(asked)
        keys = {name: _key(page.text, name) for name in ("count", "size", "sure", "note", "extra")}
        assert f"How <b>many</b> {LONG}" in page.words and f"Which? {LONG}" in page.words and "<b>many" not in page.text
        assert page.text.index("Your answer") < page.text.index("The call that asks")
        assert "the form, as this page shows it" in page.words
        missing = await browser.submit(page.form("/decision"), press="approve", **{keys["count"]: "2"})
        assert missing.status == 422 and "this field is required" in missing.words
        given = {keys["count"]: "2", keys["size"]: '"large"', keys["extra"]: '{"a": 1}'}
        assert (await browser.submit(page.form("/decision"), press="approve", **given)).status == 303
        result = (await found.current_execution(asked)).steps[0].result
        content = {"count": 2, "size": "large", "note": "none", "extra": {"a": 1}}
        assert result == {"approved": True, "content": content}


@kit.requirement("forms:whole")
async def test_a_form_whose_fields_nobody_knows_is_answered_as_json() -> None:
    free: JsonValue = {"type": "object", "additionalProperties": True, "title": "T"}
    async with visit() as (found, browser):
        asked = await found.ask(kit.tool_step("s", "requestInput", {"message": "Which?", "form": free}))
        assert (await browser.decide(asked.suspension_id, "approve", content="")).status == 422
        wrong = await browser.decide(asked.suspension_id, "approve", content="[1]")
        assert wrong.status == 422
        assert (await browser.decide(asked.suspension_id, "approve", content='{"a": [1]}')).status == 303
        result = (await found.current_execution(asked)).steps[0].result
        assert result == {"approved": True, "content": {"a": [1]}}


async def test_values_with_titles_of_their_own_are_chosen_from_a_list_that_shows_both() -> None:
    options: JsonValue = [{"const": "eu", "title": "Europe <b>"}, {"const": "us"}]
    form: JsonValue = {"type": "object", "properties": {"place": {"type": "string", "oneOf": options}}}
    async with visit() as (found, browser):
        asked = await found.ask(kit.tool_step("s", "requestInput", {"message": "Where?", "form": form}))
        page = await browser.open_question(asked)
        assert '<option value="eu">eu (Europe &lt;b&gt;)</option>' in page.text
        assert '<option value="us">us</option>' in page.text
        sent = await browser.submit(page.form("/decision"), press="approve", **{_key(page.text, "place"): "eu"})
        result = (await found.current_execution(asked)).steps[0].result
        assert sent.status == 303 and result == {"approved": True, "content": {"place": "eu"}}


@kit.requirement("display:invisible")
@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Log in at \u0430pple.com with p\u0430ypal", "can look alike: \u0430pple, p\u0430ypal."),
        ("Ask \u039fbama", "can look alike: \u039fbama."),
        ("Send отчёт.pdf to Łódź, 5 κιλά, Größe", ""),
        ("5 \u03bcg/L at 3 k\u03a9, \u0394x of TNF\u03b1, 製のLAN, SMS-код", ""),
    ],
)
async def test_words_that_mix_alphabets_are_named_above_the_facts(message: str, said: str) -> None:
    async with visit() as (found, browser):
        asked = await found.ask(kit.tool_step("s", "requestInput", {"message": message, "form": FORM}))
        page = await browser.open_question(asked)
        assert said in page.words and ("several alphabets" in page.words) == bool(said)


@planwarden.tool(risk="read", effect="effect")
async def lost() -> str:
    """Never hears of it again."""
    raise planwarden.OutcomeUnknown("the line went dead")


async def test_a_typed_reason_stays_on_the_page_and_is_kept_with_every_kind_of_answer() -> None:
    form = kit.tool_step("s", "requestInput", {"message": "Which?", "form": FORM})
    async with visit(tools=[lost]) as (found, browser):
        called = await found.ask(kit.tool_step("s", "lost"))
        wrong = await browser.decide(called.suspension_id, "approve", happened="yes", result="{", reason="as\r\nagreed")
        assert wrong.form("/decision").fields["happened"] == ["yes"]
        answers = [await browser.submit(wrong.form("/decision"), press="approve", result="3")]
        asked = await browser.open_question(await found.ask(form))
        wrong = await browser.submit(asked.form("/decision"), press="approve", reason="as\r\nagreed")
        values = {_key(asked.text, "count"): "2", _key(asked.text, "size"): '"large"'}
        answers.append(await browser.submit(wrong.form("/decision"), press="approve", **values))
        changed = await browser.decide((await found.ask()).suspension_id, "review", reason="as\r\nagreed")
        answers.append(await browser.submit(changed.form("/decision"), press="approve"))
        for answer in answers:
            assert answer.status == 303, answer.words
            assert r"as\nagreed" in (await browser.open(answer.headers["location"])).words


async def test_an_answer_that_is_none_of_the_buttons_decides_nothing() -> None:
    async with visit() as (found, browser):
        form = (await browser.open_question(await found.ask())).form("/decision")
        for changes in ({"decision": "Approve"}, {"decision": ["approve", "approve"]}, {"digest": ""}, {}):
            answer = await browser.submit(form, **changes)  # pyright: ignore[reportArgumentType]
            assert answer.status == 422, changes
        long = await browser.submit(form, press="reject", reason="x" * 2_001)
        assert long.status == 413 and found.ledger.lines == []


@kit.requirement("inbox:together")
async def test_several_are_decided_from_a_table_that_shows_every_call_each_by_itself() -> None:
    async with visit() as (found, browser):
        nothing = await browser.open("/inbox/review")
        assert nothing.status == 422 and "nothing is selected: tick the questions" in nothing.words
        asked = [await found.ask(kit.tool_step("s", "erase", {"ids": [n]})) for n in range(4)]
        form = await found.ask(kit.tool_step("s", "requestInput", {"message": "?", "form": FORM}))
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
        rejected = await browser.open(f"/inbox/review?id={asked[1].suspension_id}")
        assert "1 of the selected questions is no longer open" in rejected.words
        too_many = await browser.open("/inbox/review?" + "&".join(f"id={n}" for n in range(51)))
        assert too_many.status == 422 and "at most 50 questions together, and chose 51" in too_many.words
        for count in (0, 51):
            many = await browser.submit(table.form("/decision"), press="approve", decide=["x"] * count or None)
            assert many.status == 422


@kit.requirement("inbox:any-process")
async def test_where_a_tool_is_missing_the_decision_is_recorded_and_the_process_that_has_it_goes_on() -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock()
    store = kit.MemoryStore(clock)
    async with kit.warden(ledger, store=store) as asking:
        asked = (await asking.execute_plan(plan(kit.tool_step("s", "erase", {"ids": [1]})))).suspensions[0]
        async with kit.warden(store=store) as elsewhere:
            browser = await open_inbox(elsewhere).log_in()
            page = await browser.open_question(asked)
            assert "does not have erase" in page.words and "no longer registered" in page.words
            assert (await browser.decide(asked.suspension_id, "approve")).status == 303
        clock.advance(60)
        with anyio.fail_after(60):
            await asking.service.tick()
            while (await asking.get_execution(asked.thread_id)).status != "completed":
                await anyio.lowlevel.checkpoint()
    assert ledger.lines == ["erase [1]"]


@kit.requirement("plan:review")
async def test_the_page_of_a_review_shows_the_plan_and_keeps_a_wrong_edit_and_shows_a_right_one() -> None:
    steps = (
        kit.tool_step("find", "find", {"topic": "<b>x</b>"}),
        kit.tool_step("known", "erase", {"ids": [7]}),
        kit.tool_step("bound", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}),
    )
    faults = {"{": "The plan is", "[]": "not a JSON object", '{"todoList": [{"id": "a"}]}': "description"}
    async with visit() as (found, browser):
        execution = await found.warden.execute_plan(plan(*steps), goal="tidy up", options={"review": "person"})
        [asked] = execution.suspensions
        page = await browser.open_question(asked)
        for said in (
            "Start this plan?",
            'Plan of 3 steps of "tidy up"',
            'Calls of "erase" are dangerous.',
            'Only the run will know the arguments of "bound"',
            "Step 2 of 3: known",
            "The same decision can cover, if you say so below, in step known",
            "Also approve the 1 call that this answer can cover",
            "The agent says (unverified) tidy up",
        ):
            assert said in page.said
        assert "<b>x</b>" not in page.text
        assert json.loads(page.form("/decision").fields["plan"][0])["todoList"][1]["id"] == "known"
        for text, says in faults.items():
            page = await browser.decide(asked.suspension_id, "approve", plan=text)
            if page.status == 200:
                page = await browser.submit(page.form("/decision"), press="approve")
            assert page.status == 422 and says in page.words
            assert page.form("/decision").fields["plan"][0].replace(" ", "") == text.replace(" ", "")
        edited = json.dumps(plan(kit.tool_step("note", "note", {"text": "instead"})))
        shown = await browser.decide(asked.suspension_id, "approve", plan=edited, cover="yes")
        assert shown.status == 200 and "You changed the plan" in shown.words
        assert "step known" in shown.words and "instead" in shown.words and "the order of the steps" in shown.words
        back = await browser.submit(shown.form("/decision"), press="edit")
        assert "instead" in back.form("/decision").fields["plan"][0]
        assert (await found.current_execution(asked)).status == "suspended" and found.ledger.lines == []


TIDY = """
title: Tidy up
todoList:
  - {id: a, description: a, toolCalls: [{toolName: note, arguments: {text: a}}]}
  - {id: mend, description: mend, dependencies: [a], toolCalls: [{toolName: mend}]}
  - {id: wipe, description: wipe, dependencies: [mend], toolCalls: [{toolName: erase, arguments: {ids: [1]}}]}
"""


@kit.requirement("inbox:lineage")
async def test_pages_name_the_saved_plan_and_version_and_a_retry_and_its_start_are_linked(tmp_path: Path) -> None:
    mended: list[bool] = []

    @planwarden.tool(name="mend", risk="read", effect="effect")
    async def mend() -> str:
        """Works once it is mended."""
        if not mended:
            raise planwarden.ToolError("it is broken")
        return "mended"

    kit.save_plan(tmp_path, "tidy", TIDY)
    async with visit(tools=[mend], settings=kit.Settings(home=tmp_path)) as (found, browser):
        first = await found.warden.run_plan("tidy")
        assert first.saved_plan is not None
        named = f"tidy, version {first.saved_plan.version[:12]}"
        mended.append(True)
        second = await found.warden.retry(first.thread_id)
        page = await browser.open_question(second.suspensions[0])
        assert 'Step 3 of 3 of "Tidy up"' in page.words and named in page.words
        assert f"execution {first.execution_id}; took over from there: a" in page.words
        assert f'href="/inbox/executions/{first.execution_id}"' in page.text
        earlier = await browser.open(f"/inbox/executions/{first.execution_id}")
        assert "later" in earlier.words.partition("Other runs of this thread")[2]
        assert f'href="/inbox/executions/{second.execution_id}"' in earlier.text
        await browser.submit(page.form("/decision"), press="approve")
        assert f"Saved plan: {named}" in (await browser.open("/inbox/history")).words
        rehearsed = await found.warden.execute_plan(plan(LOOP), options={"rehearse": True})
        shown = await browser.open(f"/inbox/executions/{rehearsed.execution_id}")
        assert "Rehearsal" in shown.words and "nothing is done" in shown.words


async def test_a_question_of_a_cancelled_plan_was_withdrawn_and_its_step_waits_for_nothing() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        form = (await browser.open_question(asked)).form("/decision")
        await found.warden.cancel_execution(asked.thread_id)
        words = (await browser.open_question(asked)).said
        assert "Withdrawn. The plan was cancelled." in words and "waits" not in words
        late = await browser.submit(form, press="review")
        assert late.status == 409 and "This question is no longer open." in late.words and "decided" not in late.words


async def test_a_goal_that_is_too_long_for_the_place_of_a_question_is_visibly_cut() -> None:
    async with visit() as (found, browser):
        words = (await browser.open_question(await found.ask(goal="Tidy " * 100))).said
        assert "Tidy Tidy... [502 bytes, sha256 " in words
