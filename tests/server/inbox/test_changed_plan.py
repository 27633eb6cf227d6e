"""A person goes on from a finished run with a changed plan, and sees before it starts what that does."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.inbox.pages import changed_plan
from planwarden.server.settings.configuration import Settings
from tests.requirements import requirement
from tests.server.inbox.support import Browser, Page, visit, visit_run
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = pytest.mark.anyio

FIND = tool_step("find", "find", {"topic": "owls"})
NOTE = tool_step("note", "note", {"text": "kept"})
ERASE = tool_step("erase", "erase", {"ids": [1]}, dependencies=["find"])
NASTY = "</textarea><script>alert(1)</script>\u202e<b>"


async def _form(browser: Browser, run: planwarden.Execution) -> Page:
    page = await browser.open(f"/inbox/executions/{run.execution_id}/plan")
    assert page.status == 200, page.words
    return page


async def _check(browser: Browser, run: planwarden.Execution, document: JsonValue, **changes: str) -> Page:
    """What the page says of the changed plan."""
    form = (await _form(browser, run)).form("/plan/run")
    text = document if isinstance(document, str) else json.dumps(document)
    return await browser.submit(form, press="check", plan=text, **changes)


async def _start(browser: Browser, shown: Page) -> str:
    """The id of the run that starts."""
    assert shown.status in (200, 409), shown.words
    return (await browser.submit(shown.form("/plan/run"), press="run")).run_id


@requirement("console:changed-plan", "inbox:no-script")
async def test_a_changed_plan_is_compared_step_by_step_and_then_started_once_by_whom_it_was() -> None:
    async with visit_run(FIND, NOTE, ERASE) as (found, browser, run):
        assert "Fork with a changed plan" in (await browser.open(f"/inbox/executions/{run.execution_id}")).words
        text = (await _form(browser, run)).form("/plan/run").fields["plan"][0]
        changed = json.loads(text)
        assert [step["id"] for step in changed["todoList"]] == ["find", "note", "erase"]
        changed["todoList"][2]["toolCalls"][0]["arguments"] = {"ids": [8]}
        changed["todoList"].append(tool_step("last", "note", {"text": "after"}))
        shown = await _check(browser, run, changed)
        said = shown.said
        assert "2 steps are done and not repeated, 1 has still to run, 1 is new." in said
        assert "find done, not repeated" in said and "erase was rejected, asks again" in said and "last new" in said
        assert "argument ids [1] [8]" in said
        assert (await found.warden.get_execution(run.thread_id)).execution_id == run.execution_id
        started = await _start(browser, shown)
        assert started == await _start(browser, shown) != run.execution_id
        state = await found.warden.service.engine.find(started)
        assert state.starter is not None and (state.starter.principal, state.starter.channel) == ("ann", "inbox")
        source = await found.warden.service.engine.find(run.execution_id)
        assert state.retry_of == run.execution_id and state.principal == source.principal
        asked = (await found.warden.get_execution(run.thread_id)).suspensions[0]
        await browser.decide(asked.suspension_id, "approve")
        assert found.ledger.lines == ["note kept", "erase [8]", "note after"]


@requirement("console:changed-plan")
async def test_what_runs_again_or_is_removed_names_the_effects_that_are_not_undone() -> None:
    async with visit_run(FIND, NOTE, ERASE, approved=True) as (found, browser, run):
        other = plan(FIND, tool_step("erase", "erase", {"ids": [9]}, dependencies=["find"]))
        shown = await _check(browser, run, other, **{"from": "erase"})
        said = shown.said
        assert "1 step is done and not repeated, 1 runs again, 1 is removed." in said
        assert "erase was done; that is not undone and this step may do it again." in said
        assert "note was done; that is not undone." in said and "find was done" not in said
        started = await _start(browser, shown)
        [question] = (await found.warden.get_execution(run.thread_id)).suspensions
        assert question.execution_id == started and any("already ran in execution" in text for text in question.found)
        await browser.decide(question.suspension_id, "reject")
        # What only an earlier run did is not forgotten by the next one.
        again = await browser.open(f"/inbox/executions/{started}/plan")
        shown = await browser.submit(again.form("/plan/run"), press="check")
        assert f"It also ran in execution {run.execution_id}; what it did there is not undone." in shown.said
    assert found.ledger.lines == ["note kept", "erase [1]"]


@requirement("console:changed-plan")
async def test_a_run_that_is_done_goes_on_with_new_steps_alone() -> None:
    async with visit_run(FIND, ERASE, approved=True) as (found, browser, run):
        same = await _check(browser, run, plan(FIND, ERASE))
        assert same.status == 422 and "Every step of this plan is done; choose the step" in same.words
        between = tool_step("between", "note", {"text": "x"})
        inserted = await _check(browser, run, plan(FIND, between, {**ERASE, "dependencies": ["between"]}))
        assert (
            inserted.status == 422 and "These steps are done, and come after a new one: erase; choose" in inserted.words
        )
        # The new step can be chosen then.
        assert ">again from step between on<" in inserted.text
        started = await _start(browser, await _check(browser, run, plan(FIND, ERASE, between)))
        state = await found.warden.service.engine.wait(await found.warden.service.engine.find(started), 60)
        assert state.status == "completed" and found.ledger.lines == ["erase [1]", "note x"]


@requirement("console:changed-plan")
async def test_every_fault_is_named_at_once_and_the_text_stays() -> None:
    schema: JsonValue = {"type": "object", "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}}}
    own = tool_step("note", "note", {"text": {"$from": "inputs", "pointer": "/text"}})
    async with visit_run(FIND, own, ERASE, schema=schema, inputs={"text": "old"}) as (found, browser, run):
        both = await _check(browser, run, "{ no plan", inputs="[1]")
        assert both.status == 422 and "The text of the plan is not valid JSON" in both.words
        assert (
            "The text of the inputs is no JSON object" in both.words and "These have to be mended first" in both.words
        )
        fields = both.form("/plan/run").fields
        assert (fields["plan"], fields["inputs"]) == (["{ no plan"], ["[1]"])
        wrong = {**plan(tool_step("a", "nothing"), tool_step("b", "note", {"txt": 1})), "inputs": schema}
        found_wrong = await _check(browser, run, wrong)
        assert found_wrong.status == 422 and "'nothing'" in found_wrong.words and "txt" in found_wrong.words
        moved = {**plan(tool_step("find", "find", {"topic": "mice"}), own, ERASE), "inputs": schema}
        given = '{"limit": "many", "text": 7}'
        stands = await _check(browser, run, moved, inputs=given)
        assert stands.status == 422 and "Step find is done, and is another one in this plan." in stands.words
        assert '/limit: "many" is not of type "integer"' in stands.words and "/text: 7" in stands.words
        assert stands.form("/plan/run").fields["inputs"] == [given]
        taken = await _check(browser, run, {**plan(FIND, own, ERASE), "inputs": schema}, inputs='{"text": "new"}')
        assert taken.status == 422 and "Step note is done, and takes inputs that are different now." in taken.words
        lost = await _check(browser, run, {**plan(FIND, own), "inputs": schema}, **{"from": "erase"})
        assert lost.status == 422 and "The plan has no step 'erase'; it has" in lost.words
        assert (await found.warden.get_execution(run.thread_id)).execution_id == run.execution_id


@requirement("console:changed-plan")
async def test_a_plan_that_takes_other_inputs_is_given_them_on_the_page() -> None:
    async with visit_run(FIND, ERASE) as (found, browser, run):
        taking = tool_step("erase", "erase", {"ids": {"$from": "inputs", "pointer": "/ids"}}, dependencies=["find"])
        other: dict[str, JsonValue] = {**plan(FIND, taking), "inputs": {"required": ["ids"], "properties": {"ids": {}}}}
        form = (await _form(browser, run)).form("/plan/run")
        assert "inputs" not in form.fields
        asked = await browser.submit(form, press="check", plan=json.dumps(other))
        assert asked.status == 422 and '"ids" is a required property' in asked.words
        shown = await browser.submit(asked.form("/plan/run"), press="check", inputs='{"ids": [5]}')
        assert "[5]" in shown.words and "What else the plan says" in shown.words
        state = await found.warden.service.engine.find(await _start(browser, shown))
        assert state.inputs == {"ids": [5]}


@requirement("console:changed-plan")
async def test_nothing_starts_that_was_not_shown() -> None:
    async with visit_run(FIND, ERASE) as (found, browser, run):
        form = (await _form(browser, run)).form("/plan/run")
        shown = await _check(browser, run, plan(FIND, tool_step("erase", "erase", {"ids": [8]})))
        ready = shown.form("/plan/run")
        for changes in (
            {"plan": json.dumps(plan(FIND, tool_step("erase", "erase", {"ids": [9]})))},
            {"from": "find"},
            {"seen": "0" * 64},
        ):
            answer = await browser.submit(ready, press="run", **changes)
            assert answer.status == 409 and "This is not what you saw before" in answer.words
            assert "Nothing was started" in answer.words
        unseen = await browser.submit(form, decision="run", key="k" * 16)
        assert unseen.status == 409 and (await browser.submit(ready, press="run", key="x")).status == 422
        assert (await browser.submit(ready, decision="start")).status == 422
        kept = await browser.submit(ready, press="edit")
        assert kept.status == 200 and kept.form("/plan/run").fields["plan"] == ready.fields["plan"]
        assert (await found.warden.get_execution(run.thread_id)).execution_id == run.execution_id


@requirement("console:changed-plan")
async def test_a_run_that_was_continued_meanwhile_keeps_the_text_and_leads_to_the_later_one() -> None:
    async with visit_run(FIND, ERASE) as (found, browser, run):
        changed = json.dumps(plan(FIND, tool_step("erase", "erase", {"ids": [8]})))
        shown = await _check(browser, run, changed)
        later = await found.warden.retry(run.thread_id)
        for page in (
            await browser.submit(shown.form("/plan/run"), press="run"),
            await browser.send(
                shown.form("/plan/run").action, {**shown.form("/plan/run").fields, "decision": ["check"]}
            ),
        ):
            assert page.status == 409 and "A later run of this thread has gone on meanwhile" in page.words
            assert f"/executions/{later.execution_id}" in page.text
            assert page.form("/plan/run").fields["plan"] == [changed]
        offered = await browser.open(f"/inbox/executions/{run.execution_id}")
        assert "Fork with a changed plan" not in offered.words
        assert len(await found.warden.service.engine.store.thread(run.thread_id)) == 2


@requirement("console:changed-plan")
async def test_hostile_and_endless_text_is_bounded_and_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async with visit_run(FIND, ERASE) as (found, browser, run):
        nasty = tool_step("x", "note", {"text": NASTY}, description=NASTY)
        shown = await _check(browser, run, plan(FIND, ERASE, nasty))
        assert shown.status == 200 and "<script>alert" not in shown.text and "\\u202e" in shown.words
        kept = await browser.submit(shown.form("/plan/run"), press="edit")
        assert "<script>alert" not in kept.text and json.loads(kept.form("/plan/run").fields["plan"][0])
        for text in (
            "[" * 100_000,
            '{"todoList": ' + "[" * 70 + "]" * 70 + "}",
            '{"a": NaN}',
            '{"a": 1, "a": 2}',
            NASTY,
        ):
            refused = await _check(browser, run, text)
            assert refused.status in (413, 422) and "Nothing was started" in refused.words, text[:20]
            assert refused.form("/plan/run").fields["plan"] == [text]
        form = (await _form(browser, run)).form("/plan/run")
        monkeypatch.setattr(changed_plan, "MAX_TEXT_CHARS", 50)
        long = await browser.submit(form, press="check", plan="x" * 51, inputs="x" * 51)
        assert long.status == 422 and "The text of the plan has 51 characters, the limit is 50" in long.words
        whole = await browser.open(f"/inbox/executions/{run.execution_id}/plan")
        assert whole.status == 422 and f"planwarden retry {run.thread_id} --plan FILE" in whole.words
        assert (
            await browser.send(f"/inbox/executions/{run.execution_id}/plan/run", {"plan": ["x" * 3_000_000]})
        ).status == 413
        assert len(await found.warden.service.engine.store.thread(run.thread_id)) == 1


@requirement("console:changed-plan")
async def test_many_faults_and_many_steps_stay_a_bounded_page() -> None:
    settings = Settings(home=Path("/nonexistent"), max_steps=1_000)
    async with visit(settings=settings) as (found, browser):
        steps = [tool_step(f"s{n}", "find", {"topic": "x"}) for n in range(400)]
        run = await found.warden.execute_plan(plan(*steps, tool_step("end", "broken")), wait_seconds=60)
        shown = await _check(browser, run, plan(*steps, tool_step("end", "find", {"topic": "y"})))
        assert "400 steps are done and not repeated, 1 has still to run." in shown.words
        assert "400 more steps are not listed." in shown.words and "failed, runs again" in shown.words
        unknown = await _check(browser, run, plan(*(tool_step(f"s{n}", "find", {"topics": 1}) for n in range(400))))
        assert unknown.status == 422 and len(unknown.text) < 300_000


@requirement("console:changed-plan")
async def test_a_call_of_which_nobody_knows_is_asked_about_or_named_where_its_step_goes() -> None:
    ledger = Ledger()

    @planwarden.tool(risk="read", effect="effect")
    async def send(to: str) -> str:
        """Send."""
        raise planwarden.OutcomeUnknown("the line broke")

    async with visit(ledger, tools=[send]) as (found, browser):
        step = tool_step("send", "send", {"to": "a"})
        run = await found.warden.execute_plan(plan(FIND, step), wait_seconds=60)
        if run.suspensions:
            await found.warden.cancel_execution(run.thread_id)
        asks = await _check(browser, run, plan(FIND, step, NOTE))
        assert "A person is asked first whether send happened." in asks.words
        changed = await _check(browser, run, plan(FIND, tool_step("send", "send", {"to": "b"})))
        assert changed.status == 422 and "Nobody knows whether call send:1 of step send happened." in changed.words
        gone = await _check(browser, run, plan(FIND, NOTE))
        assert "Nobody knows whether send happened, and without its step nobody is asked." in gone.words


@requirement("console:changed-plan")
async def test_a_run_that_is_not_over_or_was_rehearsed_offers_no_changed_plan() -> None:
    async with visit() as (found, browser):
        waiting = await found.warden.execute_plan(plan(confirm("ask")))
        rehearsed = await found.warden.execute_plan(plan(NOTE), options={"rehearse": True}, wait_seconds=60)
        for run in (waiting, rehearsed):
            page = await browser.open(f"/inbox/executions/{run.execution_id}")
            assert "Fork" not in page.words
            refused = await browser.open(f"/inbox/executions/{run.execution_id}/plan")
            assert refused.status == 422 and f"it is {run.status}" in refused.words
        assert (await browser.open("/inbox/executions/none/plan")).status == 404
