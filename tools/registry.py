"""The catalogue of tools: definitions, ranked search, and the safe way to run a tool.

Arguments are validated against the tool's schema, with defaults filled in. A single tool is never removed. A group,
such as a downstream server's tools, can be replaced as a whole while plans run.

Search covers names, descriptions, capabilities and parameters, with BM25 of SQLite's full-text index. Names are split
into words, so "delete contact" finds `crm_deleteContact`. Words are stemmed, the beginning of a word is enough, and
each field has its own weight (https://sqlite.org/fts5.html#the_bm25_function). The index is in memory.
"""

import re
import sqlite3
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from planwarden.agent.common.artifact import MAX_ARTIFACT_BYTES, ResultWithArtifacts
from planwarden.agent.common.canonical import measure_encoded
from planwarden.agent.common.errors import OutcomeUnknown, StaleDefinition, ToolError, UnknownTool, UsageError
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Path
from planwarden.agent.core.plan.pins import PIN_CHARS
from planwarden.agent.core.tool import HOST_SEPARATOR, CallContext, Suspend, ToolDefinition
from planwarden.tools.base import NOT_A_FAULT, Tool, define, first_line
from planwarden.tools.guarded.hosts import find_host_tool
from planwarden.tools.results import UnusableResult, check_question_part, check_result

MAX_FORMER = 2_000
"""How many former definitions of changed tools are kept, for all tools together."""
MAX_FORMER_BYTES = 4 * 1024 * 1024
"""The most bytes of all former schemas as JSON. In memory, a schema of small values takes about 25 times as much."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WEIGHTS = "0.0, 8.0, 4.0, 2.0, 1.0"
_MAX_WORDS = 40
# Words in queries that say nothing about the wanted tool.
_COMMON = frozenset(
    [
        *("a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "has", "have", "i", "in"),
        *("into", "is", "it", "its", "me", "my", "of", "on", "or", "our", "please", "so", "than", "that", "the"),
        *("their", "then", "there", "they", "this", "to", "up", "us", "was", "we", "what", "when", "where", "which"),
        *("who", "will", "with", "you", "your", "all", "any", "every", "each", "some"),
    ]
)


class Listings(Protocol):
    """Servers that list their tools only when they are first asked."""

    def may_still_be_listed(self, name: str) -> bool:
        """Return whether a tool of that name can only come from a server that has not answered yet."""
        ...

    async def wait_until_listed(self, names: Iterable[str]) -> None:
        """Ask the servers of the named tools, and wait a limited time for their answers."""
        ...


class Registry:
    """All tools of one process by name. Implements the engine's `Toolbox` port."""

    def __init__(self, tools: Iterable[Tool] = (), *, max_result_bytes: int = MAX_ARTIFACT_BYTES) -> None:
        self._tools: dict[str, Tool] = {}
        self._sorted: list[ToolDefinition] = []
        self._index: ToolIndex | None = None
        """Built at the first search after a change, because most processes never search."""
        self._groups: dict[str, frozenset[str]] = {}
        self._former: dict[str, tuple[ToolDefinition, int]] = {}
        """Definitions of tools that changed or are gone, each with the number of bytes in its schemas. The key is the
        first `PIN_CHARS` characters of the digest."""
        self._max_result_bytes = max_result_bytes
        self._listeners: dict[Callable[[], None], None] = {}
        self.listings: Listings | None = None
        """Servers that may list tools that are not known yet."""
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Register a tool. Raises `UsageError`: the name is taken or not usable, or the schema is not a JSON Schema."""
        if other := self._tools.get(tool.definition.name):
            sources = f"from {other.definition.source} and {tool.definition.source}"
            raise UsageError(f"there are two tools named {tool.definition.name!r}, {sources}; rename one of them")
        self._tools[tool.definition.name] = self._prepare(tool)
        self._notify_listeners()

    def replace_group(self, group: str, tools: Iterable[Tool]) -> None:
        """Replace all tools of the group with these. Raises `UsageError` as `add` does; then nothing has changed."""
        old = self._groups.get(group, frozenset())
        new: dict[str, Tool] = {}
        for tool in tools:
            name = tool.definition.name
            if name in new or (name in self._tools and name not in old):
                raise UsageError(f"there are two tools named {name!r}; rename one of them")
            new[name] = self._prepare(tool)
        former = (self._tools[name].definition for name in old)
        self.keep_former(
            definition
            for definition in former
            if definition.name not in new or new[definition.name].definition.digest != definition.digest
        )
        self._tools = {name: tool for name, tool in self._tools.items() if name not in old} | new
        self._groups[group] = frozenset(new)
        self._notify_listeners()

    def keep_former(self, definitions: Iterable[ToolDefinition]) -> None:
        """Keep definitions of tools that changed or are gone, to say how they changed."""
        for definition in definitions:
            pin = definition.digest[:PIN_CHARS]
            # Put this definition at the end, because those at the beginning are forgotten first.
            self._former.pop(pin, None)
            self._former[pin] = definition, measure_encoded([definition.input_schema, definition.output_schema])
        total = sum(size for _, size in self._former.values())
        while len(self._former) > MAX_FORMER or total > MAX_FORMER_BYTES:
            total -= self._former.pop(next(iter(self._former)))[1]

    def mark_group(self, group: str, unavailable: str | None) -> None:
        """Set why no tool of the group can be called now; None when they can be called again."""
        tools = [self._tools[name] for name in self._groups.get(group, ())]
        changes = [tool for tool in tools if tool.definition.unavailable != unavailable]
        for tool in changes:
            definition = replace(tool.definition, unavailable=unavailable)
            self._tools[definition.name] = replace(tool, definition=definition)
        if changes:
            self._notify_listeners()

    def find_former(self, digest: str) -> ToolDefinition | None:
        former = self._former.get(digest[:PIN_CHARS])
        return None if former is None else former[0]

    def _prepare(self, tool: Tool) -> Tool:
        """Return the tool with its digest and its compiled schema."""
        definition = tool.definition if tool.definition.digest else define(tool.definition)
        if not _NAME.fullmatch(definition.name):
            raise UsageError(
                f"tool name {definition.name!r} is not usable; letters, digits, '_', '-' and '.', at most 64"
            )
        before = self._tools.get(definition.name)
        schema = before.schema if before is not None and before.definition.digest == definition.digest else tool.schema
        try:
            # Schemas of planwarden's own tools need no check, and are compiled only when needed, which is seldom.
            is_own = definition.source == "builtin"
            schema = schema or Schema(definition.input_schema, is_known=is_own, checks_dates=True)
        except ValueError as error:
            raise UsageError(f"tool {definition.name!r}: its input schema is not valid: {error}") from None
        return replace(tool, definition=definition, schema=schema)

    def _notify_listeners(self) -> None:
        self._sorted = [self._tools[name].definition for name in sorted(self._tools)]
        self._index = None
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners[listener] = None
        return partial(self._listeners.pop, listener, None)

    def get(self, name: str) -> ToolDefinition | None:
        tool = self._find(name)
        return tool.definition if tool is not None else None

    def _find(self, name: str) -> Tool | None:
        return self._tools.get(name) or (find_host_tool(name) if HOST_SEPARATOR in name else None)

    def is_awaited(self, name: str) -> bool:
        return name not in self._tools and self.listings is not None and self.listings.may_still_be_listed(name)

    async def wait_for_tools(self, names: Iterable[str]) -> None:
        if self.listings is not None:
            await self.listings.wait_until_listed(names)

    def definitions(self) -> Sequence[ToolDefinition]:
        return self._sorted

    def search(self, query: str, limit: int) -> Sequence[ToolDefinition]:
        if not query.strip():
            return self._sorted[:limit]
        if self._index is None:
            self._index = ToolIndex(self._sorted)
        return self._index.search(query, limit)

    def complete(self, name: str, arguments: dict[str, JsonValue]) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
        tool = self._find(name)
        if tool is None or tool.schema is None:
            raise UnknownTool(f"there is no tool {name!r}")
        # Fill in the defaults, so that a person sees what will run.
        return tool.schema.complete(arguments)

    def check(
        self, name: str, arguments: dict[str, JsonValue], unknown: Collection[Path], limit: int
    ) -> tuple[tuple[str, ...], int]:
        tool = self._tools.get(name)
        if tool is None or tool.schema is None:
            return (), 0
        return tool.schema.find_certain_faults(tool.schema.fill_in(arguments), unknown, limit)

    def question(self, name: str, arguments: Mapping[str, JsonValue]) -> Suspend | None:
        tool = self._tools.get(name)
        return tool.question(arguments) if tool is not None and tool.question is not None else None

    def resumes(self, name: str) -> bool:
        tool = self._tools.get(name)
        return tool is not None and tool.resume is not None

    async def call(
        self, name: str, arguments: dict[str, JsonValue], context: CallContext
    ) -> JsonValue | ResultWithArtifacts | Suspend:
        tool = self._find_tool(name, context)
        return await self._run(name, lambda: tool.call(arguments, context))

    async def resume(
        self, name: str, payload: JsonValue, decision: JsonValue, context: CallContext
    ) -> JsonValue | ResultWithArtifacts | Suspend:
        resume = self._find_tool(name, context).resume
        if resume is None:
            raise ToolError(f"{name} has no on_resume")
        try:
            return await self._run(name, lambda: resume(payload, decision, context))
        except UnusableResult as error:
            raise OutcomeUnknown(f"{error.message}; the person's answer is kept") from error

    async def _run(self, name: str, call: Callable[[], Awaitable[object]]) -> JsonValue | ResultWithArtifacts | Suspend:
        try:
            result = await call()
        except NOT_A_FAULT:
            raise
        except BaseException as error:
            raise ToolError(f"{type(error).__name__}: {first_line(error)}") from error
        if not isinstance(result, Suspend):
            return await check_result(name, result, self._max_result_bytes)
        # The log must be able to store both the form and the payload.
        check_question_part(name, result.form)
        return replace(result, resume_payload=check_question_part(name, result.resume_payload))

    def _find_tool(self, name: str, context: CallContext) -> Tool:
        """Return the tool of the prepared call. Raise `ToolError` if it is gone, `StaleDefinition` if it changed."""
        tool = self._find(name)
        if tool is None:
            raise ToolError(f"{name} no longer exists; nothing was run")
        if context.definition_digest not in ("", tool.definition.digest):
            raise StaleDefinition(f"{name} changed before it was called; nothing was run")
        return tool


class ToolIndex:
    """Finds definitions by relevance."""

    def __init__(self, definitions: Sequence[ToolDefinition]) -> None:
        self._definitions = {definition.name: definition for definition in definitions}
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        self._connection.execute(
            "CREATE VIRTUAL TABLE tools USING fts5(name UNINDEXED, words, description, capabilities, parameters, "
            "tokenize = 'porter unicode61 remove_diacritics 2')"
        )
        self._connection.executemany(
            "INSERT INTO tools VALUES (?, ?, ?, ?, ?)",
            [
                (
                    d.name,
                    _split_words(d.name),
                    d.description,
                    _split_words(" ".join(d.capabilities)),
                    _split_words(" ".join(read_properties(d.input_schema))),
                )
                for d in definitions
            ],
        )

    def search(self, query: str, limit: int) -> list[ToolDefinition]:
        """Return at most `limit` tools that share a word with the query, best first."""
        words = [word for word in _WORD.findall(_split_words(query).lower()) if word not in _COMMON][:_MAX_WORDS]
        if not words:
            return []
        expression = " OR ".join(f'"{word}"*' if len(word) > 2 else f'"{word}"' for word in dict.fromkeys(words))
        rows = self._connection.execute(
            f"SELECT name FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, {_WEIGHTS}), name LIMIT ?",
            (expression, limit),
        )
        return [self._definitions[row[0]] for row in rows]


def _split_words(text: str) -> str:
    return _HUMP.sub(" ", text).replace("_", " ").replace("-", " ").replace(".", " ")
