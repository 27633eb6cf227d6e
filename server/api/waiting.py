"""What executions wait for: answers to their open questions, or a process that can continue them.

The engine and commands that start no engine read both here.
"""

import logging
from collections.abc import Awaitable, Callable, Collection

import anyio.lowlevel

from planwarden.agent.common.canonical import measure_encoded
from planwarden.agent.common.errors import LogUnreadable
from planwarden.agent.core.execution.question import Addressee
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.agent.core.execution.verify import find_needed_tools
from planwarden.agent.ports.store import Lookups
from planwarden.server.views.encoding import to_short_json
from planwarden.server.views.suspension import Suspension, SuspensionPage
from planwarden.storage.sql.processes import ProcessFacts, merge_tools, registry_of

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
                # Read again only the rows that fit: then the store says where the next page begins.
                page = await store.suspensions(
                    principal=principal, thread_id=thread_id, addressee=addressee, limit=index, cursor=cursor
                )
                break
            views.append(view)
    return SuspensionPage(suspensions=tuple(views), total=page.total, next_cursor=page.next_cursor)


async def describe_waiting(store: Lookups, execution: ExecutionState) -> str | None:
    """Return a sentence about the process that the execution waits for; None if there is none, or the store is
    local."""
    registry = registry_of(store)
    if registry is None or execution.status != "running":
        return None
    header = await store.header(execution.execution_id)
    if header is None or header.status != "running" or header.owner is not None:
        return None
    return describe_missing(execution, await registry.living())


def describe_missing(execution: ExecutionState, living: tuple[ProcessFacts, ...]) -> str:
    """Return a sentence about what the living processes lack to continue an execution that none of them runs. A process
    needs the policy of the newest process, and each tool in the version of the newest process with that tool.
    """
    runners = [process for process in living if process.role != "front"]
    if not runners:
        return "It waits for a process that runs executions: `planwarden worker`, or `serve` without `--role front`."
    newest, current = living[0], merge_tools(living)
    names = {(name, current.get(name, "")) for name in find_needed_tools(execution)}
    drained = [process for process in runners if process.policy != newest.policy]
    lacking = [names - process.tools.items() for process in runners if process.policy == newest.policy]
    if not all(lacking):
        return "It waits for a process that can take it."
    if any(names <= process.tools.items() for process in drained):
        tools = f", and has {_join(names)}" if lacking else ""
        return f"It waits for a process that runs under the policy of {_name(newest)}, which started last{tools}."
    missing = names.intersection(*lacking)
    everywhere = {name for process in runners for name in process.tools}
    if nowhere := {tool for tool in missing if tool[0] not in everywhere}:
        return f"It waits for a process that has {_join(nowhere)}; no living one that runs executions does."
    for process in living:
        if has := missing & process.tools.items():
            newest_with_it = f"{_name(process)}, the newest process with it"
            return f"It waits for a process that has {_join(has)} in the version of {newest_with_it}."
    return f"It waits for one process that has all of {_join(names)}; each living one lacks some, or has an older one."


def _join(tools: Collection[tuple[str, str]]) -> str:
    return ", ".join(sorted(name for name, _ in tools))


def _name(process: ProcessFacts) -> str:
    return f"{process.host}:{process.pid}"
