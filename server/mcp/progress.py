"""Lets a request wait until the execution stops or a person decides, and reports progress to clients that ask for it.

The engine runs the execution. If a request is cancelled or its client is gone, only the request's waiting ends.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import anyio
from mcp.server.mcpserver import Context

from planwarden.agent.common.errors import PlanwardenError, count_of
from planwarden.agent.common.task_groups import run_beside
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.api.service import Service
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.status_text import describe_next_attempt
from planwarden.server.views.suspension import Suspension

HEARTBEAT_S = 3.0
"""How often progress is repeated, for clients whose time limit restarts with every report."""

STREAMED_CHARS = 200
"""The most characters from the end of an unfinished answer that a report shows."""

AnyContext = Context[Any, Any]


async def wait_with_progress(
    service: Service, execution: ExecutionState, seconds: float | None, context: AnyContext
) -> ExecutionState:
    """Return the execution when it stops running, or after `seconds` (None: its option `wait_seconds`).

    Raises:
        PlanwardenError: the store failed.
    """
    limit_s = execution.options.wait_seconds if seconds is None else seconds
    if execution.status != "running" or not limit_s:
        return execution
    async with run_beside(partial(_report_progress, service, execution.execution_id, context)):
        return await service.wait(execution, limit_s)


async def wait_until_decided(service: Service, suspension: Suspension, context: AnyContext) -> None:
    """Report progress until the question is no longer open."""

    def describe(execution: ExecutionState) -> str | None:
        state = execution.suspensions.get(suspension.suspension_id)
        return None if state is None or not state.is_open else "waiting for the person"

    await _report_until(service, suspension.execution_id, context, describe)


async def wait_for_decision(
    service: Service, suspension: Suspension, seconds: float | None, context: AnyContext
) -> None:
    """Wait until the question is no longer open, or for `seconds` (None: the execution's option `wait_seconds`)."""
    execution = await service.find(suspension.execution_id)
    with anyio.move_on_after(execution.options.wait_seconds if seconds is None else seconds):
        await wait_until_decided(service, suspension, context)


async def _report_progress(service: Service, execution_id: str, context: AnyContext) -> None:
    """Report commits while the execution runs and, at most twice a second, text that a model streams."""

    def describe(execution: ExecutionState) -> str | None:
        is_running = execution.status == "running"
        return format_progress(execution, service.streamed_text(execution_id)) if is_running else None

    with suppress(PlanwardenError):
        await _report_until(service, execution_id, context, describe)


async def _report_until(
    service: Service, execution_id: str, context: AnyContext, describe: Callable[[ExecutionState], str | None]
) -> None:
    """Send a numbered notification after each change and each heartbeat, until `describe` returns None."""
    for beats in count(1):
        execution = await service.find(execution_id)
        message = describe(execution)
        if message is None:
            return
        await context.report_progress(beats, message=message)
        with anyio.move_on_after(HEARTBEAT_S):
            await service.wait_for_change(execution)


def format_progress(execution: ExecutionState, streamed_text: str = "") -> str:
    """Return the progress of the execution in the engine's own words; the end of `streamed_text` follows in quotes."""
    if streamed_text:
        ending = escape_text(streamed_text[-STREAMED_CHARS:])[-STREAMED_CHARS:]
        return f'{format_progress(execution)}; writing: "...{ending}"'
    outage = describe_next_attempt(execution) if execution.open_suspensions else ""
    waiting_text = f"; {outage}" if outage else ""
    if not execution.steps:
        return f"planning{waiting_text}"
    running = [name for name in execution.frontier if execution.steps[name].status == "in_progress"]
    running_text = f"; running {', '.join(running[:5])}" if running else ""
    return f"{execution.ended_steps} of {count_of(len(execution.steps), 'step')} done{running_text}{waiting_text}"
