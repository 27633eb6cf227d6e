"""What runs while processes die: everything that outlives them, and what it comes to in the end."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import CommitUnknown, ToolError
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.policy import OnceRule
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.server.settings.rules import build_rule_book
from planwarden.storage.clock import ManualClock
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION, REQUEST_INPUT, WAIT
from planwarden.tools.registry import Registry
from tests.harness.ledger import Ledger
from tests.harness.team import FORM, Acknowledged, Person, begin, engine_on, start
from tests.kit import CallerModel, Decision, Engine, Store, confirm, ev, find_engine, governed, plan, tool_step, warden
from tests.support.fakes import UnreachableModel, WatchedStore, recording_tool

Outcome = dict[str, JsonValue]


class World(ABC):
    """One run of something, through the lives of several processes."""

    promised: ClassVar[Outcome]
    """What is part of its outcome in any case."""

    async def prepare(self, store: Store) -> None:
        """Do what no process dies of."""
        del store

    @abstractmethod
    async def live(self, store: Store) -> None:
        """Be a process, which may die at any call to its store."""

    @abstractmethod
    async def finish(self, store: Store) -> Outcome:
        """Be a process that is left in peace. Return what must be the same wherever the others died."""


PLAN = (
    tool_step("find", "find", {"city": "Łódź"}),
    confirm("confirm", "Book it", confirms=["book"], dependencies=["find"]),
    tool_step("book", "book", {"city": {"$from": "find", "pointer": "/city"}}, dependencies=["confirm"]),
    tool_step("ask", "requestInput", {"message": "Who?", "form": FORM}, dependencies=["find"]),
    tool_step("wait", "wait", {"seconds": 30}, dependencies=[]),
    tool_step("mail", "mail", {"to": {"$from": "ask", "pointer": "/content/name"}}, dependencies=["book", "wait"]),
)
"""Six steps: a read, a confirmation that covers a dangerous effect, a form, a wait, and an effect at the end."""


def _reply(when: str, **reply: JsonValue) -> JsonValue:
    return {"when": {"purpose": when} if when in ("plan", "synthesize") else {"stepId": when}, "reply": reply}


def _call(tool: str, **arguments: JsonValue) -> JsonValue:
    return [{"toolName": tool, "arguments": arguments}]


STEPS: JsonValue = [
    {"id": "look", "description": "Find a seat", "requiredTools": ["find"]},
    {"id": "book", "description": "Book it", "requiredTools": ["book", "mail"]},
    {"id": "sum", "description": "Say what happened", "stepType": "reasoning"},
]
SCRIPT: JsonValue = {
    "replies": [
        _reply("plan", plan={"todoList": STEPS}),
        _reply("look", content="I have searched and found a seat."),
        _reply("look", toolCalls=_call("find", city="Łódź"), inputTokens=7),
        _reply("book", toolCalls=_call("book", city="Łódź")),
        _reply("book", toolCalls=_call("mail", to="Ada")),
        _reply("sum", content="A seat was booked."),
        _reply("synthesize", content="Done: one seat in Łódź."),
    ]
}


SCENARIOS: dict[str, Callable[[], Model]] = {
    "plan": CallerModel,
    "model": lambda: ScriptedModel(SCRIPT),
    "outage": lambda: UnreachableModel(ScriptedModel(SCRIPT)),
}
"""What to run to its end, with effects on the way: the plan of the caller, or a goal with a model."""


class Play(World):
    """A scenario with people who answer truthfully, and what they were told."""

    promised: ClassVar[Outcome] = {"status": "completed", "effects": ["book", "mail"], "lost": []}

    def __init__(self, scenario: str, folder: Path, clock: ManualClock) -> None:
        self.model, self.clock = SCENARIOS[scenario], clock
        self.ledger = Ledger(folder / "effects")
        self.acknowledged = Acknowledged()

    def registry(self) -> Registry:
        """A read, a dangerous effect and a harmless effect, and the tools that ask."""
        find = recording_tool(self.ledger, "find", effect="read")
        book = recording_tool(self.ledger, "book", risk="dangerous")
        return Registry([find, book, recording_tool(self.ledger, "mail"), DISPLAY_CONFIRMATION, REQUEST_INPUT, WAIT])

    async def live(self, store: Store) -> None:
        inner = store.inner if isinstance(store, WatchedStore) else store
        async with engine_on(store, self.registry(), self.model()) as engine:
            person = Person(engine, self.clock, self.ledger, self.acknowledged)
            is_over = False
            while not is_over:
                with suppress(CommitUnknown):
                    known = await inner.executions(None, 10)
                    if not known and not self.acknowledged.created:
                        created = await self._create(engine)
                        self.acknowledged.created.append(created.execution_id)
                        known = (created,)
                    for execution in known:
                        await person.drive(await engine.find(execution.execution_id))
                    is_over = True

    async def _create(self, engine: Engine) -> ExecutionState:
        if self.model is CallerModel:
            return await start(engine, *PLAN)
        return await engine.create(begin(None, ev.Options(synthesize=True), goal="Book a seat"))

    async def finish(self, store: Store) -> Outcome:
        await self.live(store)
        headers = await store.executions(None, 10)
        states = {header.execution_id: await load_execution(store, header) for header in headers}
        effects: list[JsonValue] = [*sorted(line.facts["tool"] for line in self.ledger.lines("done"))]
        came_to: Outcome = {"effects": [tool for tool in effects if tool != "find"], "lost": self._list_lost(states)}
        for state in states.values():
            came_to["status"] = state.status
            came_to["steps"] = {name: [step.status, step.result] for name, step in state.steps.items()}
            came_to["output"], came_to["model calls"] = state.synthesis, state.usage.model_calls
        return came_to

    def _list_lost(self, states: dict[str, ExecutionState]) -> list[JsonValue]:
        told, answers = self.acknowledged, dict[str, object]()
        for state in states.values():
            for name, asked in state.suspensions.items():
                answers[name] = None if asked.decision is None else asked.decision.approved is not False
        lost: list[JsonValue] = [f"execution {name}" for name in told.created if name not in states]
        lost += [f"answer to {name}" for name, approved in told.answered.items() if answers.get(name) != approved]
        ends = told.finished.items()
        return lost + [f"end of {name}" for name, end in ends if name not in states or states[name].status != end]


RULE: dict[str, JsonValue] = {"tool": "pay", "then": "allow", "budget": [{"sum": "amount", "limit": 100, "per": "day"}]}
SETTINGS = governed(
    rules=build_rule_book([RULE]), once={"pay": OnceRule(("/payment_id",), 86_400.0)}, facts={"rules": [RULE]}
)


def pay(payment_id: str, amount: float) -> dict[str, JsonValue]:
    return plan(tool_step("a", "pay", {"payment_id": payment_id, "amount": amount}))


FIRST, FLAKY = pay("p-7", 60), pay("flaky", 30)


class Till(World):
    """`pay` passes by a rule while its budget has room; the first call of `flaky` fails and does nothing.

    In the end other plans try the same payments once more.
    """

    promised: ClassVar[Outcome] = {
        "paid": ["flaky", "p-7", "p-9"],
        "refused": True,
        "over": "suspended",
        "within": "completed",
    }

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.clock, self.ledger, self.has_failed = clock, Ledger(folder / "effects"), False

    def tools(self) -> list[object]:
        @planwarden.tool()
        async def pay(payment_id: str, amount: float, context: planwarden.CallContext) -> str:
            """Pay."""
            if payment_id == "flaky" and not self.has_failed:
                self.has_failed = True
                raise planwarden.ToolError("busy", retryable=True)
            self.ledger.write("done", key=context.idempotency_key, tool=payment_id, value=payment_id)
            return payment_id

        return [pay]

    async def live(self, store: Store) -> None:
        async with warden(tools=self.tools(), store=store, settings=SETTINGS) as dying:
            for document in (FIRST, FIRST, FLAKY):
                await dying.execute_plan(document, wait_seconds=60)

    async def finish(self, store: Store) -> Outcome:
        ends = list[str]()
        async with warden(tools=self.tools(), store=store, settings=SETTINGS) as made:
            engine = find_engine(made)
            # Nobody lets a spent budget be exceeded.
            person = Person(engine, self.clock, self.ledger, approves=False)
            for header in await store.executions(None, 10):
                await person.drive(await engine.find(header.execution_id))
            for document in (FIRST, FIRST, FLAKY, FLAKY):
                view = await made.execute_plan(document, wait_seconds=60)
                done = await person.drive(await engine.find(view.execution_id))
                ends.append(done.error_code or done.status)
            # 60 and 30 of 100 are taken, whatever happened, and no more.
            over = await made.execute_plan(pay("p-8", 11), wait_seconds=60)
            within = await made.execute_plan(pay("p-9", 10), wait_seconds=60)
        paid: list[JsonValue] = [*sorted(self.ledger.tools_run())]
        return {"paid": paid, "refused": "duplicate_effect" in ends, "over": over.status, "within": within.status}


RETRIED = plan(tool_step("one", "note"), tool_step("two", "mend"), confirm("ask"), tool_step("three", "note"))


class Workshop(World):
    """A plan that fails until somebody has repaired `mend`, and is then retried.

    In the end somebody retries it again if the first retry left no trace.
    """

    promised: ClassVar[Outcome] = {"status": "completed", "is retry": True, "tools": ["note", "mend", "note"]}

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.clock, self.ledger, self.is_mended = clock, Ledger(folder / "effects"), False
        self.thread_id = self.failed_id = ""

    def tools(self) -> list[object]:
        async def check() -> None:
            if not self.is_mended:
                raise ToolError("it is broken")

        return [recording_tool(self.ledger, "note"), recording_tool(self.ledger, "mend", before=check)]

    async def prepare(self, store: Store) -> None:
        async with warden(tools=self.tools(), store=store) as made:
            failed = await made.execute_plan(RETRIED)
        assert failed.status == "failed"
        self.is_mended, self.thread_id, self.failed_id = True, failed.thread_id, failed.execution_id

    async def live(self, store: Store) -> None:
        async with warden(tools=self.tools(), store=store) as dying:
            view = await dying.retry(self.thread_id, wait_seconds=60)
            [question] = view.suspensions
            await dying.resume_execution(self.thread_id, question.suspension_id, Decision(approved=True))

    async def finish(self, store: Store) -> Outcome:
        async with warden(tools=self.tools(), store=store) as made:
            view = await made.get_execution(self.thread_id)
            if view.execution_id == self.failed_id:
                view = await made.retry(self.thread_id, wait_seconds=0)
            person = Person(find_engine(made), self.clock, self.ledger)
            done = await person.drive(await made.service.find(view.execution_id))
        tools: list[JsonValue] = [*self.ledger.tools_run()]
        return {"status": done.status, "is retry": view.retry_of == self.failed_id, "tools": tools}


def _play(scenario: str) -> Callable[[Path, ManualClock], World]:
    return lambda folder, clock: Play(scenario, folder, clock)


WORLDS: dict[str, Callable[[Path, ManualClock], World]] = {
    **{name: _play(name) for name in SCENARIOS},
    "once": Till,
    "retry": Workshop,
}
