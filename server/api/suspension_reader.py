"""Lists open suspensions page by page, for callers, people and commands that start no engine."""

import logging
from collections.abc import Awaitable, Callable

import anyio.lowlevel

from planwarden.agent.common.canonical import measure_encoded
from planwarden.agent.common.errors import LogUnreadable
from planwarden.agent.core.execution.question import Addressee
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.agent.ports.store import Lookups
from planwarden.server.views.encoding import to_short_json
from planwarden.server.views.suspension import Suspension, SuspensionPage

logger = logging.getLogger(__name__)


async def list_open_suspensions(
    store: Lookups,
    find: Callable[[str], Awaitable[ExecutionState]],
    build: Callable[[ExecutionState, SuspensionState], Suspension],
    *,
    thread_id: str | None = None,
    addressee: Addressee | None = None,
    limit: int,
    cursor: str | None,
    principal: str | None,
    max_bytes: int | None = None,
) -> SuspensionPage:
    """Return open suspensions, oldest first; without a `principal`, everybody's. `find` reads an execution.

    `build` makes the view of a suspension. A page has at most `max_bytes` of JSON, or one larger suspension.

    Raises:
        InvalidArguments: the cursor cannot be used.
    """
    page = await store.suspensions(
        principal=principal, thread_id=thread_id, addressee=addressee, limit=limit, cursor=cursor
    )
    views: list[Suspension] = []
    size = 0
    for index, row in enumerate(page.rows):
        if max_bytes is not None:
            # Let the server answer other requests. A command sets no limit, and may have no event loop.
            await anyio.lowlevel.checkpoint()
        try:
            execution = await find(row.execution_id)
        except LogUnreadable as error:
            # One damaged log must not hide the questions of all others; `planwarden doctor` says what to do.
            logger.error("question %s is left out: %s", row.suspension_id, error.message)
            continue
        suspension = execution.suspensions.get(row.suspension_id)
        if suspension is not None and suspension.is_open:
            view = build(execution, suspension)
            size += 0 if max_bytes is None else measure_encoded(to_short_json(view))
            if views and max_bytes is not None and size > max_bytes:
                # Ask again for only the rows that fit, because the store then says where the next page begins.
                page = await store.suspensions(
                    principal=principal, thread_id=thread_id, addressee=addressee, limit=index, cursor=cursor
                )
                break
            views.append(view)
    return SuspensionPage(suspensions=tuple(views), total=page.total, next_cursor=page.next_cursor)
