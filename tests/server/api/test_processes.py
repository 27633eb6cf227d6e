"""Processes: whom an execution is said to wait for and really does, and an event loop that stands still."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.runtime.adoption import Adoption
from planwarden.agent.runtime.execution_cache import ExecutionCache
from planwarden.server.api import stalls
from planwarden.server.api.runtime import StorePeers
from planwarden.server.api.stalls import STALLS_FILE, Stalls, StallWatch, describe_stalls, read_stalls
from planwarden.server.api.waiting import describe_missing
from planwarden.storage.sql.processes import ProcessFacts, ProcessRegistry
from tests.harness.ledger import Ledger as EffectLedger
from tests.kit import Ledger, MemoryStore, Registry, Tool, apply, ev, first_only, plan, requirement, tool_step, warden
from tests.support.fakes import recording_tool
from tests.support.loop_time import MAX_TURN_S, measure_longest_turn

LEDGER = EffectLedger(Path("unused"))
"""No tool runs here."""
OLD = {name: recording_tool(LEDGER, name) for name in ("mail", "pay")}
NEW = {name: recording_tool(LEDGER, name, risk="confirm") for name in ("mail", "pay")}


@dataclass(frozen=True)
class Member:
    """One process; in a test the one that started last is named first."""

    name: str
    tools: tuple[Tool, ...]
    policy: str = "new"
    role: str = "worker"

    @property
    def facts(self) -> ProcessFacts:
        return ProcessFacts(
            owner=self.name,
            role=self.role,
            host=self.name,
            pid=1,
            version="1",
            started_at=0.0,
            policy=self.policy,
            tools={tool.definition.name: tool.definition.digest for tool in self.tools},
        )


class Told(ProcessRegistry):
    def __init__(self, living: tuple[ProcessFacts, ...]) -> None:
        self._living = living

    async def publish(self, facts: ProcessFacts) -> None:
        raise AssertionError("nobody publishes here")

    async def living(self) -> tuple[ProcessFacts, ...]:
        return self._living


def running(*tools: str) -> ExecutionState:
    planned = [PlannedCall(tool_name=name, arguments={}) for name in tools]
    step = PlanStep(step_id="s", description="s", step_type="tool", tool_calls=tuple(planned))
    state = apply(new_execution("e1", "t1", "ann"), ev.ExecutionCreated(), 0.0)
    return apply(state, ev.PlanAccepted(plan=Plan(steps=(step,))), 0.0)


async def would_run(member: Member, execution: ExecutionState, living: tuple[ProcessFacts, ...]) -> bool:
    """Whether that process continues the execution as soon as it has room."""
    if member.role == "front":
        return False
    store, tools = MemoryStore(), Registry(member.tools)
    peers = StorePeers(Told(living), store.clock, tools, member.policy)
    await peers.refresh(member.name)
    adoption = Adoption(
        store, member.name, tools, ExecutionCache(), executes=True, concurrency=1, peers=peers, start=_start_nothing
    )
    return adoption.may_run(execution)


def _start_nothing(execution: ExecutionState, lease: object, is_current: bool) -> None:
    raise AssertionError("nothing runs here")


CASES = {
    "nobody runs anything": ([Member("a", (OLD["mail"],), role="front")], "a process that runs executions"),
    "a worker has the tool": ([Member("a", (OLD["mail"],))], "can take it"),
    "no worker has the tool": (
        [Member("a", (OLD["mail"],), role="front"), Member("b", ())],
        "has mail; no living one that runs executions does",
    ),
    "the workers have an older definition": (
        [Member("a", (NEW["mail"],), role="front"), Member("b", (OLD["mail"],))],
        "mail in the version of a:1, the newest process with it",
    ),
    "a worker with the newest definition is there too": (
        [Member("a", (NEW["mail"],)), Member("b", (OLD["mail"],))],
        "can take it",
    ),
    "the workers have an older policy": (
        [Member("a", (OLD["mail"],), role="front"), Member("b", (OLD["mail"],), policy="old")],
        "the policy of a:1, which started last",
    ),
    "only a worker with an older policy has the tool": (
        [Member("a", ()), Member("b", (OLD["mail"],), policy="old")],
        "the policy of a:1, which started last, and has mail",
    ),
    "a worker with an older policy is there too": (
        [Member("a", (OLD["mail"],)), Member("b", (OLD["mail"],), policy="old")],
        "can take it",
    ),
}


@requirement("scale:tools")
@pytest.mark.parametrize(("members", "said"), CASES.values(), ids=CASES)
async def test_what_an_execution_is_said_to_wait_for_is_what_it_waits_for(members: list[Member], said: str) -> None:
    living, execution = tuple(member.facts for member in members), running("mail")
    text = describe_missing(execution, living)
    assert said in text
    assert ("can take it" in text) is any([await would_run(member, execution, living) for member in members])


async def test_tools_that_no_single_process_has_together_are_named_together() -> None:
    members = [Member("a", (NEW["mail"],)), Member("b", (OLD["mail"], OLD["pay"]))]
    living, execution = tuple(member.facts for member in members), running("mail", "pay")
    assert "one process that has all of mail, pay" in describe_missing(execution, living)
    assert not any([await would_run(member, execution, living) for member in members])


@requirement("server:stalls")
def test_a_stall_is_logged_told_from_a_stop_and_kept_where_that_is_possible(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = StallWatch(tmp_path / STALLS_FILE)
    watch.note(0.05, 0.05, now=1.0, at=100.0)
    assert read_stalls(tmp_path) is None
    watch.note(2.5, 2.4, now=2.0, at=101.0)
    assert "the event loop stood still 1 time, at most 2.50 s" in caplog.text
    assert "something computed without a pause" in caplog.text
    assert read_stalls(tmp_path) == Stalls(1, 2.5, 2.4, 101.0)
    assert "was stopped, or the machine" in describe_stalls(Stalls(1, 60.0, 0.01, 0.0))
    StallWatch(tmp_path / "gone" / STALLS_FILE).note(5.0, 5.0, now=1.0, at=5.0)
    assert read_stalls(tmp_path / "gone") is None


def test_the_file_is_bounded_and_damage_in_it_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / STALLS_FILE
    path.write_bytes(b"not JSON\n[1]\n" + b"x" * stalls.MAX_STALLS_BYTES)
    watch = StallWatch(path)
    watch.note(0.3, 0.1, now=1.0, at=5.0)
    assert path.stat().st_size < 200
    assert read_stalls(tmp_path) == Stalls(1, 0.3, 0.1, 5.0)


STEPS = [
    tool_step(f"s{number}", "find", {"topic": "x", "limit": [{"a": value} for value in range(500)]})
    for number in range(45)
]
"""With 45,000 values, so that a parser needs longer than the loop may be kept; their faults let nothing of it run."""


async def submit_plan(w: planwarden.Warden) -> None:
    asked = await w.run_goal("find it")
    [question] = asked.suspensions
    answered = await w.submit_answer(asked.thread_id, question.suspension_id, plan(*STEPS))
    assert answered.suspensions[0].kind == "plan"


async def submit_revision(w: planwarden.Warden) -> None:
    asked = await w.execute_plan(plan({"id": "think", "description": "think", "stepType": "reasoning"}))
    [question] = asked.suspensions
    patch: list[JsonValue] = [{"op": "add", "step": step} for step in STEPS]
    await w.submit_answer(asked.thread_id, question.suspension_id, {"content": "thought", "revise": patch})


async def execute(w: planwarden.Warden) -> None:
    with pytest.raises(InvalidPlan):
        await w.execute_plan(plan(*STEPS))


async def take_from_provider(w: planwarden.Warden) -> None:
    await w.run_goal("find it")


REPLY: JsonValue = {"reply": {"plan": plan(*STEPS)}}


@requirement("mcp:bounded-answers")
@pytest.mark.parametrize(
    ("hand_in", "replies"),
    first_only((submit_revision, 0), (execute, 0), (submit_plan, 0), (take_from_provider, 12), keep=2),
)
async def test_a_large_plan_keeps_no_other_request_waiting(
    hand_in: Callable[[planwarden.Warden], Awaitable[None]], replies: int
) -> None:
    async with warden(Ledger(), script=[REPLY] * replies or None) as w:
        longest, _ = await measure_longest_turn(lambda: hand_in(w))
    assert longest < MAX_TURN_S
