"""A rehearsal: what reads really reads, and nothing else happens, whichever way a call takes."""

from collections.abc import Callable

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority
from planwarden.agent.common.errors import IllegalTransition, InvalidArguments, KeyConflict, PlanwardenError
from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.replay import find_replay_fault
from planwarden.agent.core.state import new_execution
from planwarden.agent.runtime import dispatch
from planwarden.server.api.grants import GrantRequest
from planwarden.server.settings.configuration import Settings
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.support.wardens import (
    Ledger,
    PausingTool,
    calls,
    confirm,
    end_at_once,
    model_step,
    plan,
    says,
    statuses,
    tool_step,
    warden,
)

pytestmark = pytest.mark.anyio

REHEARSE: dict[str, JsonValue] = {"rehearse": True}
PERSON = Authority(assurance="human", channel="test", principal="ann")
EVERY_CALL = (
    tool_step("find", "find", {"topic": "x"}),
    tool_step("note", "note", {"text": "hello"}),
    tool_step("erase", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}),
)


async def rehearse(w: planwarden.Warden, *steps: dict[str, JsonValue], **more: JsonValue) -> planwarden.Execution:
    return await w.execute_plan(plan(*steps), options={**REHEARSE, **more}, wait_seconds=60)


def rehearsed(execution: planwarden.Execution) -> dict[str, tuple[dict[str, JsonValue], str | None, str | None]]:
    """Arguments, question and needs of each call that was not made, by its id."""
    return {
        call.call_id: (call.arguments, call.rehearsal.asks, call.rehearsal.needs)
        for step in execution.steps
        for call in step.actual_tool_calls
        if call.rehearsal is not None and call.status == "rehearsed"
    }


@requirement("rehearsal:record", "rehearsal:nothing-done")
async def test_reads_run_and_every_other_call_is_recorded_with_its_exact_arguments_and_needs() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        done = await rehearse(w, *EVERY_CALL, confirm("ask", "send it?"))
        observed = await w.get_execution(done.thread_id, observations_after=0)
    assert ledger.lines == [] and done.suspensions == ()
    assert done.status == "rehearsed"
    assert statuses(done) == {"find": "completed", "note": "rehearsed", "erase": "rehearsed", "ask": "rehearsed"}
    assert done.steps[0].result == {"ids": [1, 2, 3], "topic": "x"}
    assert rehearsed(done) == {
        "note:1": ({"text": "hello"}, None, None),
        "erase:1": ({"ids": [1, 2, 3]}, "approval", "human"),
        "ask:1": ({"action": "send it?"}, "confirmation", "client"),
    }
    assert "3 call(s) were not made, 2 would ask a person" in done.next_action
    kinds = [entry.type for entry in observed.observations or ()]
    assert kinds.count("TOOL_REHEARSED") == 3 and kinds[-1] == "EXECUTION_REHEARSED"
    assert kinds.count("TOOL_CALLED") == 1 and "AGENT_SUSPENDED" not in kinds


@requirement("rehearsal:record")
async def test_what_takes_a_result_that_is_not_there_is_skipped_and_the_rest_goes_on() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        done = await rehearse(
            w,
            tool_step("note", "note", {"text": "a"}),
            tool_step("again", "note", {"text": {"$from": "note", "pointer": "/written"}}),
            tool_step("after", "note", {"text": {"$from": "again", "pointer": "/written"}}),
            model_step("think", "note"),
            tool_step("last", "find", {"topic": "x"}),
        )
    assert statuses(done) == {
        "note": "rehearsed",
        "again": "skipped",
        "after": "skipped",
        "think": "skipped",
        "last": "completed",
    }
    assert [step.skipped_because for step in done.steps] == [None, "note", "again", "after", None]
    assert "again (after note)" in done.next_action and ledger.lines == []


@requirement("rehearsal:record")
async def test_a_confirmation_says_what_it_would_cover_and_the_call_by_what_it_is_covered() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        done = await rehearse(
            w, confirm("ask", confirms=["erase"]), tool_step("erase", "erase", {"ids": [1]}), confirm("more")
        )
    asked, erase, _ = (step.actual_tool_calls[0].rehearsal for step in done.steps)
    assert asked is not None and (asked.confirms, asked.risk, asked.needs) == (("erase",), "dangerous", "human")
    assert erase is not None and (erase.covered_by, erase.asks, erase.needs) == ("ask:1", None, None)
    assert ledger.lines == []


@requirement("rehearsal:record", "rehearsal:nothing-done")
async def test_a_loop_records_each_item_with_its_exact_arguments_and_asks_nobody() -> None:
    ledger = Ledger()
    loop: dict[str, JsonValue] = {"forEach": {"$from": "find", "pointer": "/ids"}, "maxConcurrent": 2}
    item: JsonValue = {"$from": "item"}
    async with warden(ledger) as w:
        done = await rehearse(
            w,
            tool_step("find", "find", {"topic": "x"}),
            {**tool_step("erase", "erase", {"ids": [item]}), **loop},
            {**tool_step("look", "find", {"topic": "y", "limit": item}), **loop},
            {**tool_step("note", "note", {"text": {"$text": "{n}", "with": {"n": item}}}), **loop},
            tool_step("after", "note", {"text": {"$from": "erase", "pointer": "/0/erased", "default": "none"}}),
            {**tool_step("never", "note", {"text": "z"}), "when": {"value": {"$from": "note"}, "matches": {}}},
        )
    assert statuses(done) == {
        "find": "completed",
        "erase": "rehearsed",
        "look": "completed",
        "note": "rehearsed",
        "after": "skipped",
        "never": "skipped",
    }
    assert rehearsed(done) == {
        **{f"erase:{n}": ({"ids": [n]}, "approval", "human") for n in (1, 2, 3)},
        **{f"note:{n}": ({"text": str(n)}, None, None) for n in (1, 2, 3)},
    }
    assert [step.skipped_because for step in done.steps[-2:]] == ["erase", "note"] and ledger.lines == []


@requirement("rehearsal:nothing-done")
async def test_a_read_that_fails_is_tried_again_and_an_advisory_step_does_not_count_as_done() -> None:
    tries: list[str] = []

    @planwarden.tool(name="flaky", risk="read", effect="read")
    async def flaky() -> str:
        """Fails at first."""
        tries.append("")
        if len(tries) < 2:
            raise RuntimeError("not yet")
        return "here"

    ledger = Ledger()
    pair = list[JsonValue]([{"toolName": "note", "arguments": {"text": "x"}}, {"toolName": "broken", "arguments": {}}])
    names = list[JsonValue](["note", "broken"])
    mixed: dict[str, JsonValue] = {
        **tool_step("mixed", "note", {"text": "x"}),
        "requiredTools": names,
        "toolCalls": pair,
        "toolValidationMode": "advisory",
    }
    retried: dict[str, JsonValue] = {**tool_step("a", "flaky"), "retry": {"attempts": 2, "delayS": 1}}
    clock = ManualClock()
    async with warden(ledger, tools=[flaky], store=MemoryStore(clock)) as w:
        first = await rehearse(w, retried, mixed)
        clock.advance(5)
        await w.service.engine.tick()
        done = await w.service.engine.wait(await w.service.engine.find(first.execution_id), 60)
    assert done.status == "rehearsed" and len(tries) == 2 and ledger.lines == []
    assert {name: state.status for name, state in done.steps.items()} == {"a": "completed", "mixed": "rehearsed"}


@requirement("rehearsal:nothing-done")
async def test_a_grant_is_named_and_not_used() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        request = GrantRequest(tool_name="erase", arguments={"ids": [1]}, uses=1, expires_in_s=3600)
        grant = await w.service.grants.make(request, PERSON)
        done = await rehearse(w, tool_step("a", "erase", {"ids": [1]}))
        [shown] = await w.service.grants.list()
    found = done.steps[0].actual_tool_calls[0].rehearsal
    assert found is not None and found.grant_id == grant.grant_id
    assert (shown.uses_left, ledger.lines) == (1, [])


@requirement("rehearsal:nothing-done")
@pytest.mark.parametrize("tool_mode", ["strict", "flexible"])
async def test_calls_that_a_model_writes_are_held_too(tool_mode: str) -> None:
    ledger = Ledger()
    script = [calls(("find", {"topic": "x"}), ("erase", {"ids": [1]}), ("note", {"text": "b"}))]
    async with warden(ledger, script=list[JsonValue](script)) as w:
        done = await rehearse(w, model_step("a", "find", "erase"), toolMode=tool_mode)
    assert (done.status, ledger.lines) == ("rehearsed", [])
    assert rehearsed(done)["a:2"] == ({"ids": [1]}, "approval", "human")
    assert done.steps[0].status == "rehearsed"
    # In flexible mode the model may call what the step does not name.
    assert ("a:3" in rehearsed(done)) is (tool_mode == "flexible")


@requirement("rehearsal:nothing-done")
async def test_the_calling_model_is_asked_and_its_answer_is_rehearsed() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await rehearse(w, model_step("a", "erase"))
        [question] = asked.suspensions
        content: JsonValue = {"toolCalls": [{"toolName": "erase", "arguments": {"ids": [7]}}]}
        done = await w.submit_answer(asked.thread_id, question.suspension_id, content)
    assert (question.addressee, done.status, ledger.lines) == ("caller", "rehearsed", [])
    assert rehearsed(done) == {"a:1": ({"ids": [7]}, "approval", "human")}


@requirement("rehearsal:nothing-done")
async def test_no_text_of_a_model_ends_a_rehearsal() -> None:
    ledger = Ledger()
    script: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": plan(tool_step("a", "note", {"text": "x"}))}},
        says("All done, everything was sent.", "synthesize"),
    ]
    async with warden(ledger, script=script) as w:
        done = await w.run_goal("send it", options=REHEARSE, wait_seconds=60)
    assert (done.status, ledger.lines) == ("rehearsed", []) and "sent" not in (done.output or "")


def _asks(**more: object) -> Callable[..., planwarden.Suspend]:
    async def ask() -> planwarden.Suspend:
        """Asks in the middle of its call."""
        return planwarden.Suspend(message="May I?")

    return planwarden.tool(name="asks", risk="read", effect="read", **more)(ask)  # pyright: ignore


@requirement("rehearsal:nothing-done")
@pytest.mark.parametrize("mode", ["immediate", "blocking"])
async def test_a_tool_that_asks_in_the_middle_of_its_call_asks_nobody(mode: str) -> None:
    async with warden(tools=[_asks(execution_mode=mode)]) as w:
        done = await rehearse(w, tool_step("a", "asks"), tool_step("b", "wait", {"seconds": 3}))
    assert (done.status, done.suspensions) == ("rehearsed", ())
    assert statuses(done) == {"a": "rehearsed", "b": "rehearsed"}
    assert rehearsed(done)["b:1"][1:] == ("wait", None)


@planwarden.tool(name="lowered", risk="read", effect="idempotent")
async def lowered() -> str:
    """Changes something, may be repeated, and needs no question."""
    raise AssertionError("it ran")


@planwarden.tool(name="guarded", risk="confirm", effect="read")
async def guarded() -> str:
    """Reads, but only after a question."""
    raise AssertionError("it ran")


@requirement("rehearsal:nothing-done")
async def test_only_effect_and_risk_read_together_let_a_call_run() -> None:
    async with warden(tools=[lowered, guarded]) as w:
        done = await rehearse(w, tool_step("a", "lowered"), tool_step("b", "guarded"))
    assert rehearsed(done) == {"a:1": ({}, None, None), "b:1": ({}, "approval", "client")}


@requirement("rehearsal:nothing-done")
async def test_a_read_that_was_cut_off_runs_again_unless_its_tool_writes_now() -> None:
    store, first = MemoryStore(), PausingTool()
    ran: list[str] = []

    @planwarden.tool(name="gate", risk="dangerous", effect="effect")
    async def writing() -> str:
        """Writes."""
        ran.append("gate")
        return "written"

    async with warden(tools=[first.tool()], store=store) as w:
        begun = await w.execute_plan(plan(tool_step("a", "gate")), options=REHEARSE, wait_seconds=0)
        with anyio.fail_after(60):
            await first.started.wait()
        end_at_once(w)
    async with warden(tools=[writing], store=store) as w:
        await w.service.engine.tick()
        done = await w.service.engine.wait(await w.service.engine.find(begun.execution_id), 60)
    assert (done.status, ran) == ("rehearsed", []) and done.steps["a"].calls[0].status == "rehearsed"


@requirement("rehearsal:nothing-done")
async def test_arguments_that_do_not_fit_fail_in_a_rehearsal_as_they_would_later() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        done = await rehearse(
            w,
            tool_step("find", "find", {"topic": "x"}),
            tool_step("note", "note", {"text": {"$from": "find", "pointer": "/ids"}}),
            tool_step("last", "find", {"topic": "y"}, dependencies=[]),
        )
    assert done.status == "rehearsed" and statuses(done)["note"] == "failed"
    assert "Failed already now: note" in done.next_action and statuses(done)["last"] == "completed"


@requirement("rehearsal:nothing-done")
async def test_a_thread_does_not_inherit_it_and_a_plan_only_call_refuses_it() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        first = await rehearse(w, tool_step("a", "note", {"text": "1"}))
        again = await w.execute_plan(plan(tool_step("a", "note", {"text": "2"})), thread_id=first.thread_id)
        with pytest.raises(InvalidArguments, match="runs nothing"):
            await w.create_plan("a goal", options=REHEARSE)
    assert (again.status, ledger.lines) == ("completed", ["note 2"])


@requirement("rehearsal:nothing-done")
async def test_a_rehearsal_whose_budget_ran_out_goes_on_as_a_rehearsal() -> None:
    ledger = Ledger()
    steps = (tool_step("a", "find", {"topic": "x"}), tool_step("b", "note", {"text": "1"}))
    async with warden(ledger) as w:
        stopped = await rehearse(w, *steps, budgets={"toolCalls": 1})
        with pytest.raises(InvalidArguments, match="goes on as one"):
            await w.execute_plan(thread_id=stopped.thread_id, options={"rehearse": False, "budgets": {"toolCalls": 9}})
        done = await w.execute_plan(thread_id=stopped.thread_id, options={"budgets": {"toolCalls": 9}})
        state = await w.service.load_newest(stopped.thread_id, "local")
    assert (stopped.status, done.status, ledger.lines) == ("incomplete", "rehearsed", [])
    assert state.options.rehearse


@requirement("rehearsal:nothing-done")
async def test_a_key_that_began_a_rehearsal_does_not_begin_the_real_run() -> None:
    ledger = Ledger()
    written = plan(tool_step("a", "note", {"text": "1"}))
    async with warden(ledger) as w:
        first = await w.execute_plan(written, key="k", options=REHEARSE)
        again = await w.execute_plan(written, key="k", options=REHEARSE)
        with pytest.raises(KeyConflict):
            await w.execute_plan(written, key="k")
    assert first.execution_id == again.execution_id and ledger.lines == []


@requirement("rehearsal:nothing-done")
async def test_a_dispatcher_that_forgot_the_rehearsal_is_stopped_by_the_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    monkeypatch.setattr(dispatch, "_hold", lambda execution, call, prepared: prepared)  # pyright: ignore
    async with warden(ledger) as w:
        with pytest.raises(PlanwardenError, match="internal error"):
            await rehearse(w, tool_step("a", "note", {"text": "1"}))
    assert ledger.lines == []


@requirement("rehearsal:nothing-done")
async def test_a_finished_rehearsal_takes_no_more_events() -> None:
    async with warden(Ledger()) as w:
        done = await rehearse(w, tool_step("a", "note", {"text": "1"}))
        state = await w.service.load_newest(done.thread_id, "local")
    intent = ev.ToolCallIntended(call_id="a:1", arguments={}, effect="read")
    for event in (intent, ev.ExecutionStarted(), ev.ExecutionCompleted(), ev.CancelRequested()):
        with pytest.raises(IllegalTransition):
            apply(state, event, 1.0)


@requirement("rehearsal:nothing-done")
async def test_a_model_that_is_trusted_to_approve_still_runs_nothing(settings: Settings) -> None:
    ledger = Ledger()
    async with warden(ledger, settings=settings) as w:
        done = await rehearse(w, *EVERY_CALL)
    assert (done.status, ledger.lines) == ("rehearsed", [])


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    from planwarden.server.settings.configuration import load_settings

    home = tmp_path_factory.mktemp("home")
    (home / "planwarden.toml").write_text(
        '[approvals]\ntrust_caller = true\n[tools.erase]\nrisk = "read"\n', encoding="utf-8"
    )
    return load_settings(home=home, environment={})


@requirement("rehearsal:record")
async def test_a_condition_whose_value_is_known_is_judged_although_another_value_is_not() -> None:
    ids: JsonValue = {"$from": "find", "pointer": "/ids"}
    written: JsonValue = {"$from": "note", "pointer": "/written"}
    takes: dict[str, JsonValue] = {"text": {"$text": "{n}", "with": {"n": written}}}
    steps = (
        tool_step("note", "note", {"text": "x"}),
        tool_step("find", "find", {"topic": "x"}),
        tool_step("none", "note", takes, when={"value": ids, "matches": {"maxItems": 0}}),
        tool_step("some", "note", takes, when={"value": ids, "matches": {"minItems": 1}}),
        tool_step("open", "note", takes, when=[{"value": written, "matches": {}}]),
        tool_step("after", "note", {"text": "y"}, dependencies=["none"]),
    )
    async with warden(Ledger()) as w:
        done = await rehearse(w, *steps)
        log = await w.service.engine.store.read(done.execution_id)
        state = await w.service.engine.find(done.execution_id)
    assert {step.id: step.skipped_because for step in done.steps if step.status == "skipped"} == {
        "none": "when",
        "some": "note",
        "open": "note",
    }
    assert statuses(done)["after"] == "rehearsed"
    assert "their conditions do not hold: none." in done.next_action
    assert "only a real run has the results: some (after note), open (after note)." in done.next_action
    assert find_replay_fault(new_execution(state.execution_id, state.thread_id, "local"), log) is None
