"""From what a downstream server says of its tools to our definitions; everything it says is a claim.

Names are `<server>_<tool>`; a name is the same in every process, whatever else is configured or listed. Descriptions become one
bounded line without hidden characters. Annotations can only raise a risk, unless the operator trusts the server. The whole
definition goes into the digest. See https://modelcontextprotocol.io/specification/2025-11-25/server/tools#data-types.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.common.canonical import canonical_json, check_depth, digest
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.prompts import DELEGATE
from planwarden.agent.core.tool import Effect, Risk, ToolDefinition
from planwarden.tools.downstream.config import ServerConfig

MAX_NAME_CHARS = 64
MAX_TOLD_NAME_CHARS = 256
MAX_DESCRIPTION_CHARS = 2_000
MAX_DEFINITION_BYTES = 128 * 1024
RESERVED = frozenset(
    {
        DELEGATE,
        "search_tools",
        "get_tool_schemas",
        "create_plan",
        "run_goal",
        "execute_plan",
        "get_execution",
        "list_suspensions",
        "submit_answer",
        "resume_execution",
        "cancel_execution",
    }
)
"""Names that mean something to models already."""
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class _Hints(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)
    title: str | None = None
    readOnlyHint: bool | None = None
    destructiveHint: bool | None = None
    idempotentHint: bool | None = None
    openWorldHint: bool | None = None


class _Listed(BaseModel):
    """One entry of `tools/list`."""

    model_config = ConfigDict(extra="ignore", defer_build=True)
    name: str = Field(min_length=1, max_length=MAX_TOLD_NAME_CHARS)
    title: str | None = None
    description: str | None = None
    inputSchema: dict[str, JsonValue]
    outputSchema: dict[str, JsonValue] | None = None
    annotations: _Hints | None = None


@dataclass(frozen=True, slots=True)
class DownstreamTool:
    """One usable tool of a server."""

    definition: ToolDefinition
    told_name: str
    """The server's own name for it."""
    output: Schema | None


@dataclass(frozen=True, slots=True)
class ServerOffer:
    """What a listing came to."""

    tools: tuple[DownstreamTool, ...]
    notes: tuple[str, ...]
    """What was left out, and why."""


def offer(
    config: ServerConfig, listing: Sequence[JsonValue], *, taken: Collection[str], slugs: Iterable[str] = ()
) -> ServerOffer:
    """The definitions of a listing's tools, in its order. `taken` are names of tools that are not downstream ones, `slugs`
    those of all servers. A tool that cannot be used is left out and noted; it does not spoil the others.
    """
    notes: list[str] = []
    entries: dict[str, tuple[_Listed, dict[str, JsonValue]]] = {}
    for raw in listing:
        try:
            entry, whole = _entry(raw)
        except (ValidationError, ValueError, PlanwardenError) as error:
            notes.append(f"a tool was left out: {_reason(error)}")
            continue
        if entry.name in entries:
            notes.append(f"tool {one_line(entry.name, 64)!r} was listed twice; the first one counts")
            continue
        entries[entry.name] = (entry, whole)
    # Names that differ only in case, or only in what they lose in ours, all get a mark; none of them is the real one.
    alike = Counter(_tidied(name).casefold() for name in entries)
    others = tuple(f"{other}_" for other in slugs if other != config.slug)
    tools: list[DownstreamTool] = []
    for told_name, (entry, whole) in entries.items():
        name = _name(config.slug, told_name, others, taken, is_alike=alike[_tidied(told_name).casefold()] > 1)
        try:
            output = None if entry.outputSchema is None else Schema(entry.outputSchema)
            Schema(entry.inputSchema)
        except ValueError as error:
            notes.append(
                f"tool {one_line(told_name, 64)!r} was left out: a schema of it is not usable: {_reason(error)}"
            )
            continue
        tools.append(DownstreamTool(_definition(config, name, entry, whole), told_name, output))
    return ServerOffer(tuple(tools), tuple(notes))


def one_line(text: str, limit: int) -> str:
    """The text on one line of at most `limit` characters, white space collapsed, what does not show written as escapes."""
    head = " ".join(text[: limit * 2].split())
    shown = "".join(character if _shows(character) else f"\\u{ord(character):04x}" for character in head)
    return shown if len(shown) <= limit and len(text) <= limit * 2 else f"{shown[: limit - 3]}..."


def _shows(character: str) -> bool:
    return " " <= character <= "~" or unicodedata.category(character)[0] not in "CZM"


def _entry(raw: JsonValue) -> tuple[_Listed, dict[str, JsonValue]]:
    if not isinstance(raw, dict):
        raise InvalidArguments("it is not an object")
    check_depth(raw)
    # What servers keep for themselves may differ from one listing to the next, and nobody is shown it.
    whole = {key: value for key, value in raw.items() if key not in ("_meta", "icons")}
    if len(canonical_json(whole)) > MAX_DEFINITION_BYTES:
        raise ValueError(f"its definition is larger than {MAX_DEFINITION_BYTES} bytes")
    return _Listed.model_validate(raw), whole


def _name(server: str, told_name: str, others: Sequence[str], taken: Collection[str], *, is_alike: bool) -> str:
    name = f"{server}_{_tidied(told_name)}"
    is_foreign = any(name.casefold().startswith(other.casefold()) and len(other) > len(server) + 1 for other in others)
    is_plain = _PLAIN.fullmatch(told_name) is not None
    if (
        is_plain
        and not (is_alike or is_foreign)
        and len(name) <= MAX_NAME_CHARS
        and name not in taken
        and name not in RESERVED
    ):
        return name
    mark = hashlib.sha256(f"{server}\0{told_name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: MAX_NAME_CHARS - 9]}_{mark}"


def _tidied(told_name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", told_name)


def _definition(config: ServerConfig, name: str, entry: _Listed, whole: dict[str, JsonValue]) -> ToolDefinition:
    hints = entry.annotations or _Hints()
    title = entry.title or hints.title
    text = entry.description or title or entry.name
    if title and entry.description and not entry.description.startswith(title):
        text = f"{title}: {entry.description}"
    risk, effect = _judged(hints, trusted=config.settings.trusted)
    return ToolDefinition(
        name=name,
        description=one_line(text, MAX_DESCRIPTION_CHARS),
        input_schema=entry.inputSchema,
        output_schema=entry.outputSchema,
        risk=risk,
        effect=effect,
        source=config.name,
        timeout_s=config.settings.timeout_s,
        annotations=hints.model_dump(exclude_none=True),
        origin=digest({"server": config.fingerprint, "tool": whole}, context="downstream/v1"),
    )


def _judged(hints: _Hints, *, trusted: bool) -> tuple[Risk, Effect]:
    """Risk and effect; without trust everything is dangerous and may have happened."""
    if not trusted:
        return "dangerous", "effect"
    if hints.readOnlyHint and not hints.destructiveHint:
        return "read", "read"
    effect: Effect = "idempotent" if hints.idempotentHint else "effect"
    # Left out, both mean true: https://modelcontextprotocol.io/specification/2025-11-25/schema#toolannotations
    is_tame = hints.destructiveHint is False and hints.openWorldHint is False
    return ("confirm" if is_tame else "dangerous"), effect


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return one_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 160)
    return one_line(str(error), 160)
