"""Settings: arguments override the environment, which overrides `planwarden.toml` and `planwarden.json`.

An unknown key or a wrong value raises an error with the file and the key, so that no setting silently does nothing. The
policy comes from `planwarden.toml` alone and cannot be changed through MCP.
"""

import getpass
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec
from msgspec.structs import replace
from platformdirs import user_data_path

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.paths import expand_home
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.notifications.settings import NotificationChannel, build_channels
from planwarden.server.settings.faults import read_tables
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.rules import build_rules
from planwarden.server.settings.tables import (
    REMINDERS,
    Hook,
    SettingsTables,
    ToolSettings,
    build_hooks,
    build_schedules,
)
from planwarden.server.telemetry.settings import TelemetrySettings, build_telemetry_settings
from planwarden.storage.location import StoreLocation, read_location
from planwarden.tools.downstream.config import ServerList, ServerSettings
from planwarden.tools.downstream.config_file import read_servers
from planwarden.tools.downstream.gated_servers import describe_excess, read_gated_servers
from planwarden.tools.guarded.promises import Promise

ProcessRole = Literal["front", "worker", "both"]
"""`front` answers callers and people but runs no plans; `worker` runs plans but answers nobody; `both` does both."""
PROCESS_ROLES: tuple[ProcessRole, ...] = get_args(ProcessRole)
CONCURRENCY = 100
"""The most executions that a worker runs at the same time, by default."""


DATABASE = "planwarden.db"
SETTINGS_FILE = "planwarden.toml"
SERVERS_FILE = "planwarden.json"
PLAN_FOLDER = "plans"
"""The folder of the operator's own plans, below the home."""
CALLER = "caller"
"""The model that needs no setting: the calling assistant."""
HOME_VARIABLE = "PLANWARDEN_HOME"
"""Folder of `planwarden.db`, `planwarden.toml` and `planwarden.json`; default the platform's data folder."""
STORE_VARIABLE = "PLANWARDEN_STORE"
"""Where executions are stored: `postgresql://USER@HOST/DATABASE`, which many processes share, or `sqlite:///FILE`;
default `planwarden.db` in the home."""
CONTROL_VARIABLE = "PLANWARDEN_STORE_CONTROL"
"""A URL that reaches the same PostgreSQL without its connection pooler; default `PLANWARDEN_STORE`."""
MODEL_VARIABLE = "PLANWARDEN_MODEL"
"""`caller`, `scripted:FILE`, or a provider's model as `PROVIDER:MODEL`; default `model` in `planwarden.toml`."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a process."""

    home: Path
    tables: SettingsTables = msgspec.field(default_factory=SettingsTables)
    """The tables of `planwarden.toml`."""
    model: str = CALLER
    options: ev.Options = msgspec.field(default_factory=ev.Options)
    policy: OperatorPolicy = msgspec.field(default_factory=OperatorPolicy)
    tools: Mapping[str, ToolSettings] = {}
    python_files: tuple[Path, ...] = ()
    plan_folders: tuple[tuple[str, Path], ...] = ()
    """Folders of saved plans in addition to the home's, each as the operator wrote it and as an absolute path."""
    given_store: StoreLocation | None = None
    """The store that an argument, the environment or the file names; None for the database file in the home."""
    is_store_argument: bool = False
    """True if an argument names the store."""
    http: HttpSettings = msgspec.field(default_factory=HttpSettings)
    """Under which names a server answers, and whose tokens it accepts."""
    passphrase_file: Path | None = None
    """File with the hash of the passphrase that the inbox asks for in addition to a one-time code."""
    servers: ServerList = msgspec.field(default_factory=ServerList)
    """Downstream MCP servers."""
    servers_file: Path | None = None
    """The file that configures the downstream servers."""
    promises: tuple[Promise, ...] = ()
    """What must have been called before a host may say that it is done."""
    channels: tuple[NotificationChannel, ...] = ()
    """Where questions to people are announced."""
    hooks: tuple[Hook, ...] = ()
    """Requests from elsewhere that start saved plans."""
    observation: TelemetrySettings = msgspec.field(default_factory=TelemetrySettings)
    """Where spans, metrics and log lines are sent."""
    environment: Mapping[str, str] = {}
    """The environment's variables, which `repr` leaves out because they may hold keys."""

    def __repr__(self) -> str:
        return repr(replace(self, environment={})) if self.environment else super().__repr__()

    @property
    def store(self) -> StoreLocation:
        """Where executions are stored."""
        return self.given_store or StoreLocation(path=self.home / DATABASE)

    @property
    def other_options(self) -> tuple[str, ...]:
        """The options other than `--home` that a command needs to find the same store and servers."""
        # `safe_url` has no password: people may copy a printed command anywhere.
        store = ("--store", self.store.safe_url) if self.is_store_argument else ()
        is_elsewhere = self.servers_file not in (None, self.home / SERVERS_FILE)
        return (*store, *(("--mcp-config", str(self.servers_file)) if is_elsewhere else ()))

    def apply_to(self, definition: ToolDefinition) -> ToolDefinition:
        """Return the definition, changed by the operator's settings for the tool."""
        settings = self.tools.get(definition.name)
        return definition if settings is None else replace(definition, **settings.list_changes(), digest="")


def load_settings(
    *,
    home: Path | None = None,
    model: str | None = None,
    environment: Mapping[str, str] | None = None,
    mcp_config: Path | None = None,
    store: str | None = None,
    has_servers: bool = True,
) -> Settings:
    """Return the settings: arguments override the environment, which overrides the files.

    `mcp_config` replaces the home's `planwarden.json`. Without `has_servers`, no downstream server is configured.

    Raises:
        InvalidArguments: a file is not TOML or JSON, a key is unknown, or a value in a file or variable is wrong.
    """
    env = os.environ if environment is None else environment
    folder = find_home(home, env)
    tables, facts = _read_file(folder / SETTINGS_FILE)
    servers_file = folder / SERVERS_FILE if mcp_config is None else expand_home(mcp_config).absolute()
    passphrase_file = tables.inbox.passphrase_file
    return Settings(
        home=folder,
        tables=tables,
        model=model or env.get(MODEL_VARIABLE) or tables.model or CALLER,
        options=tables.execution.to_options(),
        policy=_build_policy(tables, facts),
        tools=tables.tools.by_name,
        python_files=tuple(folder / name for name in tables.tools.python),
        plan_folders=tuple((name, expand_home(name).absolute()) for name in tables.plans.folders),
        given_store=_read_store(store, env, tables),
        is_store_argument=bool(store),
        http=tables.http,
        passphrase_file=None if passphrase_file is None else folder / passphrase_file,
        servers=_read_all_servers(folder, servers_file, env, tables.servers, must_exist=mcp_config is not None)
        if has_servers
        else ServerList(),
        servers_file=servers_file,
        promises=tuple(promise.build() for promise in tables.promises),
        channels=build_channels(tables.notify, env),
        hooks=build_hooks(tables.hooks, env),
        observation=build_telemetry_settings(env, tables.otel, tables.logging),
        environment=dict(env),
    )


def _read_file(path: Path) -> tuple[SettingsTables, dict[str, JsonValue]]:
    """Return the file's tables, or the defaults if there is no file, and the facts that the policy's digest covers."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text)
        tables = read_tables(document, SettingsTables, "")
    except FileNotFoundError:
        return SettingsTables(), {}
    except tomllib.TOMLDecodeError as error:
        raise InvalidArguments(f"{str(path)!r} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise InvalidArguments(f"{str(path)!r} is not UTF-8 text") from None
    except OSError as error:
        raise InvalidArguments(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except RecursionError:
        raise InvalidArguments(f"{str(path)!r} is nested too deeply") from None
    except InvalidArguments as error:
        raise InvalidArguments(f"{str(path)!r}: {error.message}") from None
    return tables, _list_facts(tables, document) if text else {}


def _list_facts(tables: SettingsTables, document: Mapping[str, Any]) -> dict[str, JsonValue]:
    # Reminders decide nothing, so changing them must not make open questions stale.
    facts: dict[str, JsonValue] = {
        "tools": {name: tool.model_dump(exclude={*REMINDERS}) for name, tool in tables.tools.by_name.items()}
    }
    if trusted := sorted(name for name, server in tables.servers.items() if server.trusted):
        facts["trusted"] = list[JsonValue](trusted)
    if tables.rules:
        # The rules count as they are written, so any change of a rule changes the policy.
        facts["rules"] = cast("JsonValue", document["rules"])
    return facts


def _build_policy(tables: SettingsTables, facts: dict[str, JsonValue]) -> OperatorPolicy:
    approvals, tools = tables.approvals, tables.tools.by_name
    default_schedule, schedules = build_schedules(approvals, tools)
    return OperatorPolicy(
        trust_caller=approvals.trust_caller,
        critical=approvals.critical,
        quorum=approvals.quorum,
        approvers=tuple(approvals.approvers),
        same_person=frozenset({LOCAL, find_operator()}),
        facts=facts,
        rules=build_rules(tables.rules) if tables.rules else None,
        once={name: rule for name, settings in tools.items() if (rule := settings.once_rule) is not None},
        schedules=schedules,
        default_schedule=default_schedule,
    )


def _read_all_servers(
    home: Path, path: Path, env: Mapping[str, str], settings: Mapping[str, ServerSettings], *, must_exist: bool
) -> ServerList:
    """Return the servers in the file and those that gates have wrapped, with notes on settings for unknown servers."""
    servers = read_servers(path, env, settings, must_exist=must_exist)
    configs = (*servers.configs, *read_gated_servers(home, env, settings, servers.configs))
    unused = [name for name in settings if name not in {config.name for config in configs}]
    notes = (f"planwarden.toml has settings for a server {name!r} that is not configured" for name in unused)
    return ServerList(configs, (*servers.notes, *notes, *describe_excess(home)))


def _read_store(option: str | None, environment: Mapping[str, str], tables: SettingsTables) -> StoreLocation | None:
    url = option or environment.get(STORE_VARIABLE) or tables.store.url
    if not url:
        return None
    return read_location(url, environment.get(CONTROL_VARIABLE) or tables.store.control_url or "")


def find_operator() -> str:
    """Return the name of the operating system's user, or `operator`."""
    try:
        return getpass.getuser()
    # `getuser` raises one of these, depending on version and platform, when the user has no name.
    except (KeyError, ImportError, OSError):
        return "operator"


def find_home(home: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the folder of the database and settings: `home`, or `PLANWARDEN_HOME`, or the platform's data folder."""
    variable = environment.get(HOME_VARIABLE)
    folder = home or (Path(variable) if variable else user_data_path("planwarden", appauthor=False))
    return expand_home(folder).absolute()


def build_home_option(home: Path) -> tuple[str, ...]:
    """Return the option that names the home; an empty tuple if every process of this user finds the home without it."""
    is_moved = any(os.environ.get(name) for name in (HOME_VARIABLE, "XDG_DATA_HOME"))
    return () if home == find_home(None, {}) and not is_moved else ("--home", str(home))
