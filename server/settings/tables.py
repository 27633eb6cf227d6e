"""The tables of `planwarden.toml` as people write them. A home without the file imports nothing of this."""

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from planwarden.agent.core.plan_words import MAX_STEPS
from planwarden.agent.core.tool import MAX_WAIT_S, Effect, OnTimeout, Risk
from planwarden.server.settings.given import RETENTION_DAYS
from planwarden.server.settings.reminders import REMINDERS, ReminderSettings
from planwarden.server.telemetry.settings import Protocol

_ONCE = ("once", "once_days")
"""Settings of a tool that are no part of its definition."""
_POINTER = re.compile(r"(/([^~/]|~[01])*)+")

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

    def list_changes(self) -> dict[str, Any]:
        """Returns the fields of the tool's definition that it sets."""
        changes = self.model_dump(exclude_none=True, exclude={*REMINDERS, *_ONCE})
        if "capabilities" in changes:
            changes["capabilities"] = tuple(changes["capabilities"])
        return changes


class ApprovalsTable(ReminderSettings):
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


class InboxTable(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Where the inbox of the home's stdio servers and of `planwarden inbox` is on this machine. By default 8766, or
    the port that the home got when that one was taken."""
    passphrase_file: Annotated[str, Field(min_length=1)] | None = None
    """File with the hash of a passphrase that is asked for besides the one-time code, relative to this file;
    `planwarden inbox --set-passphrase` writes it. PostgreSQL holds the hash instead, also without this setting, which
    then only makes sure that there is one."""


class ExecutionTable(BaseModel):
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


class PlansTable(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    folders: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=20)] = Field(
        default_factory=list[str]
    )
    """Folders with [saved plans](plans.md#saved-plans) besides `plans` in the home, relative to the working directory,
    such as `.planwarden/plans` for a repository."""
    as_tools: bool = False
    """Over MCP each saved plan is a tool too, with its own input schema."""


class RetentionTable(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    days: Annotated[int, Field(ge=1)] = RETENTION_DAYS
    """What `planwarden prune` deletes by default: finished executions unchanged for so long."""


class StoreTable(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    url: str | None = None
    """As `PLANWARDEN_STORE`, which wins over it."""
    control_url: str | None = None
    """As `PLANWARDEN_STORE_CONTROL`, which wins over it."""


class OtelSettings(BaseModel):
    """The `[otel]` table."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    endpoint: Annotated[str, Field(max_length=2_000)] | None = None
    """Collector for spans and metrics over OTLP, such as `http://127.0.0.1:4318`; needs `planwarden[otel]`."""
    protocol: Protocol | None = None
    """Protocol of the collector: `http/protobuf`, or `grpc`, which needs `planwarden[otel-grpc]`."""
    record_arguments: bool = False
    """Spans record the arguments of tool calls."""

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and (urlsplit(endpoint).scheme not in ("http", "https") or "@" in endpoint):
            raise ValueError("write http://host:4318 or https://host; keys go into OTEL_EXPORTER_OTLP_HEADERS")
        return endpoint


class LoggingSettings(BaseModel):
    """The `[logging]` table."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    format: Literal["text", "json"] | None = None
    """Format of the servers' lines on stderr; default plain text."""
    level: Literal["debug", "info", "warning", "error"] | None = None
    """Lowest level that is logged; default `warning`."""


class SettingsTables(BaseModel):
    """The whole file. `file.py` checks what has `Any` here, with models that it imports when they are needed."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    tools: dict[str, Any] = Field(default_factory=dict[str, Any])
    approvals: ApprovalsTable = Field(default_factory=ApprovalsTable.model_construct)
    inbox: InboxTable = Field(default_factory=InboxTable.model_construct)
    execution: ExecutionTable = Field(default_factory=ExecutionTable.model_construct)
    plans: PlansTable = Field(default_factory=PlansTable.model_construct)
    retention: RetentionTable = Field(default_factory=RetentionTable.model_construct)
    store: StoreTable = Field(default_factory=StoreTable.model_construct)
    http: Any = None
    servers: Any = Field(default_factory=dict[str, Any])
    notify: Any = Field(default_factory=list[Any])
    hooks: dict[str, Any] = Field(default_factory=dict[str, Any])
    rules: list[Any] = Field(default_factory=list[Any])
    otel: OtelSettings = Field(default_factory=OtelSettings.model_construct)
    logging: LoggingSettings = Field(default_factory=LoggingSettings.model_construct)
    model: str | None = None
    """As `PLANWARDEN_MODEL`, which wins over it."""
