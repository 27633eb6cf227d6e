"""planwarden, through its Python API: https://github.com/planwarden/planwarden/blob/main/docs/python.md"""

import asyncio
from typing import Any

from workload import JOB, PATIENCE_S, REFUSED, SENT, STEPS, Question, System, points, send_refund, watch

import planwarden
from planwarden import Decision, Execution, Suspension, Warden
from planwarden.storage.postgres.store import PostgresStore
from planwarden.storage.sqlite.store import SqliteStore

OVER = ("completed", "failed", "rejected", "cancelled", "incomplete", "suspended")
OUTCOMES: dict[bool, Any] = {True: {"happened": True, "result": SENT}, False: {"happened": False}}
PLAN: dict[str, Any] = {
    "todoList": [
        {"id": name, "description": name, "toolCalls": [{"toolName": name, "arguments": {"order": JOB}}]}
        for name in STEPS
    ]
}


def kinds(request: Any) -> set[str]:
    """Return the names of the events that a commit stores."""
    return {type(recorded.event).__name__ for recorded in request.recorded}


class Adapter(System):
    """A Warden on SQLite in the folder, or on PostgreSQL."""

    _question: Suspension | None = None

    async def open(self) -> None:
        tools = [planwarden.tool(risk="confirm" if step is send_refund else "read")(step) for step in STEPS.values()]
        path = self.folder / "planwarden.db"
        self._store: Any = PostgresStore.open(self.url) if self.url else SqliteStore.open(path)
        watch(self._store, "append", lambda request: points(kinds(request), "Suspended", "SuspensionDecided"))
        self._warden = await Warden(home=self.folder, tools=tools, store=self._store).__aenter__()

    async def close(self) -> None:
        await self._warden.__aexit__(None, None, None)
        await self._store.close()

    async def advance(self) -> None:
        await self._rest()

    async def question(self) -> Question | None:
        self._question = next(iter((await self._rest()).suspensions), None)
        if self._question is None:
            return None
        return "outcome" if self._question.kind == "reconcile" else "approve"

    async def answer(self, yes: bool) -> None:
        question = self._question
        if question is None:
            raise LookupError("no question is open")
        is_outcome = question.kind == "reconcile"
        decision = Decision(approved=True, content=OUTCOMES[yes]) if is_outcome else Decision(approved=yes)
        ids = question.thread_id, question.suspension_id
        await self._warden.resume_execution(*ids, decision, wait_seconds=PATIENCE_S)

    async def result(self) -> str | None:
        execution = await self._rest()
        refund = next(step for step in execution.steps if step.id == "send_refund")
        if execution.status == "completed" and refund.status == "completed":
            return SENT
        return REFUSED if execution.status in ("rejected", "incomplete", "completed") else None

    async def _rest(self) -> Execution:
        execution = await self._warden.execute_plan(PLAN, key=JOB, wait_seconds=PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while execution.status not in OVER:
                await asyncio.sleep(0.005)
                execution = await self._warden.get_execution(execution.thread_id)
        return execution
