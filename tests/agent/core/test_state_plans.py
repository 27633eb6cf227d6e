"""Random plans in the real engine: they end or wait for an answer, in order; nothing runs after a rejection.

Plans are graphs of steps that read, act, fail, ask, wait or need the model; every answer is random. The test then
replays the log and checks each guarantee at the event that it concerns.
"""

from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import ToolError
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.plan import PlanStep
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.agent.runtime.engine import Engine
from planwarden.tools.base import Tool, define
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION, REQUEST_INPUT, WAIT
from tests.harness.team import FORM, PERSON, begin, engine_on
from tests.kit import CallerModel, Decision, ManualClock, MemoryStore, Registry, apply, ev, parse_plan, requirement

KINDS = ("find", "book", "erase", "break", "confirm", "input", "wait", "think", "asked")
MAX_ROUNDS = 60


async def _break(arguments: dict[str, JsonValue], context: CallContext) -> object:
    raise ToolError("it is broken")


BROKEN = Tool(
    define(ToolDefinition(name="break", description="Fails.", input_schema={"type": "object"}, risk="read")), _break
)


@st.composite
def plans(draw: st.DrawFn) -> JsonValue:
    """One to six steps; a step depends on earlier steps only, and a confirmation step covers later steps only."""
    count = draw(st.integers(1, 6))
    steps: list[JsonValue] = []
    for number in range(count):
        kind = draw(st.sampled_from(KINDS))
        step: dict[str, JsonValue] = {"id": f"s{number}", "description": f"{kind} something"}
        earlier = [f"s{n}" for n in range(number)]
        if draw(st.booleans()):
            step["dependencies"] = list[JsonValue](
                draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
            )
        if kind == "asked":
            step["requiredTools"] = ["find"]
        elif kind != "think":
            step["toolCalls"] = [_call(draw, kind, earlier)]
        later = [f"s{n}" for n in range(number + 1, count)]
        if kind == "confirm" and later:
            step["confirms"] = list[JsonValue](draw(st.lists(st.sampled_from(later), unique=True)))
        step["onReject"] = draw(st.sampled_from(["skip", "stop", "continue"]))
        step["toolValidationMode"] = draw(st.sampled_from(["strict", "strict", "advisory"]))
        steps.append(step)
    return {"todoList": steps}


def _call(draw: st.DrawFn, kind: str, earlier: list[str]) -> JsonValue:
    taken: JsonValue = {"$from": draw(st.sampled_from(earlier))} if earlier and draw(st.booleans()) else "x"
    arguments: dict[str, dict[str, JsonValue]] = {
        "confirm": {"action": "Go on?", "details": taken, **draw(st.sampled_from([{}, {"timeoutSeconds": 50}]))},
        "input": {"message": "Who?", "form": FORM},
        "wait": {"seconds": 100},
    }
    names = {"confirm": "displayConfirmation", "input": "requestInput"}
    return {"toolName": names.get(kind, kind), "arguments": arguments.get(kind, {"value": taken})}


def _tools(ran: list[str]) -> Registry:
    """`find` reads, `book` acts, `erase` claims to read and is dangerous; they note that they ran."""

    def build(name: str, **more: Any) -> Tool:
        async def call(arguments: dict[str, JsonValue], context: CallContext) -> object:
            ran.append(name)
            return {"done": name}

        shape: dict[str, JsonValue] = {"type": "object", "properties": {"value": {}}}
        return Tool(define(ToolDefinition(name=name, description=name, input_schema=shape, **more)), call)

    return Registry(
        [
            build("find", risk="read", effect="read"),
            build("book", risk="read", effect="effect"),
            build("erase", risk="dangerous", effect="read"),
            *(BROKEN, DISPLAY_CONFIRMATION, REQUEST_INPUT, WAIT),
        ]
    )


def _answer(data: st.DataObject, question: ev.Question) -> Decision | None:
    if question.addressee == "clock" or (question.expires_at is not None and data.draw(st.booleans())):
        return None
    if not data.draw(st.integers(0, 3)):
        return Decision(approved=False, reason="no")
    if question.addressee == "caller":
        called: JsonValue = [{"toolName": data.draw(st.sampled_from(["find", "book"])), "arguments": {"value": 1}}]
        return Decision(content=data.draw(st.sampled_from([{"content": "prose"}, {"toolCalls": called}])))
    return Decision(content={"name": "Ada"}) if question.form is not None else Decision(approved=True)


async def _run(data: st.DataObject, plan: JsonValue) -> tuple[ExecutionState, tuple[ev.Recorded, ...]]:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with engine_on(store, _tools([]), CallerModel()) as engine:
        parsed, _ = parse_plan(plan, author="caller", tools=engine.tool_facts())
        options = ev.Options(max_iterations=2, budget_tool_calls=data.draw(st.sampled_from([None, None, 1, 2, 3])))
        execution = await engine.create(begin(parsed, options))
        for _ in range(MAX_ROUNDS):
            with anyio.fail_after(60):
                execution = await engine.wait(execution, 60)
            if execution.status == "incomplete":
                assert execution.usage.tool_calls == execution.options.budget_tool_calls
                execution = await engine.start(execution, replace(options, budget_tool_calls=None))
                continue
            if execution.is_finished:
                return execution, await store.read(execution.execution_id)
            assert execution.status == "suspended" and execution.open_suspensions, (
                "suspended without an open suspension"
            )
            execution = await _one_answer(data, engine, clock, execution)
    raise AssertionError(f"not finished after {MAX_ROUNDS} answers")


async def _one_answer(
    data: st.DataObject, engine: Engine, clock: ManualClock, execution: ExecutionState
) -> ExecutionState:
    question = data.draw(st.sampled_from(execution.open_suspensions)).question
    answer = _answer(data, question)
    if answer is not None:
        execution, _ = await engine.answer(execution, question.suspension_id, answer, PERSON)
        return execution
    assert question.expires_at is not None
    clock.advance(max(0.0, question.expires_at - clock.now()))
    await engine.tick()
    return await engine.find(execution.execution_id)


def _may_start(before: ExecutionState, step: PlanStep) -> bool:
    """Whether every dependency is completed, or was rejected in a plan that continues after that."""
    for name in step.dependencies:
        needed = before.steps[name]
        continues = needed.status == "rejected" and needed.step.on_reject == "continue"
        if needed.status != "completed" and (not continues or step.step_id in needed.step.confirms):
            return False
    stopped = [s for s in before.steps.values() if s.status == "rejected" and s.step.on_reject == "stop"]
    return not stopped


def _replay(execution: ExecutionState, log: tuple[ev.Recorded, ...]) -> ExecutionState:
    state = new_execution(execution.execution_id, execution.thread_id, execution.principal)
    for entry in log:
        match entry.event:
            case ev.StepStarted(step_id=step_id):
                assert _may_start(state, state.steps[step_id].step), f"{step_id} started too early"
            case ev.ToolCallIntended(call_id=call_id, suspension_id=used):
                call, consumed = state.call(call_id), state.suspensions.get(used or "")
                is_approved = consumed is not None and consumed.decision is not None and consumed.decision.approved
                assert call.attempts == 0, f"{call_id} was dispatched twice"
                assert call.tool_name != "erase" or is_approved, f"{call_id} without approval"
            case _:
                pass
        state = apply(state, entry.event, entry.at)
    return state


@requirement("plan:ends", "plan:order", "state:fold")
@given(data=st.data(), plan=plans())
def test_any_plan_ends_in_order_and_nothing_runs_after_a_rejection(data: st.DataObject, plan: JsonValue) -> None:
    execution, log = anyio.run(_run, data, plan)
    assert _replay(execution, log) == execution
    assert [entry.sequence for entry in log] == list(range(1, len(log) + 1))
    for state in execution.steps.values():
        if state.status == "skipped":
            assert not [call for call in state.calls if call.attempts or call.status != "proposed"]
        if state.status == "completed" and state.validation == "passed":
            proven = {call.tool_name for call in state.calls if call.status == "succeeded"}
            assert set(state.step.required_tools) <= proven
    statuses = {state.status for state in execution.steps.values()}
    assert statuses <= {"completed", "rejected", "failed", "skipped"}
    assert ("failed" in statuses) == (execution.status == "failed")
    assert execution.status in ("completed", "rejected", "failed")


@requirement("rehearsal:nothing-done", "plan:ends")
@given(plan=plans(), tool_mode=st.sampled_from(["strict", "flexible"]), content=st.sampled_from(["find", "book", ""]))
def test_any_plan_can_be_rehearsed_and_then_nothing_but_reads_has_run(
    plan: JsonValue, tool_mode: ev.ToolMode, content: str
) -> None:
    async def rehearse() -> ExecutionState:
        called: JsonValue = [{"toolName": content, "arguments": {"value": 1}}]
        answer = Decision(content={"toolCalls": called} if content else {"content": "prose"})
        async with engine_on(MemoryStore(ManualClock()), _tools(ran), CallerModel()) as engine:
            parsed, _ = parse_plan(plan, author="caller", tools=engine.tool_facts())
            options = ev.Options(max_iterations=2, rehearse=True, tool_mode=tool_mode)
            execution = await engine.create(begin(parsed, options))
            with anyio.fail_after(60):
                while not (execution := await engine.wait(execution, 60)).is_finished:
                    [asked, *_] = execution.open_suspensions
                    assert asked.question.addressee == "caller"
                    execution, _ = await engine.answer(execution, asked.question.suspension_id, answer, PERSON)
        return execution

    ran: list[str] = []
    execution = anyio.run(rehearse)
    assert set(ran) <= {"find"} and execution.status == "rehearsed"
    assert {state.status for state in execution.steps.values()} <= {"completed", "failed", "skipped", "rehearsed"}
    for state in execution.steps.values():
        for call in state.calls:
            assert call.tool_name == "find" or not call.attempts
            assert (call.status == "rehearsed") is (call.rehearsed is not None)
