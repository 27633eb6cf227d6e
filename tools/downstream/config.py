"""Which downstream MCP servers there are: an `mcpServers` object as every host writes it, and what the operator adds.

Hosts differ in what else they put into an entry, so unknown keys are noted, not refused; wrong values of known keys are
refused with the server and the key. `${NAME}` and `${NAME:-default}` are filled in from the environment; a variable that
is not set makes its own server unavailable and no other. Nothing is started here.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.common.canonical import digest, read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError

MAX_SERVERS = 64
MAX_FILE_BYTES = 1024 * 1024
OURS = frozenset({"builtin", "python"})
"""Sources of tools that no server may claim."""
START_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 60.0

Start = Literal["lazy", "eager"]
Stamp = tuple[int, int, int]
"""Of a file."""

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_REFERENCE = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_HTTP_TYPES = frozenset({"http", "streamable-http", "streamableHttp", "streamable_http"})
_NOTES = {
    "timeout": "some hosts mean seconds and some milliseconds; set timeout_s under [servers.NAME] in planwarden.toml",
    "trust": "trust is the operator's: set trusted = true under [servers.NAME] in planwarden.toml",
    "autoApprove": 'approval is the operator\'s: set risk under [tools."NAME"] in planwarden.toml',
    "alwaysAllow": 'approval is the operator\'s: set risk under [tools."NAME"] in planwarden.toml',
}


class LoginSettings(BaseModel):
    """`[servers.NAME.login]` in planwarden.toml: as which client a person logs in; without any, one is registered."""

    model_config = ConfigDict(extra="forbid", strict=True)
    client_id: str | None = Field(default=None, min_length=1, max_length=2_000)
    """The client that the operator registered there; without one, the server is asked to register one."""
    client_secret_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The environment variable that holds the client's secret."""
    client_auth: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the secret is sent."""
    client_metadata_url: str | None = Field(default=None, pattern=r"^https://[^/\s]+/\S+$", max_length=2_000)
    """Of a document that describes the client; it is the client's id where the server accepts that."""
    issuer: str | None = Field(default=None, pattern=r"^https?://[^/\s]+\S*$", max_length=2_000)
    """The authorization server that the client is registered with; no other one is shown the client or its secret. Unless it is
    set, the one of the first login counts."""
    redirect_port: int | None = Field(default=None, ge=1, le=65_535)
    """Where the browser comes back to on this machine; any free port unless it is set."""


class ServerSettings(BaseModel):
    """`[servers.NAME]` in planwarden.toml."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    trusted: bool = False
    """The server's hints may lower the risk of its tools."""
    start: Start = "lazy"
    """`lazy` starts it with the first call of one of its tools, `eager` at once."""
    start_timeout_s: float = Field(default=START_TIMEOUT_S, gt=0, le=600)
    """Seconds that its start may take."""
    timeout_s: float = Field(default=CALL_TIMEOUT_S, gt=0)
    """Seconds that a call of one of its tools may take."""
    login: LoginSettings = Field(default_factory=LoginSettings, repr=False)
    """As which client a person logs in to it."""
    agent: bool = False
    """It runs goals for us; plans then have `delegate_to_agent`."""
    run_tool: str = Field(default="run_goal", min_length=1, max_length=128)
    """The agent's tool that takes a goal."""
    get_tool: str = Field(default="get_execution", min_length=1, max_length=128)
    """The agent's tool that says how an execution stands."""
    resume_tool: str = Field(default="resume_execution", min_length=1, max_length=128)
    """The agent's tool that takes a decision."""
    cancel_tool: str = Field(default="cancel_execution", min_length=1, max_length=128)
    """The agent's tool that stops an execution."""


class _Entry(BaseModel):
    """One server, as hosts write it."""

    model_config = ConfigDict(extra="allow", strict=True, defer_build=True)
    command: str | None = Field(default=None, min_length=1)
    """Program of a local server, which speaks over its standard input and output; either this or `url`."""
    args: list[str] = Field(default_factory=list[str])
    """Its arguments."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    """Its environment variables, besides the few that every local server gets."""
    cwd: str | None = None
    """Folder in which it runs, relative to this file."""
    url: str | None = None
    """Address of a server that speaks Streamable HTTP."""
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    """Sent with every request to `url`, such as `Authorization`."""
    type: str | None = None
    """`stdio` with a command, `http` with a url; may be left out."""
    transport: str | None = None
    """The same as `type`, as some hosts write it."""
    disabled: bool = False
    """Leave the server out."""
    enabled: bool = True
    """The same the other way round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One downstream server."""

    name: str
    """As in the file."""
    slug: str
    """The beginning of its tools' names."""
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """In addition to the few variables that every child gets; may hold keys, so it stands in no representation."""
    cwd: Path | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    client_secret: str | None = field(default=None, repr=False)
    """Of the client that a person logs in with."""
    is_disabled: bool = False
    problem: str | None = None
    """Why it cannot be started, known without trying."""
    fingerprint: str = ""
    """Digest of how it is reached, without the values of variables and headers; a cached listing belongs to it."""
    settings: ServerSettings = field(default_factory=ServerSettings)

    @property
    def is_local(self) -> bool:
        return self.command is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginLocation:
    """Where a person's login to one server is kept, and how the person gives one."""

    path: Path
    command: str
    """To be run in a terminal."""

    def stamp(self) -> Stamp | None:
        """Another one after every change; None when there is no login."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True, slots=True)
class ServerList:
    """All configured servers in the order of the file, and what was noticed while reading it."""

    configs: tuple[ServerConfig, ...] = ()
    notes: tuple[str, ...] = ()


def read_servers(
    path: Path, environment: Mapping[str, str], settings: Mapping[str, ServerSettings], *, must_exist: bool
) -> ServerList:
    """The servers of the file; none when there is no file and there need not be one.

    Raises:
        InvalidArguments: it cannot be read, is not an `mcpServers` object, or an entry has a wrong value.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if must_exist:
            raise InvalidArguments(f"there is no file {str(path)!r} (--mcp-config)") from None
        return ServerList(notes=_unused(settings, ()))
    except OSError as error:
        raise InvalidArguments(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InvalidArguments(f"{str(path)!r} is larger than {MAX_FILE_BYTES} bytes")
    try:
        document = read_json(data)
    except PlanwardenError as error:
        raise InvalidArguments(f"{str(path)!r} is {error.message}") from None
    try:
        return _servers(document, path.parent, environment, settings)
    except InvalidArguments as error:
        raise InvalidArguments(f"{str(path)!r}: {error.message}") from None


def slug(name: str) -> str:
    """The name in letters, digits, `_` and `-`."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return plain if plain[:1].isalpha() else f"s{plain}"


def _servers(
    document: JsonValue, folder: Path, environment: Mapping[str, str], settings: Mapping[str, ServerSettings]
) -> ServerList:
    listed = document.get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(listed, dict):
        raise InvalidArguments('expected {"mcpServers": {"NAME": {"command": "...", "args": []}}}')
    if len(listed) > MAX_SERVERS:
        raise InvalidArguments(f"{len(listed)} servers are configured, the limit is {MAX_SERVERS}")
    notes = [f"{key!r} beside mcpServers is not read" for key in document if key != "mcpServers"]
    configs: dict[str, ServerConfig] = {}
    for name, entry in listed.items():
        config, noted = _config(name, entry, folder, environment, settings.get(name, ServerSettings()))
        notes.extend(noted)
        other = configs.setdefault(config.slug.casefold(), config)
        if other is not config:
            raise InvalidArguments(
                f"the tools of servers {other.name!r} and {name!r} would have the same names; rename one"
            )
    return ServerList(tuple(configs.values()), (*notes, *_unused(settings, listed.keys())))


def _unused(settings: Mapping[str, ServerSettings], names: Collection[str]) -> tuple[str, ...]:
    return tuple(
        f"planwarden.toml has settings for a server {name!r} that is not configured"
        for name in settings
        if name not in names
    )


def _config(
    name: str, raw: JsonValue, folder: Path, environment: Mapping[str, str], settings: ServerSettings
) -> tuple[ServerConfig, list[str]]:
    where = f"mcpServers.{name[:64]}"
    if not name.strip() or len(name) > 48:
        raise InvalidArguments(f"{where}: a server's name has 1 to 48 characters")
    if name in OURS:
        raise InvalidArguments(f"{where}: {name!r} is what our own tools are marked with; rename the server")
    try:
        entry = _Entry.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InvalidArguments(f"{where}{'.' if key else ''}{key}: {first['msg']}") from None
    _check_kind(entry, where)
    notes = [f"{where}.{key} is not read" + (f": {_NOTES[key]}" if key in _NOTES else "") for key in _unread(entry)]
    plain = ServerConfig(
        name=name,
        slug=slug(name),
        is_disabled=entry.disabled or not entry.enabled,
        fingerprint=_fingerprint(name, entry),
        settings=settings,
    )
    try:
        return _expanded(plain, entry, folder, environment), notes
    except _Unset as error:
        return replace(plain, command=entry.command, url=entry.url, problem=f"{where}.{error}"), notes


def _check_kind(entry: _Entry, where: str) -> None:
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


def _unread(entry: _Entry) -> list[str]:
    return sorted(entry.model_extra or {})


def _fingerprint(name: str, entry: _Entry) -> str:
    facts: JsonValue = {
        "name": name,
        "command": entry.command,
        "args": list[JsonValue](entry.args),
        "cwd": entry.cwd,
        "url": entry.url,
        "env": list[JsonValue](sorted(entry.env)),
        "headers": list[JsonValue](sorted(entry.headers)),
    }
    return digest(facts, context="server/v1")


class _Unset(Exception):
    """A variable cannot be filled in."""


def _expanded(plain: ServerConfig, entry: _Entry, folder: Path, environment: Mapping[str, str]) -> ServerConfig:
    def filled(key: str, text: str) -> str:
        return _filled(key, text, environment)

    secret = plain.settings.login.client_secret_env
    config = replace(
        plain,
        command=None if entry.command is None else filled("command", entry.command),
        args=tuple(filled(f"args.{place}", text) for place, text in enumerate(entry.args)),
        env={key: filled(f"env.{key}", text) for key, text in entry.env.items()},
        cwd=None if entry.cwd is None else folder / Path(filled("cwd", entry.cwd)).expanduser(),
        url=None if entry.url is None else filled("url", entry.url),
        headers={key: filled(f"headers.{key}", text) for key, text in entry.headers.items()},
        client_secret=None if secret is None else filled("login.client_secret_env", f"${{{secret}}}"),
    )
    ourselves = _is_ourselves(config)
    return replace(config, problem=ourselves, is_disabled=config.is_disabled or ourselves is not None)


def _filled(key: str, text: str, environment: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        reference = _REFERENCE.fullmatch(found[1])
        if reference is None:
            raise _Unset(f"{key}: {found[0][:80]!r} cannot be filled in; only ${{NAME}} and ${{NAME:-default}} can")
        known, default = environment.get(reference[1]), reference[2]
        if known or (known is not None and default is None):
            return known
        if default is None:
            raise _Unset(f"{key}: the environment variable {reference[1]!r} is not set")
        return default

    return _VARIABLE.sub(value, text)


def _is_ourselves(config: ServerConfig) -> str | None:
    """A block pasted from a host names planwarden too, which would start itself without end."""
    words = [config.command or "", *config.args]
    named = any(Path(word).name in ("planwarden", "planwarden.exe", "planwarden.server.main") for word in words)
    if not named or "PLANWARDEN_HOME" in config.env or "--home" in words:
        return None
    return (
        f"mcpServers.{config.name} is planwarden itself and is left out; "
        "another one needs a home of its own (PLANWARDEN_HOME in env)"
    )
