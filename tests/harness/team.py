"""Engines on one store that behave as processes of their own, and a person who answers them truthfully.

Nothing here waits for time. Calls are held at gates, clocks are set, and the clockwork is turned by hand.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.question import Question
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import Plan
from planwarden.agent.core.plan.plan_parser import parse_plan
from planwarden.agent.core.tool import Effect
from planwarden.agent.ports.model import CallerModel, Model
from planwarden.agent.ports.store import Changes, Header, Store
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.agent.runtime.new_execution import NewExecution, ParsedPlan, PreparedThread
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.storage.clock import ManualClock
from planwarden.tools.base import Tool
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION
from planwarden.tools.registry import Registry
from tests.harness.ledger import Ledger
from tests.storage.suite import BackEnd
from tests.support.fakes import WatchedStore, recording_tool

PRINCIPAL = "ann"
PERSON = Authority(assurance="embedder", channel="test", principal=PRINCIPAL)
YES, NO = Decision(approved=True), Decision(approved=False)
DID_NOT_HAPPEN = Decision(approved=True, content={"happened": False})
FORM: dict[str, JsonValue] = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}


@dataclass
class Acknowledged:
    """What somebody outside was told, and therefore relies on."""

    created: list[str] = field(default_factory=list[str])
    answered: dict[str, bool] = field(default_factory=dict[str, bool])
    """Approved or not, by suspension."""
    finished: dict[str, str] = field(default_factory=dict[str, str])
    """Status by execution."""


@dataclass
class Person:
    """Answers every question, and lets the clock run when only the clock is waited for."""

    engine: Engine
    clock: ManualClock
    ledger: Ledger
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    approves: bool = True
    """What the person says to a call that has not happened."""

    async def drive(self, execution: ExecutionState) -> ExecutionState:
        """Return the finished execution. What is stuck for a minute is stuck for ever."""
        with anyio.fail_after(60):
            while True:
                execution = await self.engine.wait(execution, 60)
                if execution.is_finished:
                    self.acknowledged.finished[execution.execution_id] = execution.status
                    return execution
                if not execution.open_suspensions:
                    self.clock.advance(30)
                    await self.engine.tick()
                for suspension in execution.open_suspensions:
                    execution = await self._answer(execution, suspension.question)

    async def _answer(self, execution: ExecutionState, question: Question) -> ExecutionState:
        if question.addressee == "clock":
            assert question.expires_at is not None
            self.clock.advance(max(0.0, question.expires_at - self.clock.now()))
            await self.engine.tick()
            return await self.engine.find(execution.execution_id)
        decision = self._decide(execution.execution_id, question)
        answered, _ = await self.engine.answer(execution, question.suspension_id, decision, PERSON)
        self.acknowledged.answered[question.suspension_id] = decision.approved is not False
        return answered

    def _decide(self, execution_id: str, question: Question) -> Decision:
        if question.kind == "reconcile":
            return Decision(content=self.ledger.reconcile_answer(f"{execution_id}:{question.call_id}"))
        return Decision(content={"name": "Ada"}) if question.form is not None else Decision(approved=self.approves)


@dataclass
class Gate:
    """Where calls are held; one for each process, so that only one of them is."""

    is_reached: anyio.Event = field(default_factory=anyio.Event)
    may_pass: anyio.Event = field(default_factory=anyio.Event)
    arrivals: int = 0

    async def hold(self) -> None:
        self.arrivals += 1
        self.is_reached.set()
        await self.may_pass.wait()

    async def wait_for(self, arrivals: int) -> None:
        await until(lambda: self.arrivals >= arrivals)


def step(step_id: str, tool: str, *after: str, arguments: JsonValue = None) -> dict[str, JsonValue]:
    calls: JsonValue = [{"toolName": tool, "arguments": arguments or {}}]
    return {"id": step_id, "description": step_id, "dependencies": [*after], "toolCalls": calls}


ASK = step("ask", "displayConfirmation", arguments={"action": "go on?"})
ASK_SOON = step("ask", "displayConfirmation", arguments={"action": "go on?", "timeoutSeconds": 1})
SLOW, MAIL, ALONE = step("slow", "slow"), step("mail", "mail", "ask"), step("mail", "mail")


def engine_on(store: Store, tools: Registry, model: Model | None = None, **options: Any) -> Engine:
    """Return an engine that does not wait for anything when it ends."""
    options.setdefault("grace_s", 0.0)
    return Engine(store, tools, model or CallerModel(), OperatorPolicy(), **options)


class SilentStore(WatchedStore):
    """The store of a process that stands still: it renews no lease and notices nothing that others do, until it wakes.

    What the process had begun goes on all the same.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.is_awake = False

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        if self.is_awake:
            await self.call("renew", lambda: self.inner.renew(owner, execution_ids))

    async def changes(self, since: int) -> Changes:
        return await self.call("changes", lambda: self.inner.changes(since)) if self.is_awake else Changes(since)


class Team:
    """One store, one ledger, and processes that are engines of their own."""

    def __init__(self, back_end: BackEnd, folder: Path) -> None:
        self.back_end, self.clock = back_end, back_end.clock
        self.store = back_end.connect()
        self.ledger = Ledger(folder / "effects")

    def tool(self, name: str, **fields: Any) -> Tool:
        return recording_tool(self.ledger, name, **fields)

    def process(
        self,
        gate: Gate | None = None,
        *,
        tools: Iterable[str | Tool] = ("slow", "mail"),
        effect: Effect = "effect",
        on: Callable[[Store], Store] = lambda store: store,
        **options: Any,
    ) -> Engine:
        """Return an engine whose first tool is held at the gate before it does anything."""
        first, *others = [tool if isinstance(tool, Tool) else self.tool(tool) for tool in tools] or [None]
        if first is not None and (gate is not None or effect == "read"):
            first = self.tool(first.definition.name, effect=effect, before=gate.hold if gate else None)
        made = [tool for tool in (first, *others) if tool is not None]
        return engine_on(on(self.back_end.connect()), Registry([*made, DISPLAY_CONFIRMATION]), **options)

    async def header(self, execution: ExecutionState) -> Header:
        header = await self.store.header(execution.execution_id)
        assert header is not None
        return header

    async def stored(self, execution: ExecutionState) -> ExecutionState:
        return await load_execution(self.store, execution)

    async def kinds(self, execution: ExecutionState) -> list[str]:
        return [type(entry.event).__name__ for entry in await self.store.read(execution.execution_id)]


async def start(engine: Engine, *steps: JsonValue, thread_id: str = "t", goal: str | None = None) -> ExecutionState:
    plan, _ = parse_plan({"todoList": list(steps)}, author="caller", tools=engine.tool_facts())
    return await engine.create(begin(plan, ev.Options(), thread_id, goal))


def begin(plan: Plan | None, options: ev.Options, thread_id: str = "t", goal: str | None = None) -> NewExecution:
    thread, parsed = PreparedThread(thread_id, options), None if plan is None else ParsedPlan(plan)
    return NewExecution(thread=thread, requester=Requester(PRINCIPAL), goal=goal, parsed=parsed)


async def find_question(engine: Engine, execution: ExecutionState) -> Question:
    execution = await engine.wait(await engine.find(execution.execution_id), 60)
    [suspension] = execution.open_suspensions
    return suspension.question


async def answer(
    engine: Engine, execution: ExecutionState, decision: Decision = YES, authority: Authority = PERSON
) -> ExecutionState:
    execution = await engine.find(execution.execution_id)
    [suspension] = execution.open_suspensions
    answered, _ = await engine.answer(execution, suspension.question.suspension_id, decision, authority)
    return answered


async def until(is_so: Callable[[], bool]) -> None:
    """Return when it is so in this process."""
    while not is_so():
        await anyio.lowlevel.checkpoint()


async def until_status(engine: Engine, execution: ExecutionState, status: str) -> ExecutionState:
    """Return the state once some process has brought the execution there."""
    while (execution := await engine.find(execution.execution_id)).status != status:
        with anyio.move_on_after(0.2):
            await engine.wait_for_change(execution)
    return execution
