"""Settings from `planwarden.toml` and `planwarden.json`, the environment, and arguments; the later ones win.

An unknown key or a wrong value raises an error with the file and the key, so that no setting silently does nothing. The
policy comes from the file alone and cannot be changed through MCP.
"""

import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.imports import collector_at_rest
from planwarden.agent.common.paths import expand_home
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_words import MAX_STEPS
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.auth.principals import LOCAL
from planwarden.server.settings.given import RETENTION_DAYS, FileSettings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.telemetry.settings import TelemetrySettings, build_telemetry_settings
from planwarden.tools.downstream.server_list import ServerList

# A server opens its store after its first answers, and most homes need none of the rest.
if TYPE_CHECKING:
    from planwarden.server.auth.settings import HttpSettings
    from planwarden.server.notifications.channels import NotificationChannel
    from planwarden.server.settings.tables import ToolSettings
    from planwarden.server.webhooks.settings import Hook
    from planwarden.storage.location import StoreLocation
    from planwarden.tools.downstream.config import ServerSettings

DATABASE = "planwarden.db"
FILE = "planwarden.toml"
SERVERS_FILE = "planwarden.json"
PLAN_FOLDER = "plans"
"""Below the home."""
CALLER = "caller"
"""The model that is always there: whoever calls."""
HOME_VARIABLE = "PLANWARDEN_HOME"
"""Folder of `planwarden.db`, `planwarden.toml` and `planwarden.json`; default the platform's data folder."""
STORE_VARIABLE = "PLANWARDEN_STORE"
"""Where executions are stored: `postgresql://USER@HOST/DATABASE`, which many processes share, or `sqlite:///FILE`;
default `planwarden.db` in the home."""
CONTROL_VARIABLE = "PLANWARDEN_STORE_CONTROL"
"""A URL of the same PostgreSQL past a pooler of connections; default `PLANWARDEN_STORE`."""
MODEL_VARIABLE = "PLANWARDEN_MODEL"
"""`caller`, `scripted:FILE`, or a provider's model as `PROVIDER:MODEL`; default `model` in `planwarden.toml`."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a process."""

    home: Path
    model: str = CALLER
    options: ev.Options = msgspec.field(default_factory=ev.Options)
    max_steps: int = MAX_STEPS
    policy: OperatorPolicy = msgspec.field(default_factory=OperatorPolicy)
    tools: "Mapping[str, ToolSettings]" = {}
    python_files: tuple[Path, ...] = ()
    plan_folders: tuple[tuple[str, Path], ...] = ()
    """Folders of saved plans besides the home's, each as the operator wrote it and where it is."""
    plans_as_tools: bool = False
    """Whether each saved plan is an MCP tool."""
    retention_days: int = RETENTION_DAYS
    given_store: "StoreLocation | None" = None
    """The store that was named; None for the file in the home."""
    given_http: "HttpSettings | None" = None
    """`[http]` of the file, if there is one."""
    trust_caller_over_network: bool = False
    """`[approvals] trust_caller` may hold on addresses that other machines can reach."""
    opens_inbox: bool = True
    """Whether a server may open a browser when a person must decide."""
    inbox_port: int | None = None
    """Where the inbox is on this machine; None for where it was, at first 8766."""
    passphrase_file: Path | None = None
    """File with the hash of the passphrase that the inbox asks for besides a one-time code."""
    servers: ServerList = msgspec.field(default_factory=ServerList)
    """Downstream MCP servers."""
    servers_file: Path | None = None
    """Where they are configured."""
    channels: "tuple[NotificationChannel, ...]" = ()
    """Where questions to people are announced."""
    hooks: "tuple[Hook, ...]" = ()
    """Requests from elsewhere that start saved plans."""
    observation: TelemetrySettings = msgspec.field(default_factory=TelemetrySettings)
    """Where spans, metrics and log lines are sent."""
    environment: Mapping[str, str] = {}
    """May hold keys, so `repr` leaves it out."""

    def __repr__(self) -> str:
        return repr(replace(self, environment={})) if self.environment else super().__repr__()

    @property
    def store(self) -> "StoreLocation":
        """Where executions are stored."""
        from planwarden.storage.location import StoreLocation

        return self.given_store or StoreLocation(path=self.home / DATABASE)

    @property
    def http(self) -> "HttpSettings":
        """Under which names a server answers, and whose tokens it accepts."""
        from planwarden.server.auth.settings import HttpSettings

        return self.given_http or HttpSettings()

    def apply_to(self, definition: ToolDefinition) -> ToolDefinition:
        """Returns the definition with the operator's settings for it."""
        found = self.tools.get(definition.name)
        if found is None:
            return definition
        return replace(definition, **found.list_changes(), digest="")


def load_settings(
    *,
    home: Path | None = None,
    model: str | None = None,
    environment: Mapping[str, str] | None = None,
    mcp_config: Path | None = None,
    store: str | None = None,
    has_servers: bool = True,
) -> Settings:
    """Returns settings: arguments over environment over file. `mcp_config` replaces the home's `planwarden.json`.

    Without `has_servers` that file is not read.

    Raises:
        InvalidArguments: a file is not valid TOML or JSON, or has an unknown key or a wrong value.
    """
    env = os.environ if environment is None else environment
    folder = find_home(home, env)
    given = _read_file(folder / FILE, env)
    servers_file = folder / SERVERS_FILE if mcp_config is None else expand_home(mcp_config).absolute()
    return Settings(
        **given.settings,
        home=folder,
        model=model or env.get(MODEL_VARIABLE) or given.model or CALLER,
        policy=OperatorPolicy(same_person=frozenset({LOCAL, find_operator()}), **given.policy),
        given_store=_read_store(store, env, given),
        servers=_read_servers(servers_file, env, given.servers, must_exist=mcp_config is not None)
        if has_servers
        else ServerList(),
        servers_file=servers_file,
        observation=build_telemetry_settings(env, **given.telemetry),
        environment=dict(env),
    )


def _read_file(path: Path, environment: Mapping[str, str]) -> FileSettings:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return FileSettings()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArguments(f"cannot read {str(path)!r}: {error}") from error
    with collector_at_rest():
        # Every command reads the settings, and many homes have no file.
        from planwarden.server.settings.file import read_file

        return read_file(path, text, environment)


def _read_store(given: str | None, environment: Mapping[str, str], file: FileSettings) -> "StoreLocation | None":
    url = given or environment.get(STORE_VARIABLE) or file.store_url
    if not url:
        return None
    from planwarden.storage.location import read_location

    return read_location(url, environment.get(CONTROL_VARIABLE) or file.control_url or "")


def _read_servers(
    path: Path, environment: Mapping[str, str], settings: "Mapping[str, ServerSettings]", *, must_exist: bool
) -> ServerList:
    if not (must_exist or settings or path.exists()):
        return ServerList()
    # Most homes have no servers, and the first answer of a server waits for every import.
    from planwarden.tools.downstream.config_file import read_servers

    return read_servers(path, environment, settings, must_exist=must_exist)


def find_operator() -> str:
    """Returns the name of the operating system's user, or `operator`."""
    try:
        return getpass.getuser()
    # Raises KeyError, ImportError or OSError, depending on version and platform, when the user has no name.
    except (KeyError, ImportError, OSError):
        return "operator"


def find_home(home: Path | None, environment: Mapping[str, str]) -> Path:
    """Returns the folder of database and settings: `home`, else `PLANWARDEN_HOME`, else the platform's data folder."""
    named = environment.get(HOME_VARIABLE)
    folder = home or (Path(named) if named else _find_default_home())
    return expand_home(folder).absolute()


def _find_default_home() -> Path:
    # Imported for those who do not say where their home is.
    from platformdirs import user_data_path

    return user_data_path("planwarden", appauthor=False)
