"""Retry: a new execution of the thread takes over what the log of the last one proves, and goes on with the rest."""

from typing import Any

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, KeyConflict, NotRetryable, ThreadBusy, UnknownThread
from planwarden.agent.core.prompts import build_step_prompt
from tests.kit import NO, Authority, Decision, ManualClock, MemoryStore, decide, ev, requirement, verify_audit
from tests.storage.suite import BackEnd
from tests.support.wardens import Ledger, calls, confirm, model_step, pass_time, plan, says, statuses, tool_step, warden


class Shop:
    """Tools with effects: `mend` works once `is_mended`, `lose` loses its answer until `is_mended`."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.is_mended = False
        self.keys: list[str] = []

    def tools(self) -> list[object]:
        @planwarden.tool(name="mend", risk="read", effect="effect")
        async def mend(text: str) -> dict[str, JsonValue]:
            """Works once it is mended."""
            if not self.is_mended:
                raise planwarden.ToolError("it is broken")
            self.ledger.lines.append(f"mend {text}")
            return {"mended": text}

        @planwarden.tool(name="lose", risk="read", effect="effect")
        async def lose(text: str, context: planwarden.CallContext) -> dict[str, JsonValue]:
            """Loses its answer until it is mended."""
            self.keys.append(context.idempotency_key)
            if not self.is_mended:
                raise planwarden.OutcomeUnknown("the line broke")
            self.ledger.lines.append(f"lose {text}")
            return {"sent": text}

        return [*self.ledger.tools(), mend, lose]

    def warden(self, **given: Any) -> Any:
        return warden(tools=self.tools(), **given)


FOUND: JsonValue = {"$from": "find", "pointer": "/topic"}
PLAN = plan(
    tool_step("find", "find", {"topic": "owls"}),
    tool_step("note", "note", {"text": FOUND}),
    tool_step("mend", "mend", {"text": FOUND}),
    tool_step("last", "note", {"text": {"$from": "mend", "pointer": "/mended"}}),
)


def taken_by(execution: planwarden.Execution) -> dict[str, str | None]:
    return {step.id: step.taken_from for step in execution.steps}


@requirement("retry:rest")
async def test_a_failed_execution_goes_on_with_the_rest_in_any_process(back_end: BackEnd) -> None:
    shop = Shop()
    async with shop.warden(store=back_end.connect()) as one:
        failed = await one.execute_plan(PLAN)
        again = await one.retry(failed.thread_id)
        assert failed.status == again.status == "failed" and shop.ledger.lines == ["note owls"]
    shop.is_mended = True
    async with shop.warden(store=back_end.connect()) as two:
        done = await two.retry(failed.thread_id, wait_seconds=60)
        assert done.status == "completed" and done.retry_of == again.execution_id
        # The log that proved a step first is named, not that of the retry between.
        assert shop.ledger.lines == ["note owls", "mend owls", "note owls"]
        assert taken_by(done) == {"find": failed.execution_id, "note": failed.execution_id, "mend": None, "last": None}
        assert [step.result for step in done.steps][:2] == [step.result for step in failed.steps][:2]
        assert (await verify_audit(two.service.store)).is_whole


@requirement("retry:calls")
async def test_calls_of_a_model_are_kept_and_it_is_told_of_them() -> None:
    shop = Shop()
    script = [
        calls(("note", {"text": "a"})),
        says("I shall not."),
        says("No."),
        says("Never."),
        calls(("mend", {"text": "b"})),
    ]
    async with shop.warden(script=script) as made:
        failed = await made.execute_plan(plan(model_step("s", "note", "mend")))
        assert failed.status == "failed" and failed.error is not None and failed.error.code == "tools_not_called"
        shop.is_mended = True
        done = await made.retry(failed.thread_id)
        state = await made.service.find(done.execution_id)
    assert done.status == "completed" and shop.ledger.lines == ["note a", "mend b"]
    assert [call.call_id for call in done.steps[0].actual_tool_calls] == ["s:1", "s:2"]
    assert 'note({"text": "a"}) -> {"written": "a"}' in build_step_prompt(state, state.steps["s"]).text


@requirement("retry:unknown")
@pytest.mark.parametrize("happened", [True, False])
async def test_a_call_that_may_have_happened_is_asked_about_first(happened: bool) -> None:
    shop = Shop()
    async with shop.warden() as made:
        steps = plan(tool_step("a", "lose", {"text": "x"}), tool_step("b", "note", {"text": "y"}))
        asked = await made.execute_plan(steps)
        given_up = await decide(made, asked, NO)
        assert given_up.error is not None and given_up.error.code == "outcome_unknown"
        shop.is_mended = True
        again = await made.retry(asked.thread_id)
        [question] = again.suspensions
        assert question.kind == "reconcile" and shop.ledger.lines == []
        assert any(given_up.execution_id in sentence for sentence in question.found)
        content: JsonValue = {"happened": True, "result": {"sent": "x"}} if happened else {"happened": False}
        done = await decide(made, question, Decision(approved=True, content=content))
    assert done.status == "completed"
    assert [(call.status, call.error) for call in done.steps[0].actual_tool_calls] == [("succeeded", None)]
    assert shop.ledger.lines == ([] if happened else ["lose x"]) + ["note y"]
    assert set(shop.keys) == {f"{asked.execution_id}:a:1"}, "the call goes on under the key that it began with"


@pytest.mark.parametrize(
    ("assurance", "told"),
    [
        ("human", "it was rejected by a person."),
        ("client", "it was rejected by a client; not proven to be a person."),
        ("claimed", "it was rejected by the calling model; no person did."),
        (None, "it was rejected because nobody answered in time; no person rejected it."),
    ],
)
async def test_a_question_that_is_asked_again_says_who_rejected_it_or_that_time_passed(
    assurance: ev.Assurance | None, told: str
) -> None:
    clock = ManualClock()
    async with warden(Ledger(), store=MemoryStore(clock)) as made:
        arguments: JsonValue = {"action": "go on?", "timeoutSeconds": 60}
        asked = await made.execute_plan(plan(tool_step("ask", "displayConfirmation", arguments)))
        if assurance is None:
            await pass_time(made, clock, asked, 61)
        else:
            authority = Authority(assurance=assurance, channel="mcp", principal="local")
            await made.service.answer(
                asked.thread_id, asked.suspensions[0].suspension_id, NO, authority, principal=None
            )
        [question] = (await made.retry(asked.thread_id)).suspensions
    assert f"Execution {asked.execution_id!r} asked about this step before, and {told}" in question.found


@requirement("retry:gated")
async def test_a_confirmation_of_the_old_execution_covers_nothing_in_the_new_one() -> None:
    shop = Shop()
    steps = plan(
        tool_step("find", "find", {"topic": "owls"}),
        confirm("ask", "Erase two?", confirms=["one", "two"]),
        tool_step("one", "erase", {"ids": [1]}),
        tool_step("broken", "mend", {"text": "x"}, dependencies=["one"]),
        tool_step("two", "erase", {"ids": [2]}, dependencies=["broken"]),
    )
    async with shop.warden() as made:
        asked = await made.execute_plan(steps)
        failed = await decide(made, asked)
        assert failed.status == "failed" and shop.ledger.lines == ["erase [1]"]
        shop.is_mended = True
        again = await made.retry(asked.thread_id)
        [question] = again.suspensions
        assert question.kind == "confirmation" and [c.arguments for c in question.confirms] == [{"ids": [2]}]
        assert statuses(again)["one"] == "completed" and shop.ledger.lines == ["erase [1]"]
        assert any("'one'" in sentence and failed.execution_id in sentence for sentence in question.found)
        done = await decide(made, question)
    assert done.status == "completed" and shop.ledger.lines == ["erase [1]", "mend x", "erase [2]"]


@requirement("retry:gated")
async def test_a_question_of_a_tool_that_did_something_afterwards_is_not_asked_again() -> None:
    ledger = Ledger()

    async def finish(payload: JsonValue, decision: JsonValue) -> JsonValue:
        ledger.lines.append("booked")
        return {"booked": True}

    @planwarden.tool(execution_mode="blocking", risk="confirm", on_resume=finish)
    async def book() -> planwarden.Suspend:
        """Book after asking."""
        return planwarden.Suspend(message="Book it?")

    steps = plan(tool_step("book", "book"), tool_step("note", "note", {"text": "x"}), tool_step("b", "broken"))
    async with warden(ledger, tools=[book]) as made:
        asked = await made.execute_plan(steps)
        failed = await decide(made, asked)
        assert failed.status == "failed" and ledger.lines == ["booked", "note x"]
        again = await made.retry(asked.thread_id)
        assert again.status == "failed" and taken_by(again)["book"] == failed.execution_id
        forked = await made.retry(asked.thread_id, from_step="book")
        [question] = forked.suspensions
        assert any("'book' of this plan already ran" in sentence for sentence in question.found)
    assert ledger.lines == ["booked", "note x"]


@requirement("retry:rest")
async def test_an_execution_without_a_plan_is_planned_again() -> None:
    ledger = Ledger()
    async with warden(ledger, script=[]) as made:
        failed = await made.run_goal("note it")
        assert failed.status == "failed" and failed.steps == ()
        again = await made.retry(failed.thread_id)
        assert again.retry_of == failed.execution_id and again.goal == "note it"
        with pytest.raises(InvalidArguments, match="has no plan"):
            await made.retry(failed.thread_id, from_step="a")


@requirement("retry:refused")
async def test_what_is_not_there_or_of_another_principal_or_pruned_cannot_be_retried() -> None:
    async with warden(Ledger()) as made:
        done = await made.execute_plan(plan(tool_step("a", "note", {"text": "x"})))
        for thread_id, principal in (("nowhere", "local"), (done.thread_id, "bob")):
            with pytest.raises(UnknownThread):
                await made.retry(thread_id, principal=principal)
        await made.service.store.prune(made.service.store.clock.now() + 1)
        with pytest.raises(UnknownThread):
            await made.retry(done.thread_id, from_step="a")


@requirement("retry:once")
@pytest.mark.parametrize("key", [None, "k"])
async def test_retries_at_the_same_moment_in_two_processes_do_it_once(back_end: BackEnd, key: str | None) -> None:
    shop, finished, refusals = Shop(), list[planwarden.Execution](), list[str]()
    async with shop.warden(store=back_end.connect()) as one, shop.warden(store=back_end.connect()) as two:
        failed = await one.execute_plan(PLAN)
        shop.is_mended = True

        async def retry(made: planwarden.Warden) -> None:
            try:
                finished.append(await made.retry(failed.thread_id, key=key, wait_seconds=60))
            except (NotRetryable, ThreadBusy) as refused:
                refusals.append(refused.code)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for made in (one, two) * 4:
                    tasks.start_soon(retry, made)
        # With a key all get the one execution, also later.
        assert {execution.status for execution in finished} == {"completed"} and len(finished) + len(refusals) == 8
        assert len(refusals) == (7 if key is None else 0)
        ids = {execution.execution_id for execution in finished}
        if key is not None:
            ids.add((await two.retry(failed.thread_id, key=key)).execution_id)
            with pytest.raises(KeyConflict):
                await two.retry(failed.thread_id, key=key, from_step="mend")
    assert len(ids) == 1 and shop.ledger.lines == ["note owls", "mend owls", "note owls"]
