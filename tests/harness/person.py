"""A person who answers truthfully: whether a lost call happened is looked up in the ledger of effects."""

from dataclasses import dataclass, field

import anyio
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core.question import Question
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.runtime.engine import Engine
from planwarden.storage.clock import ManualClock
from tests.harness.ledger import Ledger

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
