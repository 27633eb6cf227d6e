"""Whom an execution waits for: what is said must agree with who would really continue it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.core.state import ExecutionState, new_execution
from planwarden.agent.runtime.adoption import Adoption
from planwarden.agent.runtime.execution_cache import ExecutionCache
from planwarden.server.api.peers import StorePeers
from planwarden.server.api.waiting import describe_missing
from planwarden.storage.ports.processes import ProcessFacts
from planwarden.tools.base import Tool
from planwarden.tools.registry import Registry
from tests.harness.ledger import Ledger
from tests.kit import MemoryStore, requirement
from tests.support.fakes import recording_tool

pytestmark = pytest.mark.anyio

LEDGER = Ledger(Path("unused"))
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


class Told:
    """A registry of what a test says."""

    def __init__(self, living: tuple[ProcessFacts, ...]) -> None:
        self._living = living

    async def publish(self, facts: ProcessFacts) -> None:
        raise AssertionError("nobody publishes here")

    async def living(self) -> tuple[ProcessFacts, ...]:
        return self._living


def running(*tools: str) -> ExecutionState:
    """An execution whose plan calls these tools."""
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
        store, member.name, tools, ExecutionCache(), follows=True, concurrency=1, peers=peers, start=_start_nothing
    )
    return adoption.may_run(execution)


def _start_nothing(execution: ExecutionState, lease: object, *, is_current: bool) -> None:
    raise AssertionError("nothing runs here")


CASES = {
    "nobody runs anything": ([Member("a", (OLD["mail"],), role="front")], "a process that runs executions"),
    "a worker has the tool": ([Member("a", (OLD["mail"],))], "has room"),
    "no worker has the tool": (
        [Member("a", (OLD["mail"],), role="front"), Member("b", ())],
        "has mail; no living one that runs executions does",
    ),
    "the workers have an older definition": (
        [Member("a", (NEW["mail"],), role="front"), Member("b", (OLD["mail"],))],
        "mail as a:1, which started last with it, has it",
    ),
    "a worker with the newest definition is there too": (
        [Member("a", (NEW["mail"],)), Member("b", (OLD["mail"],))],
        "has room",
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
        "has room",
    ),
}


@requirement("scale:tools")
@pytest.mark.parametrize(("members", "said"), CASES.values(), ids=CASES)
async def test_what_an_execution_is_said_to_wait_for_is_what_it_waits_for(members: list[Member], said: str) -> None:
    living, execution = tuple(member.facts for member in members), running("mail")
    text = describe_missing(execution, living)
    assert said in text
    assert ("has room" in text) is any([await would_run(member, execution, living) for member in members])


async def test_tools_that_no_single_process_has_together_are_named_together() -> None:
    members = [Member("a", (NEW["mail"],)), Member("b", (OLD["mail"], OLD["pay"]))]
    living, execution = tuple(member.facts for member in members), running("mail", "pay")
    assert "one process that has all of mail, pay" in describe_missing(execution, living)
    assert not any([await would_run(member, execution, living) for member in members])
