"""What is run while processes die: two scenarios, a person who answers truthfully, and the check afterwards.

The person is told what to answer by the ledger of effects, as a careful operator would look into the booking system
before saying that a call happened. The check compares what is stored, what the ledger shows and what was acknowledged.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import Engine
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.base import Tool
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION, REQUEST_INPUT, WAIT
from planwarden.tools.registry import Registry
from tests.support.fakes import EffectLedger, UnreachableModel, recording_tool

PRINCIPAL = "ann"
PERSON = Authority(assurance="embedder", channel="test", principal=PRINCIPAL)
FORM: dict[str, JsonValue] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}},
}


def plan_document(wait_s: float) -> JsonValue:
    """Six steps: a read, a confirmation that covers a dangerous effect, a form, a wait, and an effect at the end."""
    find: JsonValue = {"toolName": "find", "arguments": {"city": "Łódź"}}
    confirm: JsonValue = {
        "toolName": "displayConfirmation",
        "arguments": {"action": "Book it", "details": {"$from": "find"}},
    }
    book: JsonValue = {"toolName": "book", "arguments": {"city": {"$from": "find", "pointer": "/city"}}}
    ask: JsonValue = {"toolName": "requestInput", "arguments": {"message": "Who?", "form": FORM}}
    wait: JsonValue = {"toolName": "wait", "arguments": {"seconds": wait_s}}
    mail: JsonValue = {"toolName": "mail", "arguments": {"to": {"$from": "ask", "pointer": "/content/name"}}}
    return {
        "todoList": [
            {"id": "find", "description": "Find a seat", "toolCalls": [find]},
            {"id": "confirm", "description": "Ask before booking", "toolCalls": [confirm], "confirms": ["book"]},
            {"id": "book", "description": "Book the seat", "toolCalls": [book]},
            {"id": "ask", "description": "Whom to tell", "dependencies": ["find"], "toolCalls": [ask]},
            {"id": "wait", "description": "Let it settle", "dependencies": [], "toolCalls": [wait]},
            {"id": "mail", "description": "Tell them", "dependencies": ["book", "wait"], "toolCalls": [mail]},
        ]
    }


SCRIPT: JsonValue = {
    "replies": [
        {
            "when": {"purpose": "plan"},
            "reply": {
                "plan": {
                    "todoList": [
                        {"id": "look", "description": "Find a seat", "requiredTools": ["find"]},
                        {"id": "book", "description": "Book it", "requiredTools": ["book", "mail"]},
                        {"id": "sum", "description": "Say what happened", "stepType": "reasoning"},
                    ]
                }
            },
        },
        {"when": {"stepId": "look"}, "reply": {"content": "I have searched and found a seat."}},
        {
            "when": {"stepId": "look"},
            "reply": {"toolCalls": [{"toolName": "find", "arguments": {"city": "Łódź"}}], "inputTokens": 7},
        },
        {"when": {"stepId": "book"}, "reply": {"toolCalls": [{"toolName": "book", "arguments": {"city": "Łódź"}}]}},
        {"when": {"stepId": "book"}, "reply": {"toolCalls": [{"toolName": "mail", "arguments": {"to": "Ada"}}]}},
        {"when": {"stepId": "sum"}, "reply": {"content": "A seat was booked."}},
        {"when": {"purpose": "synthesize"}, "reply": {"content": "Done: one seat in Łódź."}},
    ]
}


def scenario_tools(ledger: EffectLedger, around: Callable[[], Awaitable[None]] | None = None) -> list[Tool]:
    """A read, a dangerous effect and a harmless effect, and the tools that ask; `around` wraps each."""
    return [
        recording_tool(ledger, "find", effect="read", before=around, after=around),
        recording_tool(ledger, "book", risk="dangerous", before=around, after=around),
        recording_tool(ledger, "mail", before=around, after=around),
        DISPLAY_CONFIRMATION,
        REQUEST_INPUT,
        WAIT,
    ]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something to run to its end, with effects on the way."""

    goal: str | None
    plan: JsonValue
    model: Callable[[], Model]
    options: ev.Options

    async def create(self, engine: Engine) -> ExecutionState:
        plan = None
        if self.plan is not None:
            plan, _ = parse_plan(self.plan, author="caller", tools=engine.tool_facts())
        return await engine.create(
            thread_id=engine.ids.new(), requester=Requester(PRINCIPAL), goal=self.goal, plan=plan, options=self.options
        )


SCENARIOS = {
    "plan": Scenario(None, plan_document(30), CallerModel, ev.Options()),
    "model": Scenario("Book a seat", None, lambda: ScriptedModel(SCRIPT), ev.Options(synthesize=True)),
    "outage": Scenario(
        "Book a seat", None, lambda: UnreachableModel(ScriptedModel(SCRIPT)), ev.Options(synthesize=True)
    ),
}


def engine_on(store: Store, tools: Registry, model: Model, *, adopts: bool = True) -> Engine:
    """An engine that does not wait for anything when it ends."""
    return Engine(store, tools, model, OperatorPolicy(), adopts=adopts, grace_s=0.0)


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
    """Answers every question and lets the clock run when only the clock is waited for."""

    engine: Engine
    clock: ManualClock
    ledger: EffectLedger
    acknowledged: Acknowledged

    async def drive(self, execution: ExecutionState) -> ExecutionState:
        """The finished execution. Whoever is stuck for ten seconds is stuck for ever."""
        with anyio.fail_after(60):
            while True:
                execution = await self.engine.wait(execution, 60)
                if execution.is_finished:
                    self.acknowledged.finished[execution.execution_id] = execution.status
                    return execution
                for found in execution.open_suspensions:
                    execution = await self._answer(execution, found.question)

    async def _answer(self, execution: ExecutionState, question: ev.Question) -> ExecutionState:
        if question.addressee == "clock":
            assert question.expires_at is not None
            self.clock.advance(max(0.0, question.expires_at - self.clock.now()))
            await self.engine.tick()
            return await self.engine.find(execution.execution_id)
        decision = truthful_answer(execution.execution_id, question, self.ledger)
        answered, _ = await self.engine.answer(execution, question.suspension_id, decision, PERSON)
        self.acknowledged.answered[question.suspension_id] = True
        return answered


async def undisturbed(folder: Path, scenario: Scenario) -> JsonValue:
    """What the scenario comes to when nothing dies."""
    clock, ledger = ManualClock(), EffectLedger(folder / "effects")
    store = SqliteStore.open(folder / "planwarden.db", clock=clock)
    async with engine_on(store, Registry(scenario_tools(ledger)), scenario.model()) as engine:
        person = Person(engine, clock, ledger, Acknowledged())
        execution = await person.drive(await scenario.create(engine))
    await store.close()
    assert execution.status == "completed"
    return outcome(execution)


def truthful_answer(execution_id: str, question: ev.Question, ledger: EffectLedger) -> Decision:
    if question.kind == "reconcile":
        return Decision(content=ledger.reconcile_answer(f"{execution_id}:{question.call_id}"))
    return Decision(content={"name": "Ada"}) if question.form is not None else Decision(approved=True)


def outcome(execution: ExecutionState) -> JsonValue:
    """What the execution came to, without ids and times."""
    return {
        "status": execution.status,
        "steps": {name: [state.status, state.validation, state.result] for name, state in execution.steps.items()},
        "output": execution.synthesis,
        "model calls": execution.usage.model_calls,
    }


def violations(
    acknowledged: Acknowledged, ledger: EffectLedger, executions: dict[str, ExecutionState], expected: JsonValue
) -> list[str]:
    """Every way in which durability was broken; empty when it held. `executions` are the final states by id."""
    found = [f"effect {key} happened {count} times" for key, count in ledger.effects().items() if count > 1]
    found.extend(_lost(acknowledged, executions))
    tools_by_key = {entry.key: entry.tool_name for entry in ledger.entries()}
    for execution_id, execution in executions.items():
        if not execution.is_finished:
            found.append(f"execution {execution_id} is stuck, {execution.status}")
        elif outcome(execution) != expected:
            found.append(f"execution {execution_id} came to something else: {outcome(execution)}")
        effects = [tool for key, tool in tools_by_key.items() if key.startswith(execution_id) and tool != "find"]
        if sorted(effects) != ["book", "mail"]:
            found.append(f"execution {execution_id} has the effects {effects}")
    return found


def _lost(acknowledged: Acknowledged, executions: dict[str, ExecutionState]) -> Iterator[str]:
    for execution_id in acknowledged.created:
        if execution_id not in executions:
            yield f"execution {execution_id} was acknowledged and is lost"
    for suspension_id, approved in acknowledged.answered.items():
        recorded = [e.suspensions[suspension_id] for e in executions.values() if suspension_id in e.suspensions]
        if not any(answer.decision is not None and answer.decision.approved == approved for answer in recorded):
            yield f"the answer to {suspension_id} was acknowledged and is lost"
    for execution_id, status in acknowledged.finished.items():
        if execution_id not in executions or executions[execution_id].status != status:
            yield f"the end of execution {execution_id} was acknowledged as {status} and is lost"
