"""What a caller can learn about tools: search results, large results, the shape of the last result, and changes.

A shape has names and kinds of values but no values: `{"invoices": [{"number": "text", "amount": "number"}]}`. It comes
from the newest successful call in an execution of the same principal. Its size is limited, as for all outside input.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice

import msgspec

from planwarden.agent.common.artifact import Artifact, is_stand_in
from planwarden.agent.common.canonical import measure_encoded, read_json
from planwarden.agent.common.errors import LogUnreadable, PlanwardenError, UnknownArtifact, UnknownThread
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Lookups, Store
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.api.limits import MAX_QUERY_CHARS, check_limit, check_text, parse_offset
from planwarden.server.views.tools import ToolPage, build_tool_line
from planwarden.storage.sql.records import Columns, HasRecords, Record, RecordStore, RecordTransaction
from planwarden.tools.base import define
from planwarden.tools.registry import Registry

MAX_EXECUTIONS = 3
"""The most executions to search for a call, newest first. All of them name the tool; some may not have called it."""
MAX_DEPTH = 5
MAX_KEYS = 30
MAX_KEY_CHARS = 40
MAX_SHAPE_CHARS = 4_000
"""The most characters of a shape as JSON; levels that would make it longer are left out."""
MAX_TEXT_CHARS = 100_000
"""The most characters of a text that is read as JSON."""


logger = logging.getLogger(__name__)
MAX_DEFINITIONS = 200
"""The most definitions that a store keeps of tools that have changed or are gone."""
MAX_DEFINITION_BYTES = 32 * 1024


class KnownDefinition(Record, frozen=True, kw_only=True):
    """The definition that a tool had in one process, for later processes in which the tool has another definition."""

    columns = Columns("definition", "digest")

    digest: str
    definition: ToolDefinition


async def exchange_definitions(store: HasRecords, tools: Registry, *, adds: bool) -> None:
    """Read the definitions of tools in earlier processes; if `adds`, also store those of `tools`. A failure is only
    logged: then messages about a changed tool say less.
    """
    records = RecordStore(store, KnownDefinition)
    own = {tool.digest: tool for tool in tools.definitions() if tool.source != "builtin"}
    try:
        # Skip a row whose definition does not fit its digest: somebody edited it, so nobody relied on this definition.
        rows = [(record.digest, define(record.definition)) for record in await records.intact()]
        stored = {digest: tool for digest, tool in rows if tool.digest == digest}
        new = [
            tool
            for digest, tool in own.items()
            if digest not in stored and measure_encoded(msgspec.to_builtins(tool)) <= MAX_DEFINITION_BYTES
        ]
        names = {tool.name for tool in new}
        # The store forgets the first entries first, so definitions that are replaced only now come last.
        former = sorted((digest for digest in stored if digest not in own), key=lambda name: stored[name].name in names)
        tools.keep_former(map(stored.__getitem__, former))

        def write(transaction: RecordTransaction) -> None:
            replaced = [digest for digest in former[-MAX_DEFINITIONS:] if stored[digest].name in names]
            for digest in (*former[:-MAX_DEFINITIONS], *replaced):
                transaction.delete(KnownDefinition, digest)
            for tool in (*map(stored.__getitem__, replaced), *new):
                transaction.put(KnownDefinition(digest=tool.digest, definition=tool))

        if new and adds:
            await records.write(write)
    except PlanwardenError as error:
        logger.warning("cannot exchange definitions of tools with other processes: %s", error.message)


async def read_artifact(store: Lookups, thread_id: str, artifact_id: str, *, principal: str | None) -> Artifact:
    """Return a whole artifact of the principal's thread; without a `principal`, of anybody's thread.

    Raises:
        UnknownArtifact: the thread has no such artifact, or belongs to another principal.
    """
    headers = await store.thread(thread_id)
    artifact: Artifact | None = None
    if headers and principal in (None, headers[0].principal):
        artifact = await store.artifact(thread_id, artifact_id)
    if artifact is None:
        raise UnknownArtifact(f"there is no artifact {artifact_id[:64]!r} in thread {thread_id[:64]!r}")
    return artifact


async def find_seen_shape(
    store: Store, find: Callable[[str], Awaitable[ExecutionState]], tool_name: str, principal: str
) -> JsonValue:
    """Return the shape of the tool's last result in the principal's newest executions; None if they have no result."""
    page = await store.list_executions(ExecutionFilter(tool=tool_name, principal=principal), limit=MAX_EXECUTIONS)
    for row in page.rows:
        try:
            execution = await find(row.execution_id)
        except (UnknownThread, LogUnreadable):
            continue
        for state in reversed([*execution.steps.values()]):
            for call in reversed(state.calls):
                if call.tool_name == tool_name and call.status == "succeeded":
                    return describe_shape(call.value)
    return None


def describe_shape(value: JsonValue) -> JsonValue:
    """Return the names and kinds in `value`, as deep as the limits allow; for a list, those in its first entry only."""
    shape = _describe(value, 0)
    for depth in range(1, MAX_DEPTH + 1):
        deeper = _describe(value, depth)
        if len(json.dumps(deeper)) > MAX_SHAPE_CHARS:
            break
        shape = deeper
    return shape


def _describe(value: JsonValue, depth: int) -> JsonValue:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case str():
            return _describe_text(value, depth)
        case list():
            return [_describe(value[0], depth - 1)] if value and depth else []
        case dict() if is_stand_in(value):
            return "a large result; only a part of it is known"
        case dict():
            keys = islice(value, MAX_KEYS if depth else 0)
            return {key[:MAX_KEY_CHARS]: _describe(value[key], depth - 1) for key in keys}


def _describe_text(text: str, depth: int) -> JsonValue:
    if depth and len(text) <= MAX_TEXT_CHARS and text.lstrip()[:1] in ("{", "["):
        with suppress(PlanwardenError):
            return {'text with JSON, for "parse": "json"': _describe(read_json(text), depth - 1)}
    return "text"


def search_tools(tools: Toolbox, query: str | None = None, *, limit: int = 20, cursor: str | None = None) -> ToolPage:
    """Return a page of the tools that are not gated, best matches first; without a query, sorted by name.

    Raises:
        InvalidArguments: the limit or the cursor is not usable.
        LimitExceeded: the query is too long.
    """
    check_limit(limit)
    if query is not None:
        check_text(query, "query", MAX_QUERY_CHARS, may_be_empty=True)
    matches = [tool for tool in tools.search(query or "", len(tools.definitions())) if not tool.is_gated]
    start = parse_offset(cursor, len(matches))
    following = start + limit
    return ToolPage(
        tools=tuple(map(build_tool_line, matches[start:following])),
        total=len(matches),
        next_cursor=str(following) if following < len(matches) else None,
    )
