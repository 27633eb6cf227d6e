"""The catalogue: names, schemas, manifests, search, and the safe way to run a tool.

Arguments are validated against the tool's schema with defaults filled in; results are checked to be JSON and
bounded: what is too large for the log becomes an artifact, what is too large for that a preview. Tools come one by one
and stay, or in groups that are replaced as a whole while plans run: a downstream server's tools.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from pydantic import JsonValue

from planwarden.agent.common.artifact import (
    INLINE_BYTES,
    MAX_ARTIFACT_BYTES,
    PREVIEW_CHARS,
    ResultWithArtifacts,
    build_cut_off,
    build_stand_in,
    make_artifact,
)
from planwarden.agent.common.canonical import check_depth
from planwarden.agent.common.errors import LimitExceeded, StaleDefinition, ToolError, UnknownTool, UsageError
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.pins import PIN_CHARS
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.tools.base import Tool, define
from planwarden.tools.search import ToolIndex

MAX_QUESTION_BYTES = 1024 * 1024
"""Of a form and of a resume payload, each."""
MAX_EARLIER = 2_000
"""Definitions that are remembered after they changed, for all tools together."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class Registry:
    """All tools of one process by name. Implements the engine's `Toolbox` port."""

    def __init__(self, tools: Iterable[Tool] = (), *, max_result_bytes: int = MAX_ARTIFACT_BYTES) -> None:
        self._tools: dict[str, Tool] = {}
        self._schemas: dict[str, Schema] = {}
        self._sorted: list[ToolDefinition] = []
        self._index: ToolIndex | None = None
        """Built at the first search after a change."""
        self._groups: dict[str, frozenset[str]] = {}
        self._earlier: OrderedDict[str, ToolDefinition] = OrderedDict()
        """What tools of groups were before they changed, by pin."""
        self._max_result_bytes = max_result_bytes
        self._listeners: dict[object, Callable[[], None]] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Register a tool.

        Raises:
            UsageError: the name is taken or not usable, or the schema is not a JSON Schema.
        """
        if tool.definition.name in self._tools:
            raise UsageError(f"there are two tools named {tool.definition.name!r}; rename one of them")
        made, schema = self._made(tool)
        self._schemas[made.definition.name] = schema
        self._tools[made.definition.name] = made
        self._changed()

    def replace_group(self, group: str, tools: Iterable[Tool]) -> None:
        """Put these tools into the place of all that the group had; all of them or none.

        Raises:
            UsageError: as for `add`; nothing was changed.
        """
        held = self._groups.get(group, frozenset())
        made: dict[str, tuple[Tool, Schema]] = {}
        for tool in tools:
            name = tool.definition.name
            if name in made or (name in self._tools and name not in held):
                raise UsageError(f"there are two tools named {name!r}; rename one of them")
            made[name] = self._made(tool)
        for name in held:
            before = self._tools[name].definition
            if name not in made or made[name][0].definition.digest != before.digest:
                self._remember(before)
        self._tools = {name: tool for name, tool in self._tools.items() if name not in held}
        self._schemas = {name: schema for name, schema in self._schemas.items() if name not in held}
        for name, (tool, schema) in made.items():
            self._tools[name], self._schemas[name] = tool, schema
        self._groups[group] = frozenset(made)
        self._changed()

    def mark_group(self, group: str, unavailable: str | None) -> None:
        """Say why no tool of the group can be called now; None when they can be again."""
        changed = False
        for name in self._groups.get(group, ()):
            tool = self._tools[name]
            if tool.definition.unavailable != unavailable:
                marked = replace(tool.definition, unavailable=unavailable)
                self._tools[name] = replace(tool, definition=marked)
                changed = True
        if changed:
            self._changed()

    def earlier(self, digest: str) -> ToolDefinition | None:
        return self._earlier.get(digest[:PIN_CHARS])

    def _made(self, tool: Tool) -> tuple[Tool, Schema]:
        definition = tool.definition
        if not _NAME.fullmatch(definition.name):
            raise UsageError(
                f"tool name {definition.name!r} is not usable; letters, digits, '_', '-' and '.', at most 64"
            )
        if not definition.digest:
            tool = Tool(define(definition), tool.call, tool.resume, tool.question)
        known = self._tools.get(definition.name)
        if known is not None and known.definition.digest == tool.definition.digest:
            return tool, self._schemas[definition.name]
        try:
            return tool, Schema(definition.input_schema)
        except ValueError as error:
            raise UsageError(f"tool {definition.name!r}: its input schema is not valid: {error}") from None

    def _remember(self, definition: ToolDefinition) -> None:
        self._earlier[definition.digest[:PIN_CHARS]] = definition
        self._earlier.move_to_end(definition.digest[:PIN_CHARS])
        if len(self._earlier) > MAX_EARLIER:
            self._earlier.popitem(last=False)

    def _changed(self) -> None:
        self._sorted = sorted((known.definition for known in self._tools.values()), key=lambda known: known.name)
        self._index = None
        for listener in tuple(self._listeners.values()):
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        token = object()
        self._listeners[token] = listener

        def stop() -> None:
            self._listeners.pop(token, None)

        return stop

    def get(self, name: str) -> ToolDefinition | None:
        tool = self._tools.get(name)
        return tool.definition if tool is not None else None

    def definitions(self) -> Sequence[ToolDefinition]:
        return self._sorted

    def search(self, query: str, limit: int) -> Sequence[ToolDefinition]:
        if not query.strip():
            return self._sorted[:limit]
        if self._index is None:
            self._index = ToolIndex(self._sorted)
        return self._index.search(query, limit)

    def complete(self, name: str, arguments: dict[str, JsonValue]) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
        tool = self._tools.get(name)
        if tool is None:
            raise UnknownTool(f"there is no tool {name!r}")
        completed = _with_defaults(arguments, tool.definition.input_schema)
        return completed, self._schemas[name].find_faults(completed)

    def question(self, name: str, arguments: Mapping[str, JsonValue]) -> Suspend | None:
        tool = self._tools.get(name)
        return tool.question(arguments) if tool is not None and tool.question is not None else None

    def resumes(self, name: str) -> bool:
        tool = self._tools.get(name)
        return tool is not None and tool.resume is not None

    async def call(
        self, name: str, arguments: dict[str, JsonValue], context: CallContext
    ) -> JsonValue | ResultWithArtifacts | Suspend:
        tool = self._current(name, context)
        try:
            returned = await tool.call(arguments, context)
        except (ToolError, StaleDefinition):
            raise
        # A tool is somebody else's code: whatever it raises, sys.exit() too, is a failed call, not a failed server.
        except (Exception, SystemExit) as error:
            raise ToolError(f"{type(error).__name__}: {_first_line(error)}") from error
        return self._asked(name, returned) if isinstance(returned, Suspend) else self._checked(name, returned)

    async def resume(
        self, name: str, payload: JsonValue, decision: JsonValue, context: CallContext
    ) -> JsonValue | ResultWithArtifacts | Suspend:
        resume = self._current(name, context).resume
        if resume is None:
            raise ToolError(f"{name} has no on_resume")
        try:
            returned = await resume(payload, decision, context)
        except (ToolError, StaleDefinition):
            raise
        # As above.
        except (Exception, SystemExit) as error:
            raise ToolError(f"{type(error).__name__}: {_first_line(error)}") from error
        return self._asked(name, returned) if isinstance(returned, Suspend) else self._checked(name, returned)

    def _asked(self, name: str, asked: Suspend) -> Suspend:
        """The question, if its parts are what a log can hold: they are stored with it."""
        _part_of_question(name, asked.form)
        return replace(asked, resume_payload=_part_of_question(name, asked.resume_payload))

    def _current(self, name: str, context: CallContext) -> Tool:
        """The tool that the call was meant for: it may have changed or gone since the call was prepared."""
        tool = self._tools.get(name)
        if tool is None:
            raise ToolError(f"{name} is not there any more; nothing was run")
        if context.definition_digest not in ("", tool.definition.digest):
            raise StaleDefinition(f"{name} changed before it was called; nothing was run")
        return tool

    def _checked(self, name: str, value: object) -> JsonValue | ResultWithArtifacts:
        """The value if it is JSON and small enough for the log; else its stand-in, with the whole unless it is huge."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, ResultWithArtifacts):
            return self._with_attachments(name, value)
        found, text = _as_json(name, value)
        if len(text) > INLINE_BYTES:
            preview = found[:PREVIEW_CHARS] if isinstance(found, str) else text[:PREVIEW_CHARS]
            if len(text) > self._max_result_bytes:
                return build_cut_off(len(text), preview)
            artifact = make_artifact(text.encode())
            return ResultWithArtifacts(
                value=build_stand_in(artifact, preview), artifacts=(artifact,), whole=artifact.artifact_id
            )
        # What the log will hold: tuples become lists, integer keys become strings.
        return found if _is_plain(found) else cast("JsonValue", json.loads(text))

    def _with_attachments(self, name: str, given: ResultWithArtifacts) -> ResultWithArtifacts:
        """A result whose tool made artifacts itself, such as an image that the value mentions."""
        if sum(len(artifact.data) for artifact in given.artifacts) > self._max_result_bytes:
            raise ToolError(f"{name} ran, but what it attached is larger than {self._max_result_bytes} bytes")
        checked = self._checked(name, given.value)
        if isinstance(checked, ResultWithArtifacts):
            return replace(checked, artifacts=(*given.artifacts, *checked.artifacts))
        return replace(given, value=checked)


def _as_json(name: str, value: object) -> tuple[JsonValue, str]:
    """The value and its JSON text. Raises `ToolError` when it has none or is nested too deeply."""
    try:
        text = _ENCODER.encode(value)
        found = cast("JsonValue", value)
        check_depth(found)
    except (TypeError, ValueError, RecursionError, LimitExceeded) as error:
        raise ToolError(f"{name} ran, but what it returned is not usable JSON: {_first_line(error)}") from error
    return found, text


def _part_of_question(name: str, value: JsonValue) -> JsonValue:
    found, text = _as_json(name, value)
    if len(text) > MAX_QUESTION_BYTES:
        raise ToolError(f"{name} asks with a form or payload of {len(text)} bytes; the limit is {MAX_QUESTION_BYTES}")
    return found if _is_plain(found) else cast("JsonValue", json.loads(text))


def _with_defaults(arguments: dict[str, JsonValue], schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The arguments with the top-level defaults of the schema filled in, so that what is shown is what runs."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return arguments
    missing = {
        name: entry["default"]
        for name, entry in properties.items()
        if name not in arguments and isinstance(entry, dict) and "default" in entry
    }
    return {**arguments, **missing} if missing else arguments


def _is_plain(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(child) for key, child in value.items())
    if isinstance(value, list):
        return all(_is_plain(child) for child in value)
    return not isinstance(value, tuple)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
