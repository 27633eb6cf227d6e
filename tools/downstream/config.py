"""The configuration of downstream MCP servers, as the rest of planwarden uses it, and where their logins are kept.

`planwarden.json`, which `config_file.py` reads, says how to reach each server. `[servers.NAME]` in `planwarden.toml`
has the operator's settings for that server.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from planwarden.agent.core.tool import MAX_WAIT_S
from planwarden.agent.ports.environment import SecretStore

START_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 60.0

StartMode = Literal["lazy", "eager"]


def build_slug(name: str) -> str:
    """Return the name in letters, digits, `_` and `-`, starting with a letter."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return plain if plain[:1].isalpha() else f"s{plain}"


class LoginSettings(BaseModel):
    """`[servers.NAME.login]` in planwarden.toml: the OAuth client that a person logs in with."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    client_id: str | None = Field(default=None, min_length=1, max_length=2_000)
    """Id of the client that the operator registered. Without it, `client_metadata_url` is the id if the
    authorization server accepts such ids; otherwise planwarden registers a client with that server."""
    client_secret_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The environment variable that holds the client's secret."""
    client_auth: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the secret is sent."""
    client_metadata_url: str | None = Field(default=None, pattern=r"^https://[^/\s]+/\S+$", max_length=2_000)
    """Address of a document that describes the client; the address is the client's id where the server accepts that."""
    issuer: str | None = Field(default=None, pattern=r"^https?://[^/\s]+\S*$", max_length=2_000)
    """The authorization server with which `client_id` is registered; planwarden uses `client_id` and its secret with no
    other. By default, the authorization server of the first login."""
    redirect_port: int | None = Field(default=None, ge=1, le=65_535)
    """The port on this machine to which the browser returns. By default, the port with which the stored client was
    registered, if that port is free; otherwise any free port."""


class ServerSettings(BaseModel):
    """`[servers.NAME]` in planwarden.toml."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    trusted: bool = False
    """Whether the server's hints may lower the risk of its tools."""
    start: StartMode = "lazy"
    """When the server starts: with `eager` at once, with `lazy` only when one of its tools or its listing is needed."""
    start_timeout_s: float = Field(default=START_TIMEOUT_S, gt=0, le=600)
    """Seconds that the server's start may take."""
    timeout_s: float = Field(default=CALL_TIMEOUT_S, gt=0, le=MAX_WAIT_S)
    """Seconds that a call of one of the server's tools may take."""
    login: LoginSettings = Field(default_factory=LoginSettings, repr=False)
    """The OAuth client that a person logs in with."""
    agent: bool = False
    """Whether the server runs goals for us; if it does, plans can call the tool `delegate_to_agent`."""
    run_tool: str = Field(default="run_goal", min_length=1, max_length=128)
    """The agent's tool that takes a goal."""
    get_tool: str = Field(default="get_execution", min_length=1, max_length=128)
    """The agent's tool that returns the state of an execution."""
    resume_tool: str = Field(default="resume_execution", min_length=1, max_length=128)
    """The agent's tool that takes a decision."""
    cancel_tool: str = Field(default="cancel_execution", min_length=1, max_length=128)
    """The agent's tool that stops an execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One downstream server."""

    name: str
    """The server's key in `planwarden.json`, or the name under which the gate wraps it."""
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables added to those that the server inherits: all of this process's if `is_gated`, otherwise the few
    that every child process gets. They may hold keys, so `repr` leaves them out."""
    cwd: Path | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    client_secret: str | None = field(default=None, repr=False)
    login_name: str | None = None
    """The name of the server whose login this server uses. None: its own login, or none at all if it is gated."""
    is_gated: bool = False
    """Whether this is a host's own server behind the gate; if so, its tools' arguments and results stay unchanged."""
    is_disabled: bool = False
    problem: str | None = None
    """Why the server cannot start, as far as the configuration tells."""
    fingerprint: str = ""
    """Digest of how the server is reached, without the values of variables and headers. A cached listing is valid only
    for the fingerprint that it was made with."""
    settings: ServerSettings = field(default_factory=ServerSettings)

    @property
    def slug(self) -> str:
        """The prefix of its tools' names."""
        return build_slug(self.name)

    @property
    def is_local(self) -> bool:
        return self.command is not None

    @property
    def can_start(self) -> bool:
        return not self.is_disabled and self.problem is None


class ServerList(msgspec.Struct, frozen=True):
    """All configured servers in the order of the file, and notes about what was not read."""

    configs: tuple[ServerConfig, ...] = ()
    notes: tuple[str, ...] = ()


class LoginLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a person's login to one server is kept, and the command that creates it.

    Every method raises `PlanwardenError` if it fails.
    """

    config: ServerConfig
    find_secrets: Callable[[], SecretStore]
    """Returns the secrets; raises `ToolError` while none are open in this process."""
    name: str
    """The name of the login among the secrets."""
    command: str
    """The command that a person runs in a terminal to log in."""

    @property
    def url(self) -> str:
        """The server's address; the access token is sent only to this address and others of its origin."""
        return self.config.url or ""

    async def version(self) -> str | None:
        """Return a value that differs after every change; None when there is no login."""
        return await self.find_secrets().version(self.name)

    def lock(self) -> AbstractAsyncContextManager[object]:
        """Return a lock on the login against all processes, this one included, to read and replace it. Not reentrant.

        Entering raises `StoreError` when another process holds the lock for too long, or no lock can be made.
        """
        return self.find_secrets().lock(self.name)

    async def forget(self) -> bool:
        """Delete the login. Return False if there was none."""
        async with self.lock():
            return await self.find_secrets().delete(self.name)
