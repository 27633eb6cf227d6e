"""The tables of `planwarden.toml` as people write them. A home without the file imports nothing of this.

Fields say what `file.py` checks; what a table says as a whole is checked in its `__post_init__`.
"""

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from planwarden.agent.core.plan_words import MAX_STEPS
from planwarden.agent.core.tool import MAX_WAIT_S, Effect, OnTimeout, Risk
from planwarden.server.settings.given import RETENTION_DAYS
from planwarden.server.settings.reminders import REMINDERS, ReminderSettings
from planwarden.server.telemetry.settings import Protocol

RARE = ("http", "servers", "notify")
"""Tables that `rare_tables.py` checks."""
_ONCE = ("once", "once_days")
"""Settings of a tool that are no part of its definition."""
_POINTER = re.compile(r"(/([^~/]|~[01])*)+")

Pointer = Annotated[str, Meta(min_length=1, max_length=500)]


class ToolSettings(ReminderSettings, frozen=True, forbid_unknown_fields=True):
    """`[tools."NAME"]`."""

    risk: Risk | None = None
    """Who must agree before a call: `read` nobody, `confirm` a form, `dangerous` a person in the inbox or at the
    terminal, `critical` a signature or a second person. Default: what the tool says, for downstream tools
    `dangerous`."""
    effect: Effect | None = None
    """What a crash may repeat: `read` and `idempotent` calls, never an `effect`. Default: what the tool says."""
    capabilities: list[str] | None = None
    """Words for the catalogue and its search."""
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_WAIT_S)] | None = None
    """Seconds for the call; for a blocking tool, for the answer."""
    answer_within_s: Annotated[float, Meta(gt=0, le=MAX_WAIT_S)] | None = None
    """Seconds for the answer to any question about the tool; without it such a question has no deadline. A plan can
    only lengthen it, and silence then rejects."""
    on_timeout: OnTimeout | None = None
    """What passes when nobody answers in time; risks above `confirm` are always rejected."""
    once: Annotated[list[Pointer], Meta(min_length=1, max_length=10)] | None = None
    """Arguments by which a call is known as made before, such as `["/payment_id"]`: calls with equal values happen
    once over all executions, see [Once per business key](../rules.md#once-per-business-key)."""
    once_days: Annotated[float, Meta(gt=0, le=3_650)] | None = None
    """Days for which `once` keeps a call in mind, 90 by default."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a key that could not do what it says."""
        for pointer in self.once or ():
            if not _POINTER.fullmatch(pointer):
                raise ValueError(f"once has {pointer!r}, which is no JSON pointer (RFC 6901), such as '/payment_id'")
        if len({*(self.once or ())}) < len(self.once or ()):
            raise ValueError("once names a pointer twice")
        if self.once_days is not None and self.once is None:
            raise ValueError('once_days goes with once = ["/NAME"]')
        latest_s = max([*(self.remind_after_s or ()), self.escalate_after_s or 0.0])
        if self.answer_within_s is not None and latest_s >= self.answer_within_s:
            raise ValueError(f"nobody is reminded after {latest_s:g} s: answer_within_s is {self.answer_within_s:g}")

    def list_changes(self) -> dict[str, Any]:
        """Returns the fields of the tool's definition that it sets."""
        unwanted = {*REMINDERS, *_ONCE}
        return {
            name: tuple(value) if name == "capabilities" else value
            for name, value in asdict(self).items()
            if value is not None and name not in unwanted
        }


class ApprovalsTable(ReminderSettings, frozen=True, forbid_unknown_fields=True):
    trust_caller: bool = False
    """The calling model's own `approved: true` counts; audited as `claimed`. Every start shows a banner."""
    trust_caller_over_network: bool = False
    """`trust_caller` may hold on addresses that other machines can reach."""
    critical: Literal["signed", "second"] = "signed"
    """What a critical call needs: `signed` is a signature or somebody other than the owner, `second` only the
    latter."""
    quorum: Annotated[int, Meta(ge=1, le=20)] = 1
    """How many different people have to approve a critical call."""
    approvers: Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=200)] = field(
        default_factory=list[str]
    )
    """Who may approve critical calls; anybody when empty."""
    open_inbox: Literal["auto", "never"] = "auto"
    """Whether the stdio server opens the inbox in the browser when a person is needed and there is a display."""


class InboxTable(Struct, frozen=True, forbid_unknown_fields=True):
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    """Where the inbox of the home's stdio servers and of `planwarden inbox` is on this machine. By default 8766, or
    the port that the home got when that one was taken."""
    passphrase_file: Annotated[str, Meta(min_length=1)] | None = None
    """File with the hash of a passphrase that is asked for besides the one-time code, relative to this file;
    `planwarden inbox --set-passphrase` writes it. PostgreSQL holds the hash instead, also without this setting, which
    then only makes sure that there is one."""


class ExecutionTable(Struct, frozen=True, forbid_unknown_fields=True):
    maxIterations: Annotated[int, Meta(ge=1, le=100)] | None = None
    """Model replies in one step, enforcement prompts not counted."""
    taefMaxRetries: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Enforcement prompts in one step."""
    toolMode: Literal["strict", "flexible"] | None = None
    """`strict` shows a step the schemas of its required tools; `flexible` one line of each other tool as well."""
    maxSteps: Annotated[int, Meta(ge=1, le=100_000)] = MAX_STEPS
    """Steps that a plan may have."""
    waitSeconds: Annotated[float, Meta(ge=0, le=300)] | None = None
    """How long an MCP call waits before it answers `running`."""
    modelPatienceS: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] | None = None
    """How long an execution waits for a model's provider that fails or is out of reach, a day by default: it asks
    again after a minute, then after twice as long each time, up to 30 minutes. Then it is `incomplete`. 0 gives up at
    once."""


class PlansTable(Struct, frozen=True, forbid_unknown_fields=True):
    folders: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=20)] = field(default_factory=list[str])
    """Folders with [saved plans](plans.md#saved-plans) besides `plans` in the home, relative to the working directory,
    such as `.planwarden/plans` for a repository."""
    as_tools: bool = False
    """Over MCP each saved plan is a tool too, with its own input schema."""


class RetentionTable(Struct, frozen=True, forbid_unknown_fields=True):
    days: Annotated[int, Meta(ge=1)] = RETENTION_DAYS
    """What `planwarden prune` deletes by default: finished executions unchanged for so long."""


class StoreTable(Struct, frozen=True, forbid_unknown_fields=True):
    url: str | None = None
    """As `PLANWARDEN_STORE`, which wins over it."""
    control_url: str | None = None
    """As `PLANWARDEN_STORE_CONTROL`, which wins over it."""


class OtelSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The `[otel]` table."""

    endpoint: Annotated[str, Meta(max_length=2_000)] | None = None
    """Collector for spans and metrics over OTLP, such as `http://127.0.0.1:4318`; needs `planwarden[otel]`."""
    protocol: Protocol | None = None
    """Protocol of the collector: `http/protobuf`, or `grpc`, which needs `planwarden[otel-grpc]`."""
    record_arguments: bool = False
    """Spans record the arguments of tool calls."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for an endpoint that is no address of a collector."""
        if self.endpoint is not None and not _is_collector(self.endpoint):
            raise ValueError(
                "endpoint must be http://host:4318 or https://host; keys go into OTEL_EXPORTER_OTLP_HEADERS"
            )


def _is_collector(endpoint: str) -> bool:
    try:
        return urlsplit(endpoint).scheme in ("http", "https") and "@" not in endpoint
    except ValueError:
        return False


class LoggingSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The `[logging]` table."""

    format: Literal["text", "json"] | None = None
    """Format of the servers' lines on stderr; default plain text."""
    level: Literal["debug", "info", "warning", "error"] | None = None
    """Lowest level that is logged; default `warning`."""


class SettingsTables(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. What has `Any` here is checked with models that are imported when they are needed."""

    tools: dict[str, Any] = field(default_factory=dict[str, Any])
    approvals: ApprovalsTable = field(default_factory=ApprovalsTable)
    inbox: InboxTable = field(default_factory=InboxTable)
    execution: ExecutionTable = field(default_factory=ExecutionTable)
    plans: PlansTable = field(default_factory=PlansTable)
    retention: RetentionTable = field(default_factory=RetentionTable)
    store: StoreTable = field(default_factory=StoreTable)
    http: Any = None
    servers: Any = field(default_factory=dict[str, Any])
    notify: Any = field(default_factory=list[Any])
    hooks: dict[str, Any] = field(default_factory=dict[str, Any])
    rules: list[Any] = field(default_factory=list[Any])
    otel: OtelSettings = field(default_factory=OtelSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    model: str | None = None
    """As `PLANWARDEN_MODEL`, which wins over it."""
