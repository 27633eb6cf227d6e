"""What the engine knows about a tool: its definition as data, and the question a blocking tool asks.

The definition is what gets pinned, shown and digested. How the tool is run is behind the `Toolbox` port.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

Risk = Literal["read", "confirm", "dangerous", "critical"]
"""Who must agree before a call runs, lowest first."""

Effect = Literal["read", "idempotent", "effect"]
"""What may be repeated after a crash: a read, the same call with the same key, or nothing."""

ExecutionMode = Literal["immediate", "blocking"]
OnTimeout = Literal["reject", "approve"]

RISKS: tuple[Risk, ...] = ("read", "confirm", "dangerous", "critical")


def highest_risk(*risks: Risk) -> Risk:
    """The strictest of the given risks; `read` when none is given."""
    return RISKS[max((RISKS.index(risk) for risk in risks), default=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """Everything about a tool that a plan, a prompt or a person may need to see."""

    name: str
    description: str
    input_schema: dict[str, JsonValue]
    output_schema: dict[str, JsonValue] | None = None
    capabilities: tuple[str, ...] = ()
    risk: Risk = "dangerous"
    effect: Effect = "effect"
    execution_mode: ExecutionMode = "immediate"
    source: str = "python"
    """`builtin`, `python`, or the name of the downstream server."""
    timeout_s: float | None = 60.0
    """Of the call; for a blocking tool, of the question. None waits for ever."""
    answer_within_s: float | None = None
    """Of the question that any tool may cause; None waits for ever."""
    on_timeout: OnTimeout = "reject"
    annotations: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    unavailable: str | None = None
    """Why the tool cannot be called now, or None."""
    digest: str = ""
    """Digest of the whole definition as it was when the catalogue was built."""
    origin: str = ""
    """Digest of what the definition was derived from: a downstream server's address and its own, whole definition."""

    @property
    def is_blocking(self) -> bool:
        return self.execution_mode == "blocking"

    @property
    def summary(self) -> str:
        """First line of the description, at most 120 characters."""
        line = self.description.strip().splitlines()[0] if self.description.strip() else ""
        return line if len(line) <= 120 else line[:117] + "..."

    @property
    def manifest(self) -> str:
        """The one line that planning sees."""
        facts = [self.risk, self.execution_mode, *self.capabilities]
        return f"{self.name}: {self.summary} [{', '.join(facts)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspend:
    """Returned by a blocking tool: the question to ask before the call has a result."""

    message: str
    """What is asked."""
    form: dict[str, JsonValue] | None = None
    """JSON Schema of the answer's `content`; None asks for yes or no."""
    resume_payload: JsonValue = None
    """Stored with the suspension and handed to the tool's `on_resume` together with the decision."""
    timeout_s: float | None = None
    """Seconds for the answer; default the tool's."""
    on_timeout: OnTimeout | None = None
    """What passes when nobody answers in time; default the tool's."""
    addressee: Literal["human", "clock"] = "human"
    """`clock` waits for `timeout_s` and then continues by itself; nobody is asked."""
    asker: str = ""
    """Who else really asks, such as "server 'x'". Whatever is decided is handed to it: a rejection is an answer too."""
    is_delegated: bool = False
    """It is a question of an execution that another agent runs."""
    risk: Risk | None = None
    """At least this, whatever the tool's own risk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What a running tool may know about its call."""

    execution_id: str
    """The execution that the call belongs to."""
    step_id: str
    """The step that the call belongs to."""
    call_id: str
    """`STEP:NUMBER`, unique in the execution."""
    idempotency_key: str
    """`execution:step:sequence`; the same on every repetition of the same call."""
    definition_digest: str = ""
    """Of the definition that the call was checked and gated with."""
    chain: tuple[str, ...] = ()
    """Executions of other agents that led to this one, the first one first; of all of them somebody delegated."""
    left: Mapping[str, float] = field(default_factory=dict[str, float])
    """What is left of the execution's budgets, by their names on the wire."""
