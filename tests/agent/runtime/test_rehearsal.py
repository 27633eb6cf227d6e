"""A rehearsal: what reads really reads, and nothing else happens, whichever way a call takes."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, KeyConflict
from planwarden.agent.core.replay import find_replay_fault
from planwarden.agent.core.state import new_execution
from planwarden.agent.core.tool import ExecutionMode
from planwarden.server.api.grants import GrantRequest
from planwarden.server.settings.configuration import Settings, load_settings
from tests.kit import (
    Ledger,
    ManualClock,
    MemoryStore,
    PausingTool,
    calls,
    confirm,
    model_step,
    plan,
    requirement,
    says,
    statuses,
    tool_step,
    warden,
)
from tests.support.wardens import HUMAN, end_at_once, pass_time, run

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
REHEARSE: Json = {"rehearse": True}
FIND = tool_step("find", "find", {"topic": "x"})
IDS: JsonValue = {"$from": "find", "pointer": "/ids"}
EVERY_CALL = (FIND, tool_step("note", "note", {"text": "hello"}), tool_step("erase", "erase", {"ids": IDS}))


async def rehearse(
    *steps: Json,
    script: Sequence[JsonValue] | None = None,
    tools: Sequence[object] = (),
    settings: Settings | None = None,
    **options: JsonValue,
) -> planwarden.Execution:
    """Rehearses the steps, and holds that nothing happened."""
    done, lines = await run(*steps, script=script, tools=tools, settings=settings, options={**REHEARSE, **options})
    assert (done.status, done.suspensions, lines) == ("rehearsed", (), [])
    return done


def rehearsed(execution: planwarden.Execution) -> dict[str, tuple[Json, str | None, str | None]]:
    """Arguments, question and needs of each call that was not made, by its id."""
    return {
        call.call_id: (call.arguments, call.rehearsal.asks, call.rehearsal.needs)
        for step in execution.steps
        for call in step.actual_tool_calls
        if call.rehearsal is not None and call.status == "rehearsed"
    }


@requirement("rehearsal:record", "rehearsal:nothing-done")
async def test_reads_run_and_every_other_call_is_recorded_with_its_exact_arguments_and_needs() -> None:
    done = await rehearse(*EVERY_CALL, confirm("ask", "send it?"))
    assert statuses(done) == {"find": "completed", "note": "rehearsed", "erase": "rehearsed", "ask": "rehearsed"}
    assert done.steps[0].result == {"ids": [1, 2, 3], "topic": "x"}
    assert rehearsed(done) == {
        "note:1": ({"text": "hello"}, None, None),
        "erase:1": ({"ids": [1, 2, 3]}, "approval", "human"),
        "ask:1": ({"action": "send it?"}, "confirmation", "client"),
    }
    assert "3 call(s) were not made, 2 would ask a person" in done.next_action
    kinds = [entry.type for entry in done.observations or ()]
    assert kinds.count("TOOL_REHEARSED") == 3 and kinds[-1] == "EXECUTION_REHEARSED"
    assert kinds.count("TOOL_CALLED") == 1 and "AGENT_SUSPENDED" not in kinds


@requirement("rehearsal:record")
async def test_what_takes_a_result_that_is_not_there_is_skipped_and_the_rest_goes_on() -> None:
    done = await rehearse(
        tool_step("note", "note", {"text": "a"}),
        tool_step("again", "note", {"text": {"$from": "note", "pointer": "/written"}}),
        tool_step("after", "note", {"text": {"$from": "again", "pointer": "/written"}}),
        model_step("think", "note"),
        FIND,
        tool_step("wrong", "note", {"text": IDS}),
        tool_step("last", "find", {"topic": "y"}, dependencies=[]),
    )
    assert [step.status for step in done.steps] == [
        "rehearsed",
        "skipped",
        "skipped",
        "skipped",
        "completed",
        "failed",
        "completed",
    ]
    assert [step.skipped_because for step in done.steps[:4]] == [None, "note", "again", "after"]
    assert "again (after note)" in done.next_action and "Failed already now: wrong" in done.next_action


@requirement("rehearsal:record")
async def test_a_confirmation_says_what_it_would_cover_and_the_call_by_what_it_is_covered() -> None:
    done = await rehearse(
        confirm("ask", confirms=["erase"]), tool_step("erase", "erase", {"ids": [1]}), confirm("more")
    )
    asked, erase, _ = (step.actual_tool_calls[0].rehearsal for step in done.steps)
    assert asked is not None and (asked.confirms, asked.risk, asked.needs) == (("erase",), "dangerous", "human")
    assert erase is not None and (erase.covered_by, erase.asks, erase.needs) == ("ask:1", None, None)


@requirement("rehearsal:record", "rehearsal:nothing-done")
async def test_a_loop_records_each_item_with_its_exact_arguments_and_asks_nobody() -> None:
    loop: Json = {"forEach": IDS, "maxConcurrent": 2}
    item: JsonValue = {"$from": "item"}
    done = await rehearse(
        FIND,
        {**tool_step("erase", "erase", {"ids": [item]}), **loop},
        {**tool_step("look", "find", {"topic": "y", "limit": item}), **loop},
        {**tool_step("note", "note", {"text": {"$text": "{n}", "with": {"n": item}}}), **loop},
        tool_step("after", "note", {"text": {"$from": "erase", "pointer": "/0/erased", "default": "none"}}),
        tool_step("never", "note", {"text": "z"}, when={"value": {"$from": "note"}, "matches": {}}),
    )
    expected = ("completed", "rehearsed", "completed", "rehearsed", "skipped", "skipped")
    assert tuple(statuses(done).values()) == expected
    assert rehearsed(done) == {
        **{f"erase:{n}": ({"ids": [n]}, "approval", "human") for n in (1, 2, 3)},
        **{f"note:{n}": ({"text": str(n)}, None, None) for n in (1, 2, 3)},
    }
    assert [step.skipped_because for step in done.steps[-2:]] == ["erase", "note"]


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

    mixed: Json = {
        **model_step("mixed", "note", "broken", toolValidationMode="advisory"),
        "toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}, {"toolName": "broken", "arguments": {}}],
    }
    steps = plan(tool_step("a", "flaky", retry={"attempts": 2, "delayS": 1}), mixed)
    clock, ledger = ManualClock(), Ledger()
    async with warden(ledger, tools=[flaky], store=MemoryStore(clock)) as w:
        done = await pass_time(w, clock, await w.execute_plan(steps, options=REHEARSE, wait_seconds=60), 5)
    assert done.status == "rehearsed" and len(tries) == 2 and ledger.lines == []
    assert statuses(done) == {"a": "completed", "mixed": "rehearsed"}


@requirement("rehearsal:nothing-done")
async def test_a_grant_is_named_and_not_used() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        request = GrantRequest(tool_name="erase", arguments={"ids": [1]}, uses=1, expires_in_s=3600)
        grant = await w.service.grants.make(request, HUMAN)
        done = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})), options=REHEARSE)
        [shown] = await w.service.grants.list()
    found = done.steps[0].actual_tool_calls[0].rehearsal
    assert found is not None and found.grant_id == grant.grant_id
    assert (shown.uses_left, ledger.lines) == (1, [])


@requirement("rehearsal:nothing-done")
@pytest.mark.parametrize("tool_mode", ["strict", "flexible"])
async def test_calls_that_a_model_writes_are_held_too(tool_mode: str) -> None:
    script = [calls(("find", {"topic": "x"}), ("erase", {"ids": [1]}), ("note", {"text": "b"}))]
    done = await rehearse(model_step("a", "find", "erase"), script=script, toolMode=tool_mode)
    assert rehearsed(done)["a:2"] == ({"ids": [1]}, "approval", "human")
    assert done.steps[0].status == "rehearsed"
    # In flexible mode the model may call what the step does not name.
    assert ("a:3" in rehearsed(done)) is (tool_mode == "flexible")


@requirement("rehearsal:nothing-done")
async def test_no_text_of_a_model_and_no_answer_of_the_caller_ends_a_rehearsal() -> None:
    ledger = Ledger()
    script: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": plan(tool_step("a", "note", {"text": "x"}))}},
        says("All done, everything was sent.", "synthesize"),
    ]
    async with warden(ledger, script=script) as w:
        done = await w.run_goal("send it", options=REHEARSE, wait_seconds=60)
    assert done.status == "rehearsed" and "sent" not in (done.output or "")
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(model_step("a", "erase")), options=REHEARSE)
        content: JsonValue = {"toolCalls": [{"toolName": "erase", "arguments": {"ids": [7]}}]}
        done = await w.submit_answer(asked.thread_id, asked.suspensions[0].suspension_id, content)
    assert (asked.suspensions[0].addressee, done.status, ledger.lines) == ("caller", "rehearsed", [])
    assert rehearsed(done) == {"a:1": ({"ids": [7]}, "approval", "human")}


@requirement("rehearsal:nothing-done")
@pytest.mark.parametrize("mode", ["immediate", "blocking"])
async def test_a_tool_that_asks_in_the_middle_of_its_call_asks_nobody(mode: ExecutionMode) -> None:
    @planwarden.tool(risk="read", effect="read", execution_mode=mode)
    async def asks() -> planwarden.Suspend:
        """Asks in the middle of its call."""
        return planwarden.Suspend(message="May I?")

    done = await rehearse(tool_step("a", "asks"), tool_step("b", "wait", {"seconds": 3}), tools=[asks])
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
async def test_only_effect_and_risk_read_together_let_a_call_run_whoever_is_trusted(tmp_path: Path) -> None:
    done = await rehearse(tool_step("a", "lowered"), tool_step("b", "guarded"), tools=[lowered, guarded])
    assert rehearsed(done) == {"a:1": ({}, None, None), "b:1": ({}, "approval", "client")}
    text = '[approvals]\ntrust_caller = true\n[tools.erase]\nrisk = "read"\n'
    (tmp_path / "planwarden.toml").write_text(text, encoding="utf-8")
    await rehearse(*EVERY_CALL, settings=load_settings(home=tmp_path, environment={}))


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
async def test_no_other_run_of_its_thread_or_key_inherits_a_rehearsal_and_no_rehearsal_becomes_a_run() -> None:
    ledger = Ledger()
    note = plan(tool_step("a", "note", {"text": "1"}))
    async with warden(ledger) as w:
        first = await w.execute_plan(note, key="k", options=REHEARSE)
        assert (await w.execute_plan(note, key="k", options=REHEARSE)).execution_id == first.execution_id
        with pytest.raises(KeyConflict):
            await w.execute_plan(note, key="k")
        with pytest.raises(InvalidArguments, match="runs nothing"):
            await w.create_plan("a goal", options=REHEARSE)
        assert ledger.lines == []
        again = await w.execute_plan(note, thread_id=first.thread_id)
        assert (again.status, ledger.lines) == ("completed", ["note 1"])
        spent = plan(FIND, tool_step("b", "note", {"text": "2"}))
        stopped = await w.execute_plan(spent, options={**REHEARSE, "budgets": {"toolCalls": 1}})
        more: Json = {"budgets": {"toolCalls": 9}}
        with pytest.raises(InvalidArguments, match="goes on as one"):
            await w.execute_plan(thread_id=stopped.thread_id, options={"rehearse": False, **more})
        done = await w.execute_plan(thread_id=stopped.thread_id, options=more)
    assert (stopped.status, done.status, ledger.lines) == ("incomplete", "rehearsed", ["note 1"])


@requirement("rehearsal:record")
async def test_a_condition_whose_value_is_known_is_judged_although_another_value_is_not() -> None:
    written: JsonValue = {"$from": "note", "pointer": "/written"}
    takes: Json = {"text": {"$text": "{n}", "with": {"n": written}}}
    steps = plan(
        tool_step("note", "note", {"text": "x"}),
        FIND,
        tool_step("none", "note", takes, when={"value": IDS, "matches": {"maxItems": 0}}),
        tool_step("some", "note", takes, when={"value": IDS, "matches": {"minItems": 1}}),
        tool_step("open", "note", takes, when=[{"value": written, "matches": {}}]),
        tool_step("after", "note", {"text": "y"}, dependencies=["none"]),
    )
    async with warden(Ledger()) as w:
        done = await w.execute_plan(steps, options=REHEARSE, wait_seconds=60)
        log = await w.service.engine.store.read(done.execution_id)
    assert [step.skipped_because for step in done.steps] == [None, None, "when", "note", "note", None]
    assert statuses(done)["after"] == "rehearsed"
    assert "their conditions do not hold: none." in done.next_action
    assert "only a real run has the results: some (after note), open (after note)." in done.next_action
    assert find_replay_fault(new_execution(done.execution_id, done.thread_id, "local"), log) is None
