"""The tables of `planwarden.toml` as people write them, and the hooks and reminder schedules built from them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import NO_ALARMS, Schedule
from planwarden.agent.core.plan.plan import MAX_STEPS
from planwarden.agent.core.tool import MAX_WAIT_S, Effect, OnTimeout, Risk
from planwarden.agent.ports.policy import OnceRule
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.notifications.settings import NotifySettings, Variable, read_key
from planwarden.server.settings.faults import Table
from planwarden.server.settings.options import LoopOptions
from planwarden.server.settings.promises import PromiseList, PromiseSettings
from planwarden.server.settings.rules import MAX_RULES, RuleSettings
from planwarden.server.telemetry.settings import LoggingTable, OtelTable
from planwarden.tools.downstream.config import ServerSettings

ONCE_DAYS = 90.0
RETENTION_DAYS = 90
_ONCE = {"once", "once_days"}
"""Settings of a tool that are not part of its definition."""
_POINTER = re.compile(r"(/([^~/]|~[01])*)+")


def _check_pointer(pointer: str) -> str:
    if not _POINTER.fullmatch(pointer):
        raise ValueError(f"once has {pointer!r}, which is not a JSON pointer (RFC 6901), such as '/payment_id'")
    return pointer


def _check_path(path: str) -> str:
    if "\0" in path:
        raise ValueError("a path cannot contain a NUL character")
    return path


Seconds = Annotated[float, Field(gt=0, le=MAX_WAIT_S)]
Pointer = Annotated[str, Field(max_length=500), AfterValidator(_check_pointer)]
Person = Annotated[str, Field(min_length=1, max_length=200)]
FilePath = Annotated[str, Field(min_length=1), AfterValidator(_check_path)]
HookName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
MAX_HOOKS = 100
MAX_REMINDERS = 20
MAX_AFTER_S = 30 * 24 * 3600.0
Delay = Annotated[float, Field(gt=0, le=MAX_AFTER_S)]


class ReminderSettings(Table):
    """The keys about reminders, as written; a tool takes a missing key from `[approvals]`."""

    remind_after_s: Annotated[list[Delay], Field(max_length=MAX_REMINDERS)] | None = None
    """Seconds after a question at which people are reminded of it."""
    escalate_after_s: Annotated[float, Field(ge=0, le=MAX_AFTER_S)] | None = None
    """Seconds after which the question is escalated; 0 for never."""
    escalate_to: Annotated[list[Person], Field(max_length=50)] | None = None
    """Who is notified of an escalation. A notified person gets no right to decide."""


REMINDERS = frozenset(ReminderSettings.model_fields)


class ToolSettings(ReminderSettings):
    """`[tools."NAME"]`."""

    risk: Risk | None = None
    """Who must agree before a call: `read` nobody, `confirm` a form, `dangerous` a person in the inbox or at the
    terminal, `critical` a signature or a second person. Default: what the tool says; `dangerous` for
    downstream tools."""
    effect: Effect | None = None
    """What may repeat after a crash: `read` and `idempotent` calls, never an `effect`. Default: what the tool says."""
    capabilities: list[str] | None = None
    """Words for the catalogue and its search."""
    timeout_s: Seconds | None = None
    """Time limit in seconds: of a call or, if the tool is blocking, of the answer."""
    answer_within_s: Seconds | None = None
    """Seconds for the answer to any question about the tool; without this key, such a question has no deadline. A plan
    can only lengthen the time; then an unanswered question is rejected."""
    on_timeout: OnTimeout | None = None
    """The decision when nobody answers in time; risks above `confirm` are always rejected. A question about calls of
    several tools is approved only if all of them say so, and only after the longest of their limits."""
    once: Annotated[list[Pointer], Field(min_length=1, max_length=10)] | None = None
    """Arguments that identify a call, such as `["/payment_id"]`: calls with equal values happen once over all
    executions, see [Once per business key](../rules.md#once-per-business-key)."""
    once_days: Annotated[float, Field(gt=0, le=3_650)] | None = None
    """Days for which `once` remembers a call, 90 by default."""

    @model_validator(mode="after")
    def _check_together(self) -> "ToolSettings":
        if len({*(self.once or ())}) < len(self.once or ()):
            raise ValueError("once names a pointer twice")
        if self.once_days is not None and self.once is None:
            raise ValueError('once_days goes with once = ["/NAME"]')
        latest_s = max([*(self.remind_after_s or ()), self.escalate_after_s or 0.0])
        if self.answer_within_s is not None and latest_s >= self.answer_within_s:
            raise ValueError(f"nobody is reminded after {latest_s:g} s: answer_within_s is {self.answer_within_s:g}")
        return self

    @property
    def once_rule(self) -> OnceRule | None:
        """The key under which a call happens once."""
        return None if self.once is None else OnceRule(tuple(self.once), (self.once_days or ONCE_DAYS) * 86_400.0)

    def list_changes(self) -> dict[str, Any]:
        """Return the fields of the tool's definition that these settings change."""
        changes = self.model_dump(exclude_none=True, exclude={*REMINDERS, *_ONCE})
        return {name: tuple(value) if name == "capabilities" else value for name, value in changes.items()}


class ToolsTable(Table):
    """`[tools]`: every key but `python` is a tool's name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, ToolSettings] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    python: list[FilePath] = Field(default_factory=list[str])
    """Files with tools, relative to this file."""

    @property
    def by_name(self) -> dict[str, ToolSettings]:
        """The settings of each tool, by its name."""
        return self.__pydantic_extra__


class ApprovalsTable(ReminderSettings):
    trust_caller: bool = False
    """The calling model's own `approved: true` counts; audited as `claimed`. Every start shows a banner."""
    trust_caller_over_network: bool = False
    """Permit `trust_caller` even on addresses that other machines can reach."""
    critical: Literal["signed", "second"] = "signed"
    """What a critical call needs: `signed` is a signature or somebody other than the owner, `second` only the
    latter."""
    quorum: Annotated[int, Field(ge=1, le=20)] = 1
    """How many different people have to approve a critical call."""
    approvers: Annotated[list[Person], Field(max_length=200)] = Field(default_factory=list[str])
    """Who may approve critical calls; anybody when empty."""
    open_inbox: Literal["auto", "never"] = "auto"
    """Whether the stdio server opens the inbox in the browser when a person is needed and there is a display."""

    @model_validator(mode="after")
    def _check_quorum(self) -> "ApprovalsTable":
        names = len({*self.approvers})
        if names and names < self.quorum:
            raise ValueError(f"quorum is {self.quorum}, but approvers names {names}")
        return self


class InboxTable(Table):
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Port of the inbox on this machine, for the home's stdio servers and `planwarden inbox`. By default 8766, or the
    port that the home was given when 8766 was taken."""
    passphrase_file: FilePath | None = None
    """File with the hash of a passphrase that is asked for after the one-time code, relative to this file;
    `planwarden inbox --set-passphrase` writes it. A PostgreSQL store holds the hash itself, even without this setting;
    the setting then only ensures that there is a hash."""


class ExecutionTable(LoopOptions):
    max_steps: Annotated[int, Field(ge=1, le=100_000)] = MAX_STEPS
    """Steps that a plan may have."""
    wait_seconds: Annotated[float, Field(ge=0, le=300)] | None = None
    """How long an MCP call waits before it answers `running`."""
    model_patience_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] | None = None
    """How long an execution waits for a model's provider that fails or is out of reach, a day by default. It asks
    again after a minute, then after twice as long each time, up to 30 minutes. In the end it is `incomplete`. 0 gives
    up at once."""

    def to_options(self) -> ev.Options:
        """Return the options with which executions start."""
        return ev.Options(**self.model_dump(exclude_none=True, exclude={"max_steps"}))


class PlansTable(Table):
    folders: Annotated[list[FilePath], Field(max_length=20)] = Field(default_factory=list[str])
    """Folders with [saved plans](plans.md#saved-plans) in addition to `plans` in the home, relative to the working
    directory, such as `.planwarden/plans` for a repository."""
    as_tools: bool = False
    """Over MCP each saved plan is a tool too, with its own input schema."""


class GateTable(Table):
    hold_s: Annotated[float, Field(gt=0, le=3_600)] = 25.0
    """Seconds that `planwarden gate` lets a call wait for a person before it answers that nobody has decided; keep it
    below the host's own limit."""
    keep_s: Annotated[float, Field(gt=0, le=86_400)] = 3_600.0
    """Seconds for which a result of an approved call that no host has received is kept for an identical call."""


class GuardTable(Table):
    stop: Literal["open", "closed"] = "open"
    """What happens when planwarden cannot check the [promises](../done.md) of a host that stops: `open` lets it stop,
    `closed` refuses once."""


class RetentionTable(Table):
    days: Annotated[int, Field(ge=1)] = RETENTION_DAYS
    """Days without change after which `planwarden prune` deletes finished executions by default."""


class StoreTable(Table):
    url: str | None = None
    """Like `PLANWARDEN_STORE`, which overrides it."""
    control_url: str | None = None
    """Like `PLANWARDEN_STORE_CONTROL`, which overrides it."""


class HookSettings(Table):
    """One `[hooks.NAME]` table; `POST /hooks/NAME` starts its plan."""

    plan: Annotated[str, Field(min_length=1, max_length=200)]
    """The saved plan; the body of the request is its input `event`."""
    secret_env: Variable
    """The environment variable that holds the sender's secret, `whsec_` and 24 to 64 bytes in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """An address to which requests are posted; it accepts none while it has a `problem`."""

    name: str
    plan: str
    key: bytes = field(default=b"", repr=False)
    problem: str | None = None
    """Why signatures cannot be checked here; None if they can."""


class SettingsTables(Table):
    """The whole file."""

    tools: ToolsTable = Field(default_factory=ToolsTable)
    approvals: ApprovalsTable = Field(default_factory=ApprovalsTable)
    inbox: InboxTable = Field(default_factory=InboxTable)
    execution: ExecutionTable = Field(default_factory=ExecutionTable)
    plans: PlansTable = Field(default_factory=PlansTable)
    gate: GateTable = Field(default_factory=GateTable)
    guard: GuardTable = Field(default_factory=GuardTable)
    retention: RetentionTable = Field(default_factory=RetentionTable)
    store: StoreTable = Field(default_factory=StoreTable)
    http: HttpSettings = Field(default_factory=HttpSettings)
    servers: dict[str, ServerSettings] = Field(default_factory=dict[str, ServerSettings])
    notify: list[NotifySettings] = Field(default_factory=list[NotifySettings])
    hooks: dict[HookName, HookSettings] = Field(default_factory=dict[str, HookSettings])
    rules: Annotated[list[RuleSettings], Field(max_length=MAX_RULES)] = Field(default_factory=list[RuleSettings])
    promises: PromiseList = Field(default_factory=list[PromiseSettings])
    otel: OtelTable = Field(default_factory=OtelTable)
    logging: LoggingTable = Field(default_factory=LoggingTable)
    model: str | None = None
    """Like `PLANWARDEN_MODEL`, which overrides it."""


def build_schedules(
    default: ReminderSettings, tools: Mapping[str, ReminderSettings]
) -> tuple[Schedule, dict[str, Schedule]]:
    """Return the default schedule, and the schedules of the tools that have their own.

    Raises:
        InvalidArguments: a key would have no effect.
    """
    general = _build_schedule("approvals", default, NO_ALARMS)
    return general, {
        name: _build_schedule(f'tools."{name}"', settings, general)
        for name, settings in tools.items()
        if any(getattr(settings, key) is not None for key in REMINDERS)
    }


def _build_schedule(where: str, settings: ReminderSettings, default: Schedule) -> Schedule:
    if settings.escalate_after_s is None:
        after_s = default.escalate_after_s
    else:
        after_s = settings.escalate_after_s or None
    if after_s is None and settings.escalate_to:
        raise InvalidArguments(f"planwarden.toml: {where}.escalate_to does nothing without escalate_after_s")
    return Schedule(
        remind_after_s=default.remind_after_s if settings.remind_after_s is None else tuple(settings.remind_after_s),
        escalate_after_s=after_s,
        escalate_to=default.escalate_to if settings.escalate_to is None else tuple(settings.escalate_to),
    )


def build_hooks(tables: Mapping[str, HookSettings], environment: Mapping[str, str]) -> tuple[Hook, ...]:
    """Return the hooks in the order of the file. A missing or wrong secret becomes the `problem` of its hook.

    Raises:
        InvalidArguments: there are too many hooks.
    """
    if len(tables) > MAX_HOOKS:
        raise InvalidArguments(f"planwarden.toml has {len(tables)} [hooks] tables, the limit is {MAX_HOOKS}")
    hooks: list[Hook] = []
    for name, table in tables.items():
        key, problem = read_key(table.secret_env, environment)
        hooks.append(Hook(name=name, plan=table.plan, key=key, problem=problem))
    return tuple(hooks)
