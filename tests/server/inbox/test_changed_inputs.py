"""A person runs a finished execution again with other inputs."""

from contextlib import AbstractAsyncContextManager

import pytest
from pydantic import JsonValue

from tests.kit import Execution, plan, requirement, tool_step
from tests.server.inbox.support import Browser, Inbox, Page, visit_run

pytestmark = pytest.mark.anyio

INPUTS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"topic": {"type": "string"}, "ids": {"type": "array"}, "limit": {"type": "integer", "default": 3}},
    "required": ["topic"],
}


def _take(name: str) -> JsonValue:
    return {"$from": "inputs", "pointer": f"/{name}"}


FIND = tool_step("find", "find", {"topic": _take("topic"), "limit": _take("limit")})
ERASE = tool_step("erase", "erase", {"ids": _take("ids")})
GIVEN: dict[str, JsonValue] = {"topic": "old", "ids": [7]}


def _open(*, approved: bool, **extra: JsonValue) -> AbstractAsyncContextManager[tuple[Inbox, Browser, Execution]]:
    """An inbox with a run that a person approved or rejected."""
    inputs = {**GIVEN, **({"more": 1} if extra else {})}
    return visit_run(FIND, ERASE, approved=approved, schema={**INPUTS, **extra}, inputs=inputs)


async def _form(browser: Browser, run: Execution) -> Page:
    page = await browser.open(f"/inbox/executions/{run.execution_id}/inputs")
    assert page.status == 200, page.words
    return page


def _key(page: Page, label: str) -> str:
    """The name of the field with that label."""
    start = page.text.index(f">{label}")
    return page.text[:start].rpartition('<label for="')[2].partition('"')[0]


@requirement("console:other-inputs")
async def test_a_retry_with_other_inputs_goes_on_with_them_and_keeps_what_was_not_changed() -> None:
    async with _open(approved=False) as (found, browser, run):
        assert "Run again with other inputs" in (await browser.open(f"/inbox/executions/{run.execution_id}")).words
        page = await _form(browser, run)
        fields = page.form("/inputs/run").fields
        ids, topic, limit = (_key(page, name) for name in ("ids", "topic", "limit"))
        assert (fields[topic], fields[limit], fields["from"]) == (["old"], ["3"], [""]) and "7" in fields[ids][0]
        answers = [await browser.submit(page.form("/inputs/run"), press="run", **{ids: "[8]"}) for _ in range(2)]
        assert answers[0].run_id == answers[1].run_id != run.execution_id
        retried = await found.warden.get_execution(run.thread_id)
        assert retried.execution_id == answers[0].run_id and retried.status == "suspended"
        state = await found.warden.service.engine.find(retried.execution_id)
        assert state.inputs == {"topic": "old", "ids": [8], "limit": 3}
        assert state.starter is not None and (state.starter.principal, state.starter.channel) == ("ann", "inbox")
        await browser.decide(retried.suspensions[0].suspension_id, "approve")
        assert found.ledger.lines == ["erase [8]"]


@requirement("console:other-inputs")
async def test_a_fork_with_other_inputs_runs_the_chosen_step_and_all_after_it_again() -> None:
    async with _open(approved=True) as (found, browser, run):
        page = await _form(browser, run)
        topic = _key(page, "topic")
        assert page.form("/inputs/run").fields["from"] == ["find"]
        # The step that took the value is done, and is not among those that run again.
        refused = await browser.submit(page.form("/inputs/run"), press="run", **{topic: "new", "from": "erase"})
        assert refused.status == 422 and "Nothing was started" in refused.words
        assert refused.form("/inputs/run").fields[topic] == ["new"]
        assert refused.form("/inputs/run").fields["from"] == ["erase"]
        started = (await browser.submit(refused.form("/inputs/run"), press="run", **{"from": "find"})).run_id
        await found.warden.service.engine.wait(await found.warden.service.engine.find(started), 60)
        state = await found.warden.service.engine.find(started)
        assert state.inputs["topic"] == "new" and found.ledger.lines == ["erase [7]"] and state.status == "suspended"


@requirement("console:other-inputs")
async def test_values_that_do_not_fit_are_shown_at_their_fields_and_enter_starts_nothing() -> None:
    async with _open(approved=False) as (found, browser, run):
        page = await _form(browser, run)
        topic, limit = _key(page, "topic"), _key(page, "limit")
        checked = await browser.submit(page.form("/inputs/run"), press="check", **{topic: "new"})
        assert checked.status == 200 and "nothing was started" in checked.words
        assert checked.form("/inputs/run").fields[topic] == ["new"]
        for changes in ({limit: "many"}, {limit: "2.5"}):
            answer = await browser.submit(page.form("/inputs/run"), press="run", **changes)
            assert answer.status == 422 and 'aria-invalid="true"' in answer.text
        assert (await browser.submit(page.form("/inputs/run"), press="run", key="x")).status == 422
        assert (await browser.submit(page.form("/inputs/run"), decision="start")).status == 422
        assert (await found.warden.get_execution(run.thread_id)).execution_id == run.execution_id


@requirement("console:other-inputs")
async def test_inputs_that_the_schema_lets_in_besides_are_filled_in_too() -> None:
    async with _open(approved=False, additionalProperties={"type": "integer"}) as (found, browser, run):
        page = await _form(browser, run)
        assert '"more": 1' in page.form("/inputs/run").fields["more"][0]
        started = (await browser.submit(page.form("/inputs/run"), press="run", more='{"more": 2}')).run_id
        state = await found.warden.service.engine.find(started)
        assert state.inputs == {**GIVEN, "limit": 3, "more": 2}


@requirement("console:other-inputs")
async def test_a_run_that_cannot_go_on_or_takes_no_inputs_offers_no_form() -> None:
    async with _open(approved=False) as (found, browser, run):
        waiting = (await found.ask()).execution_id
        plain = await found.warden.execute_plan(plan(tool_step("n", "note", {"text": "x"})), wait_seconds=60)
        form = (await _form(browser, run)).form("/inputs/run")
        await found.warden.retry(run.thread_id)
        for execution_id in (waiting, plain.execution_id, run.execution_id):
            assert "Run again with" not in (await browser.open(f"/inbox/executions/{execution_id}")).words
            refused = await browser.open(f"/inbox/executions/{execution_id}/inputs")
            assert refused.status == 422 and "cannot be run again with other inputs" in refused.words
        assert (await browser.submit(form, press="run")).status == 422
        assert (await found.warden.get_execution(run.thread_id)).execution_id != run.execution_id


@requirement("console:other-inputs")
async def test_what_was_written_stays_when_a_later_run_went_on_meanwhile() -> None:
    async with _open(approved=False) as (found, browser, run):
        page = await _form(browser, run)
        topic = _key(page, "topic")
        later = await found.warden.retry(run.thread_id)
        answer = await browser.submit(page.form("/inputs/run"), press="run", **{topic: "a long new topic"})
        assert answer.status == 422 and "nothing was started" in answer.words
        assert f"/inbox/executions/{later.execution_id}" in answer.text
        kept = answer.form("/inputs/run")
        assert kept.fields[topic] == ["a long new topic"] and "from" not in kept.fields
        assert (await found.warden.get_execution(run.thread_id)).execution_id == later.execution_id
