"""What a process keeps of idle executions: bounded by number and by bytes, whatever is in them."""

import pytest

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.core.state import ExecutionState, new_execution
from planwarden.agent.runtime.known import MAX_IDLE, MAX_IDLE_BYTES, KnownExecutions
from tests.requirements import requirement


def _make_state(name: str, argument: JsonValue) -> ExecutionState:
    call = PlannedCall(tool_name="take", arguments={"x": argument})
    step = PlanStep(step_id="a", description="d", step_type="tool", required_tools=("take",), tool_calls=(call,))
    state = new_execution(name, f"thread of {name}", "local")
    for event in (ev.ExecutionCreated(goal="g"), ev.PlanAccepted(plan=Plan(steps=(step,)))):
        state = apply(state, event, 1.0)
    return state


@requirement("engine:idle-bytes")
@pytest.mark.parametrize("kind", ["text", "integers beyond 64 bits", "half of a surrogate pair"])
def test_idle_executions_with_large_plans_are_dropped_by_their_bytes(kind: str) -> None:
    known = KnownExecutions()
    argument: JsonValue = "x" * 250_000
    if kind != "text":
        argument = [argument, 10**30 if kind.startswith("integers") else "\ud800"]
    for number in range(150):
        known.cache_idle(_make_state(f"e{number}", argument))
    names = [*known.idle]
    assert 10 < len(names) < MAX_IDLE_BYTES // 250_000 and names == [f"e{n}" for n in range(150 - len(names), 150)]
    assert known.find_idle_in_thread("thread of e0") is None and known.find_idle_in_thread("thread of e149") is not None


@requirement("engine:idle-bytes")
def test_one_idle_execution_is_kept_however_large_it_is_and_small_ones_by_number() -> None:
    known = KnownExecutions()
    known.cache_idle(_make_state("large", "x" * (MAX_IDLE_BYTES + 1)))
    assert [*known.idle] == ["large"]
    for number in range(MAX_IDLE + 1):
        known.cache_idle(_make_state(f"e{number}", 1))
    assert len(known.idle) == MAX_IDLE and "large" not in known.idle
