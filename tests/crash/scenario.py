"""What is run while processes die, and the check afterwards.

The check compares what is stored, what the ledger shows and what was acknowledged.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.agent.ports.model import Model
from planwarden.agent.runtime.engine import Engine
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.base import Tool
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION, REQUEST_INPUT, WAIT
from planwarden.tools.registry import Registry
from tests.harness.ledger import Ledger
from tests.harness.person import FORM, PRINCIPAL, Acknowledged, Person
from tests.harness.team import engine_on
from tests.support.fakes import UnreachableModel, recording_tool


def _step(name: str, tool: str, arguments: JsonValue, **extra: JsonValue) -> JsonValue:
    return {"id": name, "description": name, "toolCalls": [{"toolName": tool, "arguments": arguments}], **extra}


PLAN: JsonValue = {
    "todoList": [
        _step("find", "find", {"city": "Łódź"}),
        _step("confirm", "displayConfirmation", {"action": "Book it", "details": {"$from": "find"}}, confirms=["book"]),
        _step("book", "book", {"city": {"$from": "find", "pointer": "/city"}}),
        _step("ask", "requestInput", {"message": "Who?", "form": FORM}, dependencies=["find"]),
        _step("wait", "wait", {"seconds": 30}, dependencies=[]),
        _step("mail", "mail", {"to": {"$from": "ask", "pointer": "/content/name"}}, dependencies=["book", "wait"]),
    ]
}
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


def scenario_tools(ledger: Ledger, around: Callable[[], Awaitable[None]] | None = None) -> list[Tool]:
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
    "plan": Scenario(None, PLAN, CallerModel, ev.Options()),
    "model": Scenario("Book a seat", None, lambda: ScriptedModel(SCRIPT), ev.Options(synthesize=True)),
    "outage": Scenario(
        "Book a seat", None, lambda: UnreachableModel(ScriptedModel(SCRIPT)), ev.Options(synthesize=True)
    ),
}


async def undisturbed(folder: Path, scenario: Scenario) -> JsonValue:
    """What the scenario comes to when nothing dies."""
    clock, ledger = ManualClock(), Ledger(folder / "effects")
    store = SqliteStore.open(folder / "planwarden.db", clock=clock)
    async with engine_on(store, Registry(scenario_tools(ledger)), scenario.model()) as engine:
        execution = await Person(engine, clock, ledger).drive(await scenario.create(engine))
    await store.close()
    assert execution.status == "completed"
    return outcome(execution)


def outcome(execution: ExecutionState) -> JsonValue:
    """What the execution came to, without ids and times."""
    return {
        "status": execution.status,
        "steps": {name: [state.status, state.validation, state.result] for name, state in execution.steps.items()},
        "output": execution.synthesis,
        "model calls": execution.usage.model_calls,
    }


def violations(
    acknowledged: Acknowledged, ledger: Ledger, executions: dict[str, ExecutionState], expected: JsonValue
) -> list[str]:
    """Every way in which durability was broken; empty when it held. `executions` are the final states by id."""
    found = [f"effect {key} happened {count} times" for key, count in ledger.effects().items() if count > 1]
    found.extend(_lost(acknowledged, executions))
    tools_by_key = {line.key: line.facts["tool"] for line in ledger.lines("done")}
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
