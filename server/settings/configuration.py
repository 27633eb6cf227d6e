"""Settings from `planwarden.toml` and `planwarden.json`, the environment, and arguments; the later ones win.

An unknown key or a wrong value raises an error with the file and the key, so that no setting silently does nothing. The
policy comes from the file alone and cannot be changed through MCP.
"""

import getpass
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec.structs import replace
from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.paths import expand_home
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_words import MAX_STEPS
from planwarden.agent.core.tool import MAX_WAIT_S, Effect, OnTimeout, Risk, ToolDefinition
from planwarden.agent.ports.policy import OnceRule
from planwarden.server.auth.settings import LOCAL, HttpSettings
from planwarden.server.notifications.channels import NotificationChannel, NotifySettings, build_channels
from planwarden.server.settings.options import to_invalid_arguments
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.reminders import REMINDERS, ReminderSettings, build_schedules
from planwarden.server.telemetry.settings import (
    LoggingSettings,
    OtelSettings,
    TelemetrySettings,
    build_telemetry_settings,
)
from planwarden.tools.downstream.config import ServerList, ServerSettings

# A server opens its store after its first answers.
if TYPE_CHECKING:
    from planwarden.agent.approval.rules import RuleBook
    from planwarden.server.webhooks.settings import Hook
    from planwarden.storage.location import StoreLocation

DATABASE = "planwarden.db"
FILE = "planwarden.toml"
SERVERS_FILE = "planwarden.json"
PLAN_FOLDER = "plans"
"""Below the home."""
RETENTION_DAYS = 90
ONCE_DAYS = 90.0
_ONCE = ("once", "once_days")
"""Settings of a tool that are no part of its definition."""
_POINTER = re.compile(r"(/([^~/]|~[01])*)+")
HOME_VARIABLE = "PLANWARDEN_HOME"
"""Folder of `planwarden.db`, `planwarden.toml` and `planwarden.json`; default the platform's data folder."""
STORE_VARIABLE = "PLANWARDEN_STORE"
"""Where executions are stored: `postgresql://USER@HOST/DATABASE`, which many processes share, or `sqlite:///FILE`;
default `planwarden.db` in the home."""
CONTROL_VARIABLE = "PLANWARDEN_STORE_CONTROL"
"""A URL of the same PostgreSQL past a pooler of connections; default `PLANWARDEN_STORE`."""
MODEL_VARIABLE = "PLANWARDEN_MODEL"
"""`caller`, `scripted:FILE`, or a provider's model as `PROVIDER:MODEL`; default `model` in `planwarden.toml`."""


Pointer = Annotated[str, Field(min_length=1, max_length=500)]


class ToolSettings(ReminderSettings):
    """`[tools."NAME"]`."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    risk: Risk | None = None
    """Who must agree before a call: `read` nobody, `confirm` a form, `dangerous` a person in the inbox or at the
    terminal, `critical` a signature or a second person. Default: what the tool says, for downstream tools
    `dangerous`."""
    effect: Effect | None = None
    """What a crash may repeat: `read` and `idempotent` calls, never an `effect`. Default: what the tool says."""
    capabilities: list[str] | None = None
    """Words for the catalogue and its search."""
    timeout_s: Annotated[float, Field(gt=0, le=MAX_WAIT_S)] | None = None
    """Seconds for the call; for a blocking tool, for the answer."""
    answer_within_s: Annotated[float, Field(gt=0, le=MAX_WAIT_S)] | None = None
    """Seconds for the answer to any question about the tool; without it such a question has no deadline. A plan can
    only lengthen it, and silence then rejects."""
    on_timeout: OnTimeout | None = None
    """What passes when nobody answers in time; risks above `confirm` are always rejected."""
    once: Annotated[list[Pointer], Field(min_length=1, max_length=10)] | None = None
    """Arguments by which a call is known as made before, such as `["/payment_id"]`: calls with equal values happen
    once over all executions, see [Once per business key](../rules.md#once-per-business-key)."""
    once_days: Annotated[float, Field(gt=0, le=3_650)] | None = None
    """Days for which `once` keeps a call in mind, 90 by default."""

    @field_validator("once")
    @classmethod
    def _are_pointers(cls, given: list[str] | None) -> list[str] | None:
        for pointer in given or ():
            if not _POINTER.fullmatch(pointer):
                raise ValueError(f"{pointer!r} is no JSON pointer (RFC 6901), such as '/payment_id'")
        if len({*(given or ())}) < len(given or ()):
            raise ValueError("names a pointer twice")
        return given

    @model_validator(mode="after")
    def _has_a_key(self) -> "ToolSettings":
        if self.once_days is not None and self.once is None:
            raise ValueError('once_days goes with once = ["/NAME"]')
        return self

    @model_validator(mode="after")
    def _alarms_come_in_time(self) -> "ToolSettings":
        latest_s = max([*(self.remind_after_s or ()), self.escalate_after_s or 0.0])
        if self.answer_within_s is not None and latest_s >= self.answer_within_s:
            raise ValueError(f"nobody is reminded after {latest_s:g} s: answer_within_s is {self.answer_within_s:g}")
        return self


class _Approvals(ReminderSettings):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    trust_caller: bool = False
    """The calling model's own `approved: true` counts; audited as `claimed`. Every start shows a banner."""
    trust_caller_over_network: bool = False
    """`trust_caller` may hold on addresses that other machines can reach."""
    critical: Literal["signed", "second"] = "signed"
    """What a critical call needs: `signed` is a signature or somebody other than the owner, `second` only the
    latter."""
    quorum: Annotated[int, Field(ge=1, le=20)] = 1
    """How many different people have to approve a critical call."""
    approvers: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=200)] = Field(
        default_factory=list[str]
    )
    """Who may approve critical calls; anybody when empty."""
    open_inbox: Literal["auto", "never"] = "auto"
    """Whether the stdio server opens the inbox in the browser when a person is needed and there is a display."""


class _Inbox(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Where the inbox of the home's stdio servers and of `planwarden inbox` is on this machine. By default 8766, or
    the port that the home got when that one was taken."""
    passphrase_file: Annotated[str, Field(min_length=1)] | None = None
    """File with the hash of a passphrase that is asked for besides the one-time code, relative to this file;
    `planwarden inbox --set-passphrase` writes it. PostgreSQL holds the hash instead, also without this setting, which
    then only makes sure that there is one."""


class _Execution(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    maxIterations: Annotated[int, Field(ge=1, le=100)] | None = None
    """Model replies in one step, enforcement prompts not counted."""
    taefMaxRetries: Annotated[int, Field(ge=0, le=20)] | None = None
    """Enforcement prompts in one step."""
    toolMode: Literal["strict", "flexible"] | None = None
    """`strict` shows a step the schemas of its required tools; `flexible` one line of each other tool as well."""
    maxSteps: Annotated[int, Field(ge=1, le=100_000)] = MAX_STEPS
    """Steps that a plan may have."""
    waitSeconds: Annotated[float, Field(ge=0, le=300)] | None = None
    """How long an MCP call waits before it answers `running`."""
    modelPatienceS: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] | None = None
    """How long an execution waits for a model's provider that fails or is out of reach, a day by default: it asks
    again after a minute, then after twice as long each time, up to 30 minutes. Then it is `incomplete`. 0 gives up at
    once."""


class _Plans(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    folders: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=20)] = Field(
        default_factory=list[str]
    )
    """Folders with [saved plans](plans.md#saved-plans) besides `plans` in the home, relative to the working directory,
    such as `.planwarden/plans` for a repository."""
    as_tools: bool = False
    """Over MCP each saved plan is a tool too, with its own input schema."""


class _Retention(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    days: Annotated[int, Field(ge=1)] = RETENTION_DAYS
    """What `planwarden prune` deletes by default: finished executions unchanged for so long."""


class _Store(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    url: str | None = None
    """As `PLANWARDEN_STORE`, which wins over it."""
    control_url: str | None = None
    """As `PLANWARDEN_STORE_CONTROL`, which wins over it."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    tools: dict[str, Any] = Field(default_factory=dict[str, Any])
    approvals: _Approvals = Field(default_factory=_Approvals.model_construct)
    inbox: _Inbox = Field(default_factory=_Inbox.model_construct)
    execution: _Execution = Field(default_factory=_Execution.model_construct)
    plans: _Plans = Field(default_factory=_Plans.model_construct)
    retention: _Retention = Field(default_factory=_Retention.model_construct)
    store: _Store = Field(default_factory=_Store.model_construct)
    http: HttpSettings = Field(default_factory=HttpSettings.model_construct)
    servers: dict[str, ServerSettings] = Field(default_factory=dict[str, ServerSettings])
    notify: list[NotifySettings] = Field(default_factory=list[NotifySettings])
    hooks: dict[str, Any] = Field(default_factory=dict[str, Any])
    rules: list[Any] = Field(default_factory=list[Any])
    otel: OtelSettings = Field(default_factory=OtelSettings.model_construct)
    logging: LoggingSettings = Field(default_factory=LoggingSettings.model_construct)
    model: str | None = None
    """As `PLANWARDEN_MODEL`, which wins over it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a process."""

    home: Path
    model: str = "caller"
    options: ev.Options = field(default_factory=ev.Options)
    max_steps: int = MAX_STEPS
    policy: OperatorPolicy = field(default_factory=OperatorPolicy)
    tools: Mapping[str, ToolSettings] = field(default_factory=dict[str, ToolSettings])
    python_files: tuple[Path, ...] = ()
    plan_folders: tuple[tuple[str, Path], ...] = ()
    """Folders of saved plans besides the home's, each as the operator wrote it and where it is."""
    plans_as_tools: bool = False
    """Whether each saved plan is an MCP tool."""
    retention_days: int = RETENTION_DAYS
    given_store: "StoreLocation | None" = None
    """The store that was named; None for the file in the home."""
    http: HttpSettings = field(default_factory=HttpSettings)
    trust_caller_over_network: bool = False
    """`[approvals] trust_caller` may hold on addresses that other machines can reach."""
    opens_inbox: bool = True
    """Whether a server may open a browser when a person must decide."""
    inbox_port: int | None = None
    """Where the inbox is on this machine; None for where it was, at first 8766."""
    passphrase_file: Path | None = None
    """File with the hash of the passphrase that the inbox asks for besides a one-time code."""
    servers: ServerList = field(default_factory=ServerList)
    """Downstream MCP servers."""
    servers_file: Path | None = None
    """Where they are configured."""
    channels: tuple[NotificationChannel, ...] = ()
    """Where questions to people are announced."""
    hooks: "tuple[Hook, ...]" = ()
    """Requests from elsewhere that start saved plans."""
    observation: TelemetrySettings = field(default_factory=TelemetrySettings)
    """Where spans, metrics and log lines are sent."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """May hold keys, so `repr` leaves it out."""

    @property
    def store(self) -> "StoreLocation":
        """Where executions are stored."""
        from planwarden.storage.location import StoreLocation

        return self.given_store or StoreLocation(path=self.home / DATABASE)

    def apply_to(self, definition: ToolDefinition) -> ToolDefinition:
        """Returns the definition with the operator's settings for it."""
        found = self.tools.get(definition.name)
        if found is None:
            return definition
        changes: dict[str, Any] = found.model_dump(exclude_none=True, exclude={*REMINDERS, *_ONCE})
        if "capabilities" in changes:
            changes["capabilities"] = tuple(changes["capabilities"])
        return replace(definition, **changes, digest="")


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
    parsed, text = _read(folder / FILE)
    listed, by_name = _read_tools(parsed.tools, folder)
    execution = parsed.execution
    given = {
        "max_iterations": execution.maxIterations,
        "taef_max_retries": execution.taefMaxRetries,
        "tool_mode": execution.toolMode,
        "wait_seconds": execution.waitSeconds,
        "model_patience_s": execution.modelPatienceS,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    # Reminders decide nothing, so changing them must not make open questions stale.
    facts: dict[str, JsonValue] = {
        "tools": {name: found.model_dump(exclude=REMINDERS) for name, found in by_name.items()}
    }
    trusted: list[JsonValue] = [*sorted(name for name, found in parsed.servers.items() if found.trusted)]
    if trusted:
        facts["trusted"] = trusted
    rules, of_rules = _read_rules(parsed.rules, folder)
    if of_rules:
        facts["rules"] = of_rules
    servers_file = folder / SERVERS_FILE if mcp_config is None else expand_home(mcp_config).absolute()
    return Settings(
        home=folder,
        model=model or env.get(MODEL_VARIABLE) or parsed.model or "caller",
        options=ev.Options(**changes),
        max_steps=execution.maxSteps,
        policy=_build_policy(parsed.approvals, by_name, facts if text else {}, rules),
        tools=by_name,
        python_files=listed,
        plan_folders=tuple((written, expand_home(written).absolute()) for written in parsed.plans.folders),
        plans_as_tools=parsed.plans.as_tools,
        retention_days=parsed.retention.days,
        given_store=_read_store(store, env, parsed.store),
        http=parsed.http,
        trust_caller_over_network=parsed.approvals.trust_caller_over_network,
        opens_inbox=parsed.approvals.open_inbox == "auto",
        inbox_port=parsed.inbox.port,
        passphrase_file=None if parsed.inbox.passphrase_file is None else folder / parsed.inbox.passphrase_file,
        servers=_read_servers(servers_file, env, parsed.servers, must_exist=mcp_config is not None)
        if has_servers
        else ServerList(),
        servers_file=servers_file,
        channels=build_channels(parsed.notify, env),
        hooks=_read_hooks(parsed.hooks, env),
        observation=build_telemetry_settings(parsed.otel, parsed.logging, env),
        environment=dict(env),
    )


def _read_store(given: str | None, environment: Mapping[str, str], parsed: _Store) -> "StoreLocation | None":
    url = given or environment.get(STORE_VARIABLE) or parsed.url
    if not url:
        return None
    from planwarden.storage.location import read_location

    return read_location(url, environment.get(CONTROL_VARIABLE) or parsed.control_url or "")


def _read_servers(
    path: Path, environment: Mapping[str, str], settings: Mapping[str, ServerSettings], *, must_exist: bool
) -> ServerList:
    if not (must_exist or settings or path.exists()):
        return ServerList()
    # Most homes have no servers, and the first answer of a server waits for every import.
    from planwarden.tools.downstream.config_file import read_servers

    return read_servers(path, environment, settings, must_exist=must_exist)


def _read_hooks(section: Mapping[str, Any], environment: Mapping[str, str]) -> "tuple[Hook, ...]":
    if not section:
        return ()
    # Most homes have no hooks, as they have no servers.
    from planwarden.server.webhooks.settings import HookTables, build_hooks

    try:
        return build_hooks(section, environment)
    except ValidationError as error:
        raise to_invalid_arguments(error, FILE, HookTables) from None


def _read_rules(section: list[Any], folder: Path) -> "tuple[RuleBook | None, list[JsonValue]]":
    if not section:
        return None, []
    # Most homes have no rules, as they have no servers.
    from planwarden.server.settings.rules import build_rule_book

    try:
        return build_rule_book(section)
    except InvalidArguments as error:
        raise InvalidArguments(f"{str(folder / FILE)!r}: {error.message}") from None


def _build_policy(
    approvals: _Approvals, tools: Mapping[str, ToolSettings], facts: dict[str, JsonValue], rules: "RuleBook | None"
) -> OperatorPolicy:
    if approvals.approvers and len(set(approvals.approvers)) < approvals.quorum:
        raise InvalidArguments(
            f"{FILE}: approvals.quorum is {approvals.quorum}, but approvers names {len(set(approvals.approvers))}"
        )
    default, by_name = build_schedules(approvals, tools)
    return OperatorPolicy(
        trust_caller=approvals.trust_caller,
        critical=approvals.critical,
        quorum=approvals.quorum,
        approvers=tuple(approvals.approvers),
        same_person=frozenset({LOCAL, find_operator()}),
        facts=facts,
        rules=rules,
        once={
            name: OnceRule(tuple(found.once), (found.once_days or ONCE_DAYS) * 86_400.0)
            for name, found in tools.items()
            if found.once is not None
        },
        schedules=by_name,
        default_schedule=default,
    )


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
    folder = home or (Path(named) if named else user_data_path("planwarden", appauthor=False))
    return expand_home(folder).absolute()


def _read(path: Path) -> tuple[_File, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        # Without a check of the defaults, for which pydantic would have to compile the form of the whole file first.
        return _File.model_construct(), ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArguments(f"cannot read {str(path)!r}: {error}") from error
    try:
        return _File.model_validate(tomllib.loads(text)), text
    except tomllib.TOMLDecodeError as error:
        raise InvalidArguments(f"{str(path)!r} is not valid TOML: {error}") from None
    except RecursionError:
        raise InvalidArguments(f"{str(path)!r} is nested too deeply") from None
    except ValidationError as error:
        raise InvalidArguments(
            f"{str(path)!r}: {to_invalid_arguments(error, 'planwarden.toml', _File).message}"
        ) from None


def _read_tools(section: Mapping[str, Any], folder: Path) -> tuple[tuple[Path, ...], dict[str, ToolSettings]]:
    """Reads the `[tools]` table: `python` lists files, every other key is a tool's name."""
    listed = section.get("python", [])
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):  # pyright: ignore[reportUnknownVariableType]
        raise InvalidArguments(f"{str(folder / FILE)!r}: tools.python must be a list of file names")
    files = tuple(folder / str(entry) for entry in listed)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    by_name: dict[str, ToolSettings] = {}
    for name, entry in section.items():
        if name == "python":
            continue
        if not isinstance(entry, dict):
            raise InvalidArguments(
                f"{str(folder / FILE)!r}: tools.{name} is no key{did_you_mean(name, ['python'])}; settings of a tool "
                f'with this name stand in a table of their own, [tools."{name}"]'
            )
        try:
            by_name[name] = ToolSettings.model_validate(entry)
        except ValidationError as error:
            where = f'tools."{name}"'
            problem = to_invalid_arguments(error, where, ToolSettings).message
            raise InvalidArguments(f"{str(folder / FILE)!r}: {problem}") from None
    return files, by_name
