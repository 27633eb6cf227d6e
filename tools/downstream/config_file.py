"""Reads `planwarden.json`: an `mcpServers` object, as every MCP host writes it.

Hosts put different keys into an entry, so an unknown key becomes a note. A wrong value of a known key is refused, and
the error names the server and the key. `${NAME}` and `${NAME:-default}` take their values from the environment. A
variable that is not set and has no default makes only the servers that use it unavailable. Reading starts no server.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.common.canonical import digest, read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError
from planwarden.agent.common.paths import expand_home
from planwarden.tools.downstream.config import ServerConfig, ServerList, ServerSettings

MAX_SERVERS = 64
MAX_FILE_BYTES = 1024 * 1024
RESERVED_SOURCES = frozenset({"builtin", "python"})
"""The sources of planwarden's own tools. No server may have such a name."""

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_REFERENCE = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""https://www.rfc-editor.org/rfc/rfc9110#section-5.1"""
_HTTP_TYPES = frozenset({"http", "streamable-http", "streamableHttp", "streamable_http"})
_NOTES = {
    "timeout": "some hosts mean seconds and some milliseconds; set timeout_s under [servers.NAME] in planwarden.toml",
    "trust": "trust is the operator's: set trusted = true under [servers.NAME] in planwarden.toml",
    "autoApprove": 'approval is the operator\'s: set risk under [tools."NAME"] in planwarden.toml',
    "alwaysAllow": 'approval is the operator\'s: set risk under [tools."NAME"] in planwarden.toml',
}


class ServerEntry(BaseModel):
    """One server, as hosts write it."""

    model_config = ConfigDict(extra="allow", strict=True, defer_build=True)
    command: str | None = Field(default=None, min_length=1)
    """Program of a local server that speaks MCP over its standard input and output; set either this or `url`."""
    args: list[str] = Field(default_factory=list[str])
    """The program's arguments."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    """The program's environment variables, in addition to the few that every local server gets."""
    cwd: str | None = None
    """Folder in which the program runs, relative to the folder of this file."""
    url: str | None = None
    """Address of a server that speaks Streamable HTTP."""
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    """HTTP headers that are sent with every request to `url`, such as `Authorization`."""
    type: str | None = None
    """`stdio` with a command, `http` with a url; not required."""
    transport: str | None = None
    """The same as `type`, as some hosts write it."""
    disabled: bool = False
    """Whether to leave the server out."""
    enabled: bool = True
    """The opposite of `disabled`, as some hosts write it."""


class _Unusable(Exception):
    """A `${...}` reference is malformed or has no value, or its value cannot be used. The message begins with the key
    and never shows the value, which may be a secret."""


def read_servers(
    path: Path, environment: Mapping[str, str], settings: Mapping[str, ServerSettings], *, must_exist: bool
) -> ServerList:
    """Return the servers in the file; an empty list if there is no file and `must_exist` is False.

    Raises `InvalidArguments`: the file cannot be read, is not an `mcpServers` object, or an entry has a wrong value.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if must_exist:
            raise InvalidArguments(f"there is no file {str(path)!r} (--mcp-config)") from None
        return ServerList()
    except OSError as error:
        raise InvalidArguments(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InvalidArguments(f"{str(path)!r} is larger than {MAX_FILE_BYTES} bytes")
    try:
        document = read_json(data)
    except PlanwardenError as error:
        raise InvalidArguments(f"{str(path)!r} is {error.message}") from None
    try:
        return _read_document(document, path.parent, environment, settings)
    except InvalidArguments as error:
        raise InvalidArguments(f"{str(path)!r}: {error.message}") from None


def _read_document(
    document: JsonValue, folder: Path, environment: Mapping[str, str], settings: Mapping[str, ServerSettings]
) -> ServerList:
    entries = document.get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(entries, dict):
        raise InvalidArguments('expected {"mcpServers": {"NAME": {"command": "...", "args": []}}}')
    if len(entries) > MAX_SERVERS:
        raise InvalidArguments(f"{len(entries)} servers are configured, the limit is {MAX_SERVERS}")
    notes = [f"{key!r} beside mcpServers is not read" for key in document if key != "mcpServers"]
    configs: dict[str, ServerConfig] = {}
    for name, raw in entries.items():
        where = f"mcpServers.{name[:64]}"
        entry = _read_entry(name, raw, where)
        notes += [
            f"{where}.{key} is not read" + (f": {_NOTES[key]}" if key in _NOTES else "")
            for key in sorted(entry.model_extra or {})
        ]
        config = _build_config(name, entry, folder, environment, settings.get(name, ServerSettings()))
        other = configs.setdefault(config.slug.casefold(), config)
        if other is not config:
            raise InvalidArguments(
                f"the tools of servers {other.name!r} and {name!r} would have the same names; rename one"
            )
    return ServerList(tuple(configs.values()), tuple(notes))


def _read_entry(name: str, raw: JsonValue, where: str) -> ServerEntry:
    if not name.strip() or len(name) > 48:
        raise InvalidArguments(f"{where}: a server's name has 1 to 48 characters")
    if name in RESERVED_SOURCES:
        raise InvalidArguments(f"{where}: {name!r} is the source of planwarden's own tools; rename the server")
    try:
        entry = ServerEntry.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidArguments(f"{'.'.join([where, *map(str, first['loc'])])}: {first['msg']}") from None
    _check_kind(entry, where)
    return entry


def _check_kind(entry: ServerEntry, where: str) -> None:
    kind = entry.type or entry.transport
    if (entry.command is None) == (entry.url is None):
        raise InvalidArguments(f"{where} needs either a 'command' or a 'url'")
    if kind == "sse":
        raise InvalidArguments(
            f"{where}: the HTTP+SSE transport of 2024 is not supported; use the server's Streamable HTTP address"
        )
    if kind is not None and kind not in ({"stdio"} if entry.command is not None else _HTTP_TYPES):
        raise InvalidArguments(f"{where}.type is {kind[:64]!r}; it can be 'stdio' with a command, or 'http' with a url")
    if entry.url is not None and not entry.url.startswith(("http://", "https://", "${")):
        raise InvalidArguments(f"{where}.url does not begin with http:// or https://")


def _build_config(
    name: str, entry: ServerEntry, folder: Path, environment: Mapping[str, str], settings: ServerSettings
) -> ServerConfig:
    """Return the server with every reference replaced. If one cannot be, set `problem` and leave out headers etc."""
    facts = entry.model_dump(include={"command", "args", "cwd", "url"})
    facts |= {"name": name, "env": sorted(entry.env), "headers": sorted(entry.headers)}
    plain = ServerConfig(
        name=name,
        command=entry.command,
        url=entry.url,
        is_disabled=entry.disabled or not entry.enabled,
        fingerprint=digest(facts, context="server/v1"),
        settings=settings,
    )

    expand = partial(_expand_references, environment)
    secret = settings.login.client_secret_env
    try:
        config = replace(
            plain,
            command=None if entry.command is None else expand("command", entry.command),
            args=tuple(expand(f"args.{index}", text) for index, text in enumerate(entry.args)),
            env={key: expand(f"env.{key}", text) for key, text in entry.env.items()},
            cwd=None if entry.cwd is None else folder / expand_home(expand("cwd", entry.cwd)),
            url=None if entry.url is None else _check_url(expand("url", entry.url)),
            headers={key: _check_header(key, expand(f"headers.{key}", text)) for key, text in entry.headers.items()},
            client_secret=None if secret is None else expand("login.client_secret_env", f"${{{secret}}}").strip(),
        )
    except _Unusable as error:
        return replace(plain, problem=f"mcpServers.{name[:64]}.{error}")
    problem = _find_self_reference(config)
    return replace(config, problem=problem, is_disabled=config.is_disabled or problem is not None)


def _expand_references(environment: Mapping[str, str], key: str, text: str) -> str:
    def find_value(match: re.Match[str]) -> str:
        reference = _REFERENCE.fullmatch(match[1])
        if reference is None:
            raise _Unusable(f"{key}: {match[0][:80]!r} cannot be filled in; only ${{NAME}} and ${{NAME:-default}} can")
        value, default = environment.get(reference[1]), reference[2]
        if default is None and value is None:
            raise _Unusable(f"{key}: the environment variable {reference[1]!r} is not set")
        return value or default or ""

    return _VARIABLE.sub(find_value, text)


def _check_url(text: str) -> str:
    url = text.strip()
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    # `urlsplit` drops line breaks, which the connection refuses.
    if not (is_address and url.isprintable()):
        raise _Unusable("url: it is not an http or https address")
    return url


def _check_header(name: str, text: str) -> str:
    """Return the value without white space around it, such as the line break at the end of a file with a token."""
    value = text.strip()
    if not _HEADER.fullmatch(name) or not (value.isascii() and value.replace("\t", " ").isprintable()):
        raise _Unusable(f"headers.{name}: it has characters that a header cannot hold")
    return value


def _find_self_reference(config: ServerConfig) -> str | None:
    """Return what is wrong if the entry, perhaps pasted from a host, starts planwarden endlessly; otherwise None."""
    words = [config.command or "", *config.args]
    is_named = any(Path(word).name in ("planwarden", "planwarden.exe", "planwarden.server.main") for word in words)
    if not is_named or "PLANWARDEN_HOME" in config.env or "--home" in words:
        return None
    return (
        f"mcpServers.{config.name} is planwarden itself and is left out; "
        "a second planwarden needs a home of its own (PLANWARDEN_HOME in env)"
    )
