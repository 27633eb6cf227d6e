"""A tool's definition as data, the question that a blocking tool asks, and what a running tool knows about its call.

Plans pin the definition, people see it, and approval digests cover it. The `Toolbox` port hides how the tool runs.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Literal, cast, get_args

import msgspec

from planwarden.agent.common.errors import ToolError, UsageError
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.struct import JsonValue, StoredStruct
from planwarden.agent.common.suggestions import did_you_mean

HOST_SEPARATOR = "/"
"""What marks the name of a host's own tool, such as `claude-code/Bash`; no name in the catalogue contains it."""
MAX_WAIT_S = 366 * 24 * 3600.0
"""The longest time limit that a field can have; a field that is None sets no limit at all."""
MAX_LISTED_ARGUMENTS, MAX_ARGUMENT_CHARS = 12, 40
"""The most arguments of a tool that a prompt lists, and the most characters of each argument's name."""

Risk = Literal["read", "confirm", "dangerous", "critical"]
"""How much approval a call needs before it runs, lowest first."""

Effect = Literal["read", "idempotent", "effect"]
"""What the engine may repeat after a crash: a `read` always, an `idempotent` call with its key, an `effect` never."""

ExecutionMode = Literal["immediate", "blocking"]
OnTimeout = Literal["reject", "approve"]
Answerer = Literal["human", "clock"]

RISKS: tuple[Risk, ...] = get_args(Risk)
_DEFINITION_WORDS: dict[str, tuple[str | None, ...]] = {
    "risk": RISKS,
    "effect": get_args(Effect),
    "execution_mode": get_args(ExecutionMode),
    "on_timeout": get_args(OnTimeout),
}
_QUESTION_WORDS: dict[str, tuple[str | None, ...]] = {
    "risk": (*RISKS, None),
    "addressee": get_args(Answerer),
    "on_timeout": (*get_args(OnTimeout), None),
}


def is_of_host(tool_name: str) -> bool:
    """Return whether the tool belongs to a host; the host itself makes the calls of such a tool."""
    return HOST_SEPARATOR in tool_name


def highest_risk(*risks: Risk) -> Risk:
    """Return the strictest of the risks; `read` when there is none."""
    return RISKS[max((RISKS.index(risk) for risk in risks), default=0)]


def _find_fault(words: dict[str, tuple[str | None, ...]], limits: tuple[str, ...], struct: object) -> str | None:
    """Return the first fault of `struct`: a word that its field does not allow, or a limit out of range; else None."""
    for field, possible in words.items():
        if (value := getattr(struct, field)) not in possible:
            meant = did_you_mean(value, filter(None, possible)) if isinstance(value, str) else ""
            return f"{field} is {value!r}{meant}; use {', '.join(map(repr, possible[:-1]))} or {possible[-1]!r}"
    for field in limits:
        limit_s = getattr(struct, field)
        seconds = limit_s if isinstance(limit_s, int | float) and not isinstance(limit_s, bool) else 0
        if limit_s is not None and not 0 < seconds <= MAX_WAIT_S:
            return f"{field} is {limit_s!r}; a limit is more than 0 and at most {MAX_WAIT_S:.0f} s, None for no limit"
    return None


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
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
    """Seconds for the call; for a blocking tool, for the answer. None: no limit."""
    answer_within_s: float | None = None
    """Seconds for the answer to a question that the call causes. None: no limit."""
    on_timeout: OnTimeout = "reject"
    annotations: dict[str, JsonValue] = {}
    unavailable: str | None = None
    """Why the tool cannot be called now, or None."""
    is_gated: bool = False
    """Whether only hosts call the tool, through the gate; such a tool is not offered for use in plans."""
    digest: str = ""
    """Digest of the whole definition, computed when the catalogue was built."""
    origin: str = ""
    """Digest of how a downstream server is reached and of its own definition of the tool; empty for other tools."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for a word that its field does not allow, and for a limit that is out of range."""
        if (fault := _find_fault(_DEFINITION_WORDS, ("timeout_s", "answer_within_s"), self)) is not None:
            raise UsageError(f"tool {self.name!r}: {fault}")

    @property
    def is_blocking(self) -> bool:
        return self.execution_mode == "blocking"

    @property
    def summary(self) -> str:
        """The first line of the description, cut to 120 characters."""
        line = self.description.strip().splitlines()[0] if self.description.strip() else ""
        return line if len(line) <= 120 else line[:117] + "..."

    @property
    def manifest(self) -> str:
        """The one line that a planning prompt shows: name, arguments, purpose, risk, mode and capabilities."""
        facts = [self.risk, *(["blocking"] if self.is_blocking else []), *self.capabilities]
        return f"{self.signature}: {self.summary} [{', '.join(facts)}]"

    @property
    def signature(self) -> str:
        """The name with the names of the arguments, such as `send_email(to, text, cc?)`."""
        return f"{self.name}({', '.join(self._list_arguments())})"

    def _list_arguments(self) -> Iterator[str]:
        """Yield the names of the first arguments, with a question mark after each optional one."""
        names, required = list(read_properties(self.input_schema)), self.input_schema.get("required")
        for name in names[:MAX_LISTED_ARGUMENTS]:
            is_required = isinstance(required, list) and name in required
            yield " ".join(name.split())[:MAX_ARGUMENT_CHARS] + ("" if is_required else "?")
        if len(names) > MAX_LISTED_ARGUMENTS:
            yield "..."


class RemoteCall(StoredStruct):
    """A call that another agent says it will make after an approval."""

    tool_name: str
    arguments: dict[str, JsonValue]


class Suspend(msgspec.Struct, frozen=True, kw_only=True):
    """A question that a blocking tool returns, to be asked before its call can have a result."""

    message: str
    """What is asked."""
    form: dict[str, JsonValue] | None = None
    """JSON Schema of the answer's `content`; None asks for yes or no."""
    resume_payload: JsonValue = None
    """Stored with the suspension and handed to the tool's `on_resume` together with the decision."""
    timeout_s: float | None = None
    """Seconds for the answer; by default the tool's own limit. If a value here extends that limit
    or is the only limit, a question without an answer is rejected, because the value may come from a model."""
    on_timeout: OnTimeout | None = None
    """What happens without an answer; by default, as for the tool. `approve` counts only if the tool has it too."""
    addressee: Answerer = "human"
    """Who answers; `clock` means nobody: the call continues by itself after `timeout_s`."""
    asker: str = ""
    """Who asks through the tool, such as "server 'x'". The asker receives every decision, even a rejection."""
    is_delegated: bool = False
    """Whether the question comes from an execution that another agent runs."""
    risk: Risk | None = None
    """The lowest risk that the question may have, even if the tool's own risk is lower."""
    releases: tuple[RemoteCall, ...] = ()
    """Calls that another agent says it will make after an approval."""
    undecidable: str = ""
    """Why the question cannot be approved here, and where it can be; empty when it can be approved here."""
    found: tuple[str, ...] = ()
    """Sentences about the question, written by the tool itself and never by the agent that asks."""

    def __post_init__(self) -> None:
        """Raise `ToolError` for a word that its field does not allow, for a limit that is out of range, and for a
        message or form that cannot be used."""
        message, form = cast("object", self.message), cast("object", self.form)
        if not isinstance(message, str) or not isinstance(form, dict | None):
            raise ToolError("its question cannot be asked: message has to be text, and form a JSON Schema or None")
        if (fault := _find_fault(_QUESTION_WORDS, ("timeout_s",), self)) is not None:
            raise ToolError(f"its question cannot be asked: {fault}")
        try:
            if self.form is not None:
                Schema(self.form)
        except ValueError as error:
            fault = str(error).splitlines()[0]
            raise ToolError(f"its question cannot be asked: the form is not a usable JSON Schema: {fault}") from None


async def _need_no_lease() -> None:
    """Return at once: a call outside of an execution has no lease to confirm."""


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a running tool may know about its call."""

    execution_id: str
    """The execution that the call belongs to."""
    thread_id: str = ""
    """The thread of that execution."""
    step_id: str
    """The step that the call belongs to."""
    call_id: str
    """`STEP:NUMBER`, unique in the execution."""
    idempotency_key: str
    """`EXECUTION:STEP:NUMBER` of the execution that began the call; the same each time the engine repeats the call."""
    definition_digest: str = ""
    """Digest of the tool's definition when the call was checked and approved."""
    chain: tuple[str, ...] = ()
    """Ids of the executions of other agents through which the work was delegated to this one, outermost first."""
    left: Mapping[str, float] = {}
    """What remains of each of the execution's budgets, by its name on the wire."""
    confirm_lease: Callable[[], Coroutine[object, object, None]] = _need_no_lease
    """A function that returns once this process certainly owns the execution, and raises `LeaseLost` if another process
    does. A tool that has waited must call it immediately before it acts."""
