"""Closes our suspension when the agent that asked it no longer does, because somebody decided at the agent.

It looks at the open suspensions in the store, so it keeps no state. Several processes close a suspension only once.
"""

import logging
from typing import Protocol

import anyio

from planwarden.agent.common.errors import PlanwardenError
from planwarden.tools.delegate.child import ChildView, DelegatedGoal
from planwarden.tools.downstream.ports import DelegatingEngine

logger = logging.getLogger(__name__)

WATCH_S = 2.0
MAX_PAGES = 10


class ChildViewer(Protocol):
    """The part of the delegation tool that the watch needs."""

    async def view(self, child: DelegatedGoal, execution_id: str) -> ChildView: ...


async def watch(executions: DelegatingEngine, agents: ChildViewer) -> None:
    """Check every `WATCH_S` seconds, until cancelled."""
    while True:
        await anyio.sleep(WATCH_S)
        try:
            await close_settled_questions(executions, agents)
        except PlanwardenError as error:
            logger.debug("%s", error.message)
        # As in the engine's scheduler: one bad row, or an engine that just closed, must not end the process.
        except Exception:
            logger.exception("watching delegated suspensions failed")


async def close_settled_questions(executions: DelegatingEngine, agents: ChildViewer) -> None:
    """Close each open suspension whose agent no longer asks it."""
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await executions.store.suspensions(
            principal=None, thread_id=None, addressee="human", limit=100, cursor=cursor
        )
        for row in page.rows:
            execution = await executions.find(row.execution_id)
            found = execution.suspensions.get(row.suspension_id)
            if found is None or not found.is_open or found.question.kind != "delegated":
                continue
            child = DelegatedGoal.model_validate(found.question.resume_payload)
            try:
                view = await agents.view(child, execution.execution_id)
            except PlanwardenError as error:
                logger.debug("%s", error.message)
                continue
            if view.threadId == child.thread_id and view.find(child.suspension_id) is None:
                reason = f"it was settled at agent {child.agent!r}"
                await executions.withdraw(execution, row.suspension_id, reason)
        cursor = page.next_cursor
        if cursor is None:
            return
