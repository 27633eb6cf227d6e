"""What a plan would do: a forecast runs nothing and comes true; a rehearsal reads, and nothing else happens."""

from collections.abc import Sequence

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, KeyConflict
from planwarden.agent.core.tool import ExecutionMode
from planwarden.server.api.grants import GrantRequest
from planwarden.server.settings.rules import build_rule_book
from planwarden.server.views.forecast import Forecast
from tests import kit
from tests.kit import Json, plan
from tests.support.wardens import run

REHEARSE: Json = {"rehearse": True}
FIND = kit.tool_step("find", "find", {"topic": "x"})
IDS: JsonValue = {"$from": "find", "pointer": "/ids"}
EVERY_CALL = (FIND, kit.tool_step("note", "note", {"text": "hello"}), kit.tool_step("erase", "erase", {"ids": IDS}))
SECOND = GrantRequest(tool_name="erase", arguments={"ids": [2]}, uses=9, expires_in_s=3600)
"""A grant for one call of `erase`."""


async def rehearse(
    *steps: Json,
    script: Sequence[JsonValue] | None = None,
    tools: Sequence[object] = (),
    settings: kit.Settings | None = None,
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


@kit.requirement("rehearsal:record", "rehearsal:nothing-done")
async def test_reads_run_and_every_other_call_is_recorded_with_its_exact_arguments_and_needs() -> None:
    done = await rehearse(*EVERY_CALL, kit.confirm("ask", "send it?"))
    assert kit.statuses(done) == {"find": "completed", "note": "rehearsed", "erase": "rehearsed", "ask": "rehearsed"}
    assert done.steps[0].result == {"ids": [1, 2, 3], "topic": "x"}
    assert rehearsed(done) == {
        "note:1": ({"text": "hello"}, None, None),
        "erase:1": ({"ids": [1, 2, 3]}, "approval", "human"),
        "ask:1": ({"action": "send it?"}, "confirmation", "client"),
    }
    assert "Calls not made: 3; 2 of them would ask a person" in done.next_action
    kinds = [entry.type for entry in done.observations or ()]
    assert kinds.count("TOOL_REHEARSED") == 3 and kinds[-1] == "EXECUTION_REHEARSED"
    assert kinds.count("TOOL_CALLED") == 1 and "AGENT_SUSPENDED" not in kinds


@kit.requirement("rehearsal:record", "rehearsal:nothing-done")
async def test_a_loop_records_each_item_with_its_exact_arguments_and_asks_nobody() -> None:
    loop: Json = {"forEach": IDS, "maxConcurrent": 2}
    item: JsonValue = {"$from": "item"}
    done = await rehearse(
        FIND,
        {**kit.tool_step("erase", "erase", {"ids": [item]}), **loop},
        {**kit.tool_step("look", "find", {"topic": "y", "limit": item}), **loop},
        kit.tool_step("after", "note", {"text": {"$from": "erase", "pointer": "/0/erased", "default": "none"}}),
    )
    assert [*kit.statuses(done).values()] == ["completed", "rehearsed", "completed", "skipped"]
    assert rehearsed(done) == {f"erase:{n}": ({"ids": [n]}, "approval", "human") for n in (1, 2, 3)}


@kit.requirement("rehearsal:nothing-done")
@pytest.mark.parametrize("mode", ["immediate", "blocking"])
async def test_a_tool_that_asks_in_the_middle_of_its_call_asks_nobody(mode: ExecutionMode) -> None:
    @planwarden.tool(risk="read", effect="read", execution_mode=mode)
    async def asks() -> planwarden.Suspend:
        """Asks in the middle of its call."""
        return planwarden.Suspend(message="May I?")

    done = await rehearse(kit.tool_step("a", "asks"), kit.tool_step("b", "wait", {"seconds": 3}), tools=[asks])
    assert kit.statuses(done) == {"a": "rehearsed", "b": "rehearsed"}
    assert rehearsed(done)["b:1"][1:] == ("wait", None)


@kit.requirement("rehearsal:nothing-done")
async def test_no_other_run_of_its_thread_or_key_inherits_a_rehearsal_and_no_rehearsal_becomes_a_run() -> None:
    ledger = kit.Ledger()
    note = plan(kit.tool_step("a", "note", {"text": "1"}))
    async with kit.warden(ledger) as w:
        first = await w.execute_plan(note, key="k", options=REHEARSE)
        assert (await w.execute_plan(note, key="k", options=REHEARSE)).execution_id == first.execution_id
        with pytest.raises(KeyConflict):
            await w.execute_plan(note, key="k")
        with pytest.raises(InvalidArguments, match="runs nothing"):
            await w.create_plan("a goal", options=REHEARSE)
        assert ledger.lines == []
        again = await w.execute_plan(note, thread_id=first.thread_id)
        assert (again.status, ledger.lines) == ("completed", ["note 1"])
        spent = plan(FIND, kit.tool_step("b", "note", {"text": "2"}))
        stopped = await w.execute_plan(spent, options={**REHEARSE, "budgets": {"toolCalls": 1}})
        more: Json = {"budgets": {"toolCalls": 9}}
        with pytest.raises(InvalidArguments, match="goes on as one"):
            await w.execute_plan(thread_id=stopped.thread_id, options={"rehearse": False, **more})
        done = await w.execute_plan(thread_id=stopped.thread_id, options=more)
    assert (stopped.status, done.status, ledger.lines) == ("incomplete", "rehearsed", ["note 1"])


def taking(inputs: Json, *steps: Json) -> Json:
    return {"inputs": {"properties": inputs, "required": [*inputs]}, **plan(*steps)}


async def forecast(*steps: Json, takes: Json | None = None, **inputs: JsonValue) -> Forecast:
    written = taking(takes, *steps) if takes else plan(*steps)
    async with kit.warden(kit.Ledger()) as w:
        return await w.service.forecast_plan(written, inputs=inputs or None, principal="local")


@kit.requirement("plan:forecast")
async def test_it_says_whom_each_call_will_ask_and_what_only_the_run_knows() -> None:
    ledger, store = kit.Ledger(), kit.MemoryStore()
    steps = (
        FIND,
        kit.confirm("ask", confirms=["one"]),
        kit.tool_step("one", "erase", {"ids": [1]}),
        kit.tool_step("two", "erase", {"ids": [2]}),
        kit.tool_step("all", "erase", {"ids": IDS}),
        kit.model_step("think", "note"),
        kit.tool_step("last", "wait", {"seconds": 5}),
    )
    script: list[JsonValue] = [{"when": {"purpose": "plan"}, "reply": {"plan": plan(*steps)}}]
    async with kit.warden(ledger, store=store, script=script) as w:
        found = await w.service.forecast_plan(plan(*steps), principal="local")
        assert ledger.lines == [] and await store.executions(None, 10) == ()
        made = await w.create_plan("erase what is old", wait_seconds=60)
    assert [(asking.step_id, asking.asks, asking.needs, asking.confirms) for asking in found.asks] == [
        ("ask", "confirmation", "human", ("one",)),
        ("two", "approval", "human", ()),
    ]
    assert "inbox" in found.asks[1].whom and found.asks[1].because == "calls of this tool are dangerous"
    [bound] = found.only_the_run_knows
    assert (bound.step_id, bound.risk, bound.takes_from) == ("all", "dangerous", ("find",))
    assert found.models == ("think",) and found.impossible == () and found.unseen is None
    assert [step.id for step in found.steps] == [step["id"] for step in steps]
    # A plan that waits has it too; the steps are in its view already.
    assert made.forecast is not None and (made.forecast.asks, made.forecast.steps) == (found.asks, ())


@kit.requirement("plan:forecast", "rehearsal:record", "rehearsal:nothing-done")
async def test_what_a_forecast_says_of_literal_calls_is_what_a_rehearsal_finds_which_uses_no_grant() -> None:
    ledger = kit.Ledger()
    steps = plan(
        kit.tool_step("a", "erase", {"ids": [1]}),
        kit.tool_step("b", "erase", {"ids": [2]}),
        kit.confirm("c", confirms=["d"]),
        kit.tool_step("d", "erase", {"ids": [4]}),
        kit.tool_step("e", "note", {"text": "x"}),
        kit.tool_step("f", "requestInput", {"message": "who?", "form": {"type": "object", "properties": {}}}),
    )
    async with kit.warden(ledger) as w:
        grant = await w.service.grants.make(SECOND, kit.by())
        found = await w.service.forecast_plan(steps, principal="local")
        done = await w.execute_plan(steps, options=REHEARSE, wait_seconds=60)
        [shown] = await w.service.grants.list()
    judged = {step.id: call.rehearsal for step in done.steps for call in step.actual_tool_calls if call.rehearsal}
    asked = [(name, one.asks, one.needs, one.quorum, one.confirms) for name, one in judged.items() if one.asks]
    assert asked == [(a.step_id, a.asks, a.needs, a.quorum, a.confirms) for a in found.asks]
    assert [name for name, *_ in asked] == ["a", "c", "f"]
    assert (judged["b"].grant_id, shown.uses_left, ledger.lines) == (grant.grant_id, 9, [])
    assert (judged["d"].covered_by, judged["d"].asks, judged["c"].risk) == ("c:1", None, "dangerous")


@kit.requirement("plan:forecast")
@pytest.mark.parametrize("wants", [{}, {"forEach": IDS}, {"forEach": [1, 2]}])
async def test_a_confirmation_needs_a_person_for_a_dangerous_call_that_takes_what_the_run_knows(wants: Json) -> None:
    erase = kit.tool_step("erase", "erase", {"ids": IDS}, **wants)
    steps = (FIND, kit.confirm("ask", confirms=["erase"], dependencies=["find"]), erase)
    [asked, *_] = (await forecast(*steps)).asks
    done, _ = await run(*steps)
    [question] = done.suspensions
    assert (asked.step_id, asked.needs) == (question.step_id, question.needs) == ("ask", "human")
    [asked] = (await forecast(kit.confirm("ask", confirms=["note"]), kit.tool_step("note", "note", {"text": "x"}))).asks
    assert asked.needs == "client"


@kit.requirement("plan:forecast")
async def test_a_dangerous_loop_will_ask_once_for_all_rows_and_of_a_condition_only_the_run_knows() -> None:
    loop = kit.tool_step("all", "erase", {"ids": [{"$from": "item"}]}, forEach=IDS)
    judged = kit.tool_step("some", "note", {"text": "x"}, when={"value": IDS, "matches": {"minItems": 1}})
    found = await forecast(FIND, loop, judged)
    [asked] = found.asks
    assert (asked.step_id, asked.needs, asked.for_all_rows) == ("all", "human", True)
    assert "one question for all rows: a person" in asked.sentence
    assert [step.is_conditional for step in found.steps] == [False, False, True] and found.only_the_run_knows == ()
    # The graph has the loop as a step that asks.
    assert (found.graph or "").count("==>") == 2 and 'n1{{"all' in (found.graph or "")


@kit.requirement("plan:forecast")
async def test_whether_a_loop_asks_is_open_where_a_grant_or_a_rule_looks_at_its_rows() -> None:
    loop = kit.tool_step("all", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2])
    noted = kit.tool_step("notes", "note", {"text": {"$from": "item"}}, forEach=["a"])
    rules = build_rule_book([{"tool": "note", "when": {"text": {"prefix": "a"}}, "then": "ask"}])
    async with kit.warden(kit.Ledger(), settings=kit.governed(rules=rules)) as w:
        await w.service.grants.make(SECOND, kit.by())
        found = await w.service.forecast_plan(plan(loop, noted), principal="local")
    assert [open_now.step_id for open_now in found.only_the_run_knows] == ["all", "notes"] and found.asks == ()


@kit.requirement("plan:forecast")
async def test_a_step_whose_condition_is_known_not_to_hold_will_be_skipped_with_what_takes_its_result() -> None:
    big: JsonValue = {"value": {"$from": "inputs", "pointer": "/days"}, "matches": {"minimum": 30}}
    steps = (
        kit.tool_step("send", "erase", {"ids": [1]}, when=big),
        kit.tool_step("takes", "erase", {"ids": {"$from": "send", "pointer": "/erased"}}),
        kit.tool_step("after", "erase", {"ids": [3]}, dependencies=["send"]),
    )
    takes: Json = {"days": {"type": "integer"}}
    few, many = [await forecast(*steps, takes=takes, days=days) for days in (7, 31)]
    unknown = await forecast(*steps, takes=takes)
    async with kit.warden(kit.Ledger()) as w:
        ran = await w.execute_plan(taking(takes, *steps), inputs={"days": 7}, options=REHEARSE, wait_seconds=60)
    # What it says comes true.
    for steps_of in (few.steps, ran.steps):
        assert [step.skipped_because for step in steps_of] == ["when", "send", None]
    assert [asking.step_id for asking in few.asks] == ["after"] and ":::skipped" in (few.graph or "")
    assert [step.fate for step in few.steps[:2]] == [
        "will be skipped: its condition does not hold",
        "will be skipped, because of send",
    ]
    assert [(step.skipped_because, step.is_conditional) for step in many.steps] == [(None, False)] * 3
    assert [asking.step_id for asking in many.asks] == ["send", "after"]
    assert [step.fate for step in unknown.steps] == ["runs only if its condition holds", "", ""]
    # The same of a condition that cannot be judged: this text is not JSON.
    odd: JsonValue = {"value": {"$from": "inputs", "pointer": "/text", "parse": "json"}, "matches": {}}
    step = kit.tool_step("a", "note", {"text": "x"}, when=odd)
    [unjudged] = (await forecast(step, takes={"text": {"type": "string"}}, text="{")).steps
    assert (unjudged.skipped_because, unjudged.is_conditional) == (None, True)
