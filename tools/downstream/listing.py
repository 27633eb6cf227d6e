"""Reads and caches the tools that servers list, and builds our definitions from them. What a server says is a claim.

With the cache, a process knows the tools before it starts a server. Each server has one file in the home, which counts
as outside input: limited in size, checked, and ignored if invalid. A wrong or old listing causes one needless question
at most: each call compares the definition with the server's own.

Names are `<server>_<tool>`, with a hash if necessary. They do not depend on the listings of other servers. Each
description becomes one line of limited length with invisible characters escaped. If the operator does not trust the
server, its hints lower no risk: every tool is dangerous. The digest covers the whole definition.
See https://modelcontextprotocol.io/specification/2025-11-25/server/tools#data-types.
"""

import hashlib
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.common.canonical import canonical_json, check_depth, digest, read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, ToolError
from planwarden.agent.common.paths import replace_file
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.prompts import DELEGATE
from planwarden.agent.core.tool import Effect, Risk, ToolDefinition
from planwarden.tools.downstream.config import ServerConfig, build_slug
from planwarden.tools.downstream.sdk import mcp
from planwarden.tools.guarded.hosts import OWN_TOOLS

logger = logging.getLogger(__name__)

FOLDER = "downstream"
"""The folder below the home for the listings, logs and logins of servers."""
MAX_TOOLS = 1_000
MAX_PAGES = 100
MAX_LISTING_BYTES = 6 * 1024 * 1024
MAX_CACHE_BYTES = 8 * 1024 * 1024
FORM = 1
MAX_NAME_CHARS = 64
MAX_REMOTE_NAME_CHARS = 256
MAX_DESCRIPTION_CHARS = 2_000
MAX_DEFINITION_BYTES = 128 * 1024
RESERVED = (OWN_TOOLS - {"run_plan"}) | {DELEGATE}
"""Names that models know as tools of planwarden itself. No downstream tool gets one of them."""
MALFORMED = "planwarden/malformed"
"""The key in `_meta` of the stand-in for a malformed tool; its value says what was wrong with that tool."""
_HASHED = re.compile(r".+_[0-9a-f]{8}")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class _Hints(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)
    title: str | None = None
    readOnlyHint: bool | None = None
    destructiveHint: bool | None = None
    idempotentHint: bool | None = None
    openWorldHint: bool | None = None


class _ListedTool(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)
    name: str = Field(min_length=1, max_length=MAX_REMOTE_NAME_CHARS)
    title: str | None = None
    description: str | None = None
    inputSchema: dict[str, JsonValue]
    outputSchema: dict[str, JsonValue] | None = None
    annotations: _Hints | None = None


class DownstreamTool(msgspec.Struct, frozen=True):
    """One usable tool of a server."""

    definition: ToolDefinition
    remote_name: str
    """The server's own name for the tool."""
    input: Schema
    output: Schema | None


def build_tools(
    config: ServerConfig, listing: Sequence[JsonValue], *, other_tools: Collection[str], slugs: Iterable[str] = ()
) -> tuple[list[DownstreamTool], list[str]]:
    """Return the usable tools of the listing in its order, and notes about what was left out.

    A tool that cannot be used does not affect the others. `other_tools` has the names of the tools that come from no
    server, and `slugs` the slugs of all servers. This can be slow: a listing may have megabytes of schemas.
    """
    notes: list[str] = []
    entries: dict[str, tuple[_ListedTool, dict[str, JsonValue]]] = {}
    for raw in listing:
        try:
            entry, whole = _read_entry(raw, is_gated=config.is_gated)
        except (ValidationError, ValueError, PlanwardenError) as error:
            name = raw.get("name") if isinstance(raw, dict) else None
            which = f"tool {one_line(name, 64)!r}" if name and isinstance(name, str) else "a tool"
            notes.append(f"{which} was left out: {_describe(error)}")
            continue
        if entry.name in entries:
            notes.append(f"tool {one_line(entry.name, 64)!r} was listed twice; the first one counts")
        else:
            entries[entry.name] = (entry, whole)
    # Names that differ only in case, or only in characters that our names cannot have, all get a hash.
    counts = Counter(_replace_special(name).casefold() for name in entries)
    other_prefixes = tuple(f"{other}_" for other in slugs if other != config.slug)
    tools: list[DownstreamTool] = []
    for remote_name, (entry, whole) in entries.items():
        is_ambiguous = counts[_replace_special(remote_name).casefold()] > 1
        name = _build_name(config.slug, remote_name, other_prefixes, other_tools, is_ambiguous=is_ambiguous)
        try:
            output = None if entry.outputSchema is None else Schema(entry.outputSchema)
            arguments = Schema(entry.inputSchema, checks_dates=True, has_defaults=not config.is_gated)
        except ValueError as error:
            notes.append(
                f"tool {one_line(remote_name, 64)!r} was left out: one of its schemas is not usable: {_describe(error)}"
            )
            continue
        tools.append(DownstreamTool(_build_definition(config, name, entry, whole), remote_name, arguments, output))
    return tools, notes


def one_line(text: str, limit: int) -> str:
    """Return the text as one line of at most `limit` characters; collapse white space, escape invisible characters."""
    head = " ".join(text[: limit * 2].split())
    line = "".join(
        c if " " <= c <= "~" or unicodedata.category(c)[0] not in "CZM" else f"\\u{ord(c):04x}" for c in head
    )
    return line if len(line) <= limit and len(text) <= limit * 2 else f"{line[: limit - 3]}..."


def _read_entry(raw: JsonValue, *, is_gated: bool) -> tuple[_ListedTool, dict[str, JsonValue]]:
    if not isinstance(raw, dict):
        raise InvalidArguments("it is not an object")
    check_depth(raw)
    meta = raw.get("_meta")
    if isinstance(meta, dict) and MALFORMED in meta:
        raise InvalidArguments(str(meta[MALFORMED]))
    # No person and no model sees `_meta` and `icons`, and they may differ from one listing to the next.
    whole = {key: value for key, value in raw.items() if key not in ("_meta", "icons")}
    if len(canonical_json(whole)) > MAX_DEFINITION_BYTES:
        raise ValueError(f"its definition is larger than {MAX_DEFINITION_BYTES} bytes")
    entry = _ListedTool.model_validate(raw)
    # A gate sees keys that the SDK leaves out, and a process without the gate must compute the same digest.
    return entry, entry.model_dump(mode="json", exclude_none=True) if is_gated else whole


def _build_name(
    slug: str, remote_name: str, other_prefixes: Sequence[str], other_tools: Collection[str], *, is_ambiguous: bool
) -> str:
    """Return `<slug>_<tool>`, with a hash if that is ambiguous, too long or taken, or if `remote_name` is not plain."""
    name = f"{slug}_{_replace_special(remote_name)}"
    longer = (other.casefold() for other in other_prefixes if len(other) > len(slug) + 1)
    is_foreign = name.casefold().startswith(tuple(longer))
    # A name that begins with another server's slug must not look like a hashed name of that server's tool.
    is_foreign = is_foreign or (name.startswith(tuple(other_prefixes)) and _HASHED.fullmatch(name) is not None)
    is_special = _PLAIN.fullmatch(remote_name) is None or len(name) > MAX_NAME_CHARS
    if is_special or is_ambiguous or is_foreign or name in other_tools or name in RESERVED:
        return _build_hashed_name(slug, remote_name)
    return name


def _build_hashed_name(slug: str, remote_name: str) -> str:
    suffix = hashlib.sha256(f"{slug}\0{remote_name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{f'{slug}_{_replace_special(remote_name)}'[: MAX_NAME_CHARS - 9]}_{suffix}"


def find_possible_names(slug: str, name: str) -> tuple[str, ...]:
    """Return the catalogue names that `name` may mean: itself, and those that the server's tool `name` may have."""
    return name, f"{slug}_{_replace_special(name)}", _build_hashed_name(slug, name)


def says_it_only_reads(definition: ToolDefinition) -> bool:
    """Return whether the server claims, in its hints, that the tool changes nothing."""
    hints = definition.annotations
    return hints.get("readOnlyHint") is True and hints.get("destructiveHint") is not True


def _replace_special(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _build_definition(
    config: ServerConfig, name: str, entry: _ListedTool, whole: dict[str, JsonValue]
) -> ToolDefinition:
    hints = entry.annotations or _Hints()
    title = entry.title or hints.title
    text = entry.description or title or entry.name
    if title and entry.description and not entry.description.startswith(title):
        text = f"{title}: {entry.description}"
    risk, effect = _classify(hints, is_trusted=config.settings.trusted)
    return ToolDefinition(
        name=name,
        description=one_line(text, MAX_DESCRIPTION_CHARS),
        input_schema=entry.inputSchema,
        output_schema=entry.outputSchema,
        risk=risk,
        effect=effect,
        source=config.name,
        timeout_s=config.settings.timeout_s,
        is_gated=config.is_gated,
        annotations=hints.model_dump(exclude_none=True),
        origin=digest({"server": config.fingerprint, "tool": whole}, context="downstream/v1"),
    )


def _classify(hints: _Hints, *, is_trusted: bool) -> tuple[Risk, Effect]:
    """Return the tool's risk and effect. Each tool of an untrusted server is dangerous and has an effect."""
    if not is_trusted:
        return "dangerous", "effect"
    if hints.readOnlyHint and not hints.destructiveHint:
        return "read", "read"
    effect: Effect = "idempotent" if hints.idempotentHint else "effect"
    # Both hints are true by default: https://modelcontextprotocol.io/specification/2025-11-25/schema#toolannotations
    is_harmless = hints.destructiveHint is False and hints.openWorldHint is False
    return ("confirm" if is_harmless else "dangerous"), effect


def _describe(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return one_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 160)
    return one_line(str(error), 160)


async def read_listing(client: "mcp.Client") -> tuple[list[JsonValue], str | None]:
    """Return the tools as the server lists them, and a note if some are missing.

    Raises `ToolError`: the listing is larger than `MAX_LISTING_BYTES`.
    """
    if client.server_capabilities.tools is None:
        return [], "it offers no tools"
    tools: list[JsonValue] = []
    cursor: str | None = None
    cursors: set[str] = set()
    size = 0
    for _ in range(MAX_PAGES):
        page = await client.session.list_tools(params=mcp.types.PaginatedRequestParams(cursor=cursor))
        for tool in page.tools[: MAX_TOOLS - len(tools)]:
            tools.append(tool.model_dump(mode="json", by_alias=True, exclude_none=True))
            size += len(canonical_json(tools[-1]))
            if size > MAX_LISTING_BYTES:
                raise ToolError(f"its listing is larger than {MAX_LISTING_BYTES} bytes")
        if len(page.tools) > MAX_TOOLS or (len(tools) >= MAX_TOOLS and page.next_cursor is not None):
            return tools, f"it lists more than {MAX_TOOLS} tools; the others are left out"
        cursor = page.next_cursor
        if cursor is None:
            return tools, None
        if cursor in cursors:
            return tools, "its listing returns to a page that it sent before"
        cursors.add(cursor)
    return tools, f"its listing has more than {MAX_PAGES} pages; the others are left out"


def normalize_listing(listing: list[JsonValue]) -> list[JsonValue]:
    """Return a gate's listing in the form that `read_listing` returns. A tool that the SDK refuses stays as it is."""
    tools: list[JsonValue] = []
    for entry in listing:
        with suppress(ValidationError):
            tool = mcp.types.Tool.model_validate(entry, by_name=False)
            entry = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
        tools.append(entry)
    return tools


def load_listing(folder: Path, config: ServerConfig) -> list[JsonValue] | None:
    """Return the tools of the last listing, or None if the folder has no listing for this configuration."""
    try:
        with _find_file(folder, config).open("rb") as file:
            data = file.read(MAX_CACHE_BYTES + 1)
        document = read_json(data) if len(data) <= MAX_CACHE_BYTES else None
    except (OSError, PlanwardenError):
        return None
    if not isinstance(document, dict) or (document.get("form"), document.get("server")) != (FORM, config.fingerprint):
        return None
    tools = document.get("tools")
    return tools if isinstance(tools, list) else None


def save_listing(folder: Path, config: ServerConfig, tools: list[JsonValue]) -> None:
    """Store the listing for the next process. Log a warning when the folder cannot be written to."""
    if not folder.parent.is_dir():
        return
    text = canonical_json({"form": FORM, "server": config.fingerprint, "tools": tools})
    if len(text) > MAX_CACHE_BYTES:
        return
    path = _find_file(folder, config)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        logger.warning("cannot keep the listing of server %r in %s: %s", config.name, path, error.strerror)


def _find_file(folder: Path, config: ServerConfig) -> Path:
    return folder / f"{file_stem(config.name)}.json"


def file_stem(server: str) -> str:
    """Return the server's file name without its ending, unique even on file systems that ignore case."""
    return f"{build_slug(server)[:40]}-{digest(server)[:8]}"
