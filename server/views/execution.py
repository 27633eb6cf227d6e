"""What the outside sees of an execution: plain values with snake_case attributes, and the same as camelCase JSON.

Built from the folded state and the catalogue; nothing here is stored. docs/reference/executions.md lists every field.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, cast

from pydantic import JsonValue

from planwarden.agent.approval.questions import RECONCILE_FORM
from planwarden.agent.core import events as ev
from planwarden.agent.core.prompts import PLAN_SCHEMA, STEP_SCHEMA, TEXT_SCHEMA, summary
from planwarden.agent.core.state import Call, StepState, SuspensionState
from planwarden.agent.core.state import ExecutionState as State
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.toolbox import Toolbox

SHOWN_CALLS = ("succeeded", "failed", "suspended", "rejected", "outcome_unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool: made, or asked about."""

    call_id: str
    """`STEP:NUMBER`, unique in the execution."""
    tool_name: str
    """Name in the catalogue."""
    arguments: dict[str, JsonValue]
    """As they ran or will run: references resolved, defaults filled in."""
    status: str | None = None
    """`succeeded`, `failed`, `suspended`, `rejected` or `outcome_unknown`; left out in questions."""
    error: "Error | None" = None
    """Why it failed; left out otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Why something failed."""

    code: str
    """A stable word for what went wrong."""
    message: str
    """What happened, to which id, and what to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the plan and how it stands."""

    id: str
    """As in the plan."""
    description: str
    """As in the plan."""
    step_type: str
    """`tool` or `reasoning`."""
    required_tools: tuple[str, ...]
    """Tools of which the log must hold a successful result."""
    dependencies: tuple[str, ...]
    """Steps that come before it."""
    status: str
    """`pending`, `in_progress`, `suspended`, `completed`, `rejected`, `failed` or `skipped`."""
    validation_status: str | None
    """`passed` (proven), `failed`, `skipped` (nothing was promised), or null before it was looked at."""
    tool_validation_mode: str
    """`strict` or `advisory`."""
    retries: int
    """Enforcement prompts that it took."""
    result: JsonValue
    """The value of its one call, the list of its calls' values, or its text; null until it is completed."""
    error: Error | None
    """Why it failed or was rejected, or null."""
    actual_tool_calls: tuple[ToolCall, ...]
    """What was really called, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToAnswer:
    """Where a person decides."""

    inbox_url: str | None = None
    """The question's page, null while no inbox runs."""
    command: str | None = None
    """What a person runs in a terminal; both are null for questions to the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolView:
    """One tool with its full schema."""

    name: str
    """Name in the catalogue."""
    description: str
    """The whole description."""
    input_schema: dict[str, JsonValue]
    """JSON Schema of the arguments."""
    output_schema: dict[str, JsonValue] | None
    """JSON Schema of the result, if the tool has one."""
    annotations: dict[str, JsonValue]
    """Hints of a downstream server, as it wrote them."""
    execution_mode: str
    """`immediate` or `blocking`."""
    risk: str
    """`read`, `confirm`, `dangerous` or `critical`."""
    effect: str
    """`read`, `idempotent` or `effect`."""
    definition_digest: str
    """Digest of the whole definition; another one means another tool."""
    unavailable: str | None = None
    """Why it cannot be called now; left out when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredCallView:
    """A later call that a confirmation decides together with itself."""

    step_id: str
    """The later step."""
    tool_name: str
    """The tool that it calls."""
    arguments: dict[str, JsonValue]
    """Exactly as the call will run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A question to a person or to the caller."""

    suspension_id: str
    """What an answer names."""
    thread_id: str
    """The thread it belongs to."""
    execution_id: str
    """The execution it belongs to."""
    step_id: str | None
    """The step that waits, or null."""
    addressee: str
    """`human` or `caller`."""
    kind: str
    """`confirmation`, `input`, `approval`, `plan`, `step`, `synthesis`, `reconcile` or `delegated`."""
    message: str
    """The question in words; for a person's question it may be the agent's own text, unverified."""
    tool_call: ToolCall | None
    """The call that is asked about, or null."""
    risk: str | None
    """Of what is asked about."""
    needs: str | None
    """The least assurance of a decision: `client`, `human`, `signed` or `second`; null for the caller."""
    digest: str
    """Over everything that is approved; a decision about another digest is refused."""
    revision: int
    """1, and one more for each change of what is asked."""
    created_at: datetime
    """When it was asked."""
    expires_at: datetime | None
    """When it ends by itself, or null."""
    on_timeout: str
    """What passes then: `reject` or `approve`."""
    prompt: str | None
    """For the caller: what to think about."""
    tools: tuple[ToolView, ...]
    """For the caller: full definitions, just in time."""
    answer_schema: dict[str, JsonValue] | None
    """JSON Schema of `content`, or null where yes or no is enough."""
    confirms: tuple[CoveredCallView, ...]
    """Later calls that the same decision covers, exactly as they will run."""
    how_to_answer: HowToAnswer
    """Where a person decides."""
    quorum: int = 1
    """How many different people have to approve."""
    endorsements: "tuple[Endorsement, ...]" = ()
    """Who has approved so far, while more have to."""
    asker: str | None = None
    """Whose question it is when it is not ours: a downstream server's, or another agent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsement:
    """One of several approvals that are needed."""

    principal: str
    """Who approved."""
    assurance: str
    """What proved it."""
    channel: str
    """Through which door."""
    at: datetime
    """When."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an execution took."""

    model_calls: int
    """Replies of a model, the caller's included."""
    input_tokens: int
    """As counted by the provider."""
    output_tokens: int
    """As counted by the provider."""
    tool_calls: int
    """Calls that were made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One fact of the public history."""

    sequence: int
    """Place in the log; ask for what came after it with `observationsAfter`."""
    type: str
    """What kind of fact it is."""
    at: datetime
    """When it was committed."""
    step_id: str | None
    """The step it is about, or null."""
    data: dict[str, JsonValue]
    """What happened, by type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The result of every verb that touches an execution."""

    thread_id: str
    """What the caller holds."""
    execution_id: str
    """This run of one plan."""
    status: str
    """`planned`, `running`, `suspended`, `completed`, `rejected`, `failed`, `incomplete` or `cancelled`."""
    goal: str | None
    """In the caller's words, or null."""
    output: str | None
    """The final text, or the engine's own summary of what the log proves; null while it is not over."""
    error: Error | None
    """Why it failed, or null."""
    steps: tuple[Step, ...]
    """In the order of the plan."""
    suspensions: tuple[Suspension, ...]
    """Open questions, to people and to the caller."""
    usage: Usage
    """What it took."""
    warnings: tuple[str, ...] = ()
    """What was dropped from a model's plan; left out when nothing was."""
    observations: tuple[Observation, ...] | None = None
    """The public history; only when asked for."""
    next_action: str = ""
    """One sentence: what the caller should do now."""
    awaiting: Literal["human", "caller"] | None = None
    """Whom it waits for while it is suspended: `human` or `caller`."""
    extra: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Keys that a door adds to its own answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionPage:
    """Open questions."""

    suspensions: tuple[Suspension, ...]
    """Oldest first."""
    total: int
    """Of all pages."""
    next_cursor: str | None
    """For the next page, or null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLine:
    """One line of the catalogue."""

    name: str
    """Name in the catalogue."""
    description: str
    """The first line of the description."""
    capabilities: tuple[str, ...]
    """Words for the search."""
    execution_mode: str
    """`immediate` or `blocking`."""
    risk: str
    """`read`, `confirm`, `dangerous` or `critical`."""
    source: str
    """`builtin`, `python`, or the name of the downstream server."""
    unavailable: str | None = None
    """Why it cannot be called now; left out when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPage:
    """A part of the catalogue."""

    tools: tuple[ToolLine, ...]
    """Best matches first, without a query by name."""
    total: int
    """Of all pages."""
    next_cursor: str | None
    """For the next page, or null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchemas:
    """Full definitions."""

    tools: tuple[ToolView, ...]
    """In the order that was asked for."""
    unknown: tuple[str, ...]
    """Names that no tool has."""


def to_json(view: object) -> dict[str, JsonValue]:
    """A view as camelCase JSON; optional parts that are not there are left out where the contract allows it."""
    return cast("dict[str, JsonValue]", _json(view))


def execution_view(
    state: State, tools: Toolbox, observations: Sequence[Observation] | None = None, *, inbox: str | None = None
) -> Execution:
    """The public view of the folded state."""
    suspensions = tuple(
        suspension_view(state, found, tools, inbox=inbox)
        for found in state.open_suspensions
        if found.question.addressee != "clock"
    )
    return Execution(
        thread_id=state.thread_id,
        execution_id=state.execution_id,
        status="running" if state.status == "new" else state.status,
        goal=state.goal,
        output=_output(state),
        error=_error(state),
        steps=tuple(_step(found) for found in state.steps.values()),
        suspensions=suspensions,
        usage=Usage(
            model_calls=state.usage.model_calls,
            input_tokens=state.usage.input_tokens,
            output_tokens=state.usage.output_tokens,
            tool_calls=state.usage.tool_calls,
        ),
        warnings=state.warnings,
        observations=None if observations is None else tuple(observations),
        next_action=next_action(state, suspensions),
        awaiting=_awaiting(state, suspensions),
    )


def suspension_view(state: State, found: SuspensionState, tools: Toolbox, *, inbox: str | None = None) -> Suspension:
    """One question with everything needed to answer it."""
    question = found.question
    is_caller = question.addressee == "caller"
    offered = (tools.get(name) for name in question.offered)
    return Suspension(
        suspension_id=question.suspension_id,
        thread_id=state.thread_id,
        execution_id=state.execution_id,
        step_id=question.step_id,
        addressee=question.addressee,
        kind=question.kind,
        message=question.message,
        tool_call=None
        if question.call_id is None or question.tool_name is None
        else ToolCall(call_id=question.call_id, tool_name=question.tool_name, arguments=question.arguments or {}),
        risk=question.risk,
        needs=question.needs,
        digest=question.digest,
        revision=question.revision,
        created_at=_time(found.created_at),
        expires_at=None if question.expires_at is None else _time(question.expires_at),
        on_timeout=question.on_timeout,
        prompt=question.prompt,
        tools=tuple(tool_view(definition) for definition in offered if definition is not None),
        answer_schema=_answer_schema(question),
        confirms=tuple(
            CoveredCallView(step_id=covered.step_id, tool_name=covered.tool_name, arguments=covered.arguments)
            for covered in question.covers
        ),
        how_to_answer=HowToAnswer()
        if is_caller
        else HowToAnswer(
            inbox_url=f"{inbox}/suspensions/{question.suspension_id}" if inbox else None,
            command=f"planwarden approve {question.suspension_id}",
        ),
        quorum=question.quorum,
        endorsements=tuple(
            Endorsement(principal=vote.principal, assurance=vote.assurance, channel=vote.channel, at=_time(vote.at))
            for vote in found.endorsements
        ),
        asker=question.asker or None,
    )


def tool_view(definition: ToolDefinition) -> ToolView:
    return ToolView(
        name=definition.name,
        description=definition.description,
        input_schema=definition.input_schema,
        output_schema=definition.output_schema,
        annotations=definition.annotations,
        execution_mode=definition.execution_mode,
        risk=definition.risk,
        effect=definition.effect,
        definition_digest=definition.digest,
        unavailable=definition.unavailable,
    )


def tool_line(definition: ToolDefinition) -> ToolLine:
    return ToolLine(
        name=definition.name,
        description=definition.summary,
        capabilities=definition.capabilities,
        execution_mode=definition.execution_mode,
        risk=definition.risk,
        source=definition.source,
        unavailable=definition.unavailable,
    )


def next_action(state: State, suspensions: Iterable[Suspension]) -> str:
    """One sentence: what the caller should do now."""
    pending = tuple(suspensions)
    if state.status == "planned":
        return "Show the plan; execute_plan with this threadId (and no plan) runs it, cancel_execution drops it."
    if state.status in ("running", "new"):
        return "Still running; call get_execution with this threadId to look again."
    if state.status == "suspended":
        mine = [found for found in pending if found.addressee == "caller"]
        if mine:
            return f"Answer suspension {mine[0].suspension_id} ({mine[0].kind}) with submit_answer."
        if pending:
            which = ", ".join(found.suspension_id for found in pending[:5])
            return (
                f"A person must decide {which}: call resume_execution to have them asked, or tell them to run "
                f"`planwarden approve {pending[0].suspension_id}`; do not decide for them."
            )
        deadlines = [f.question.expires_at for f in state.open_suspensions if f.question.expires_at is not None]
        until = _time(min(deadlines)).isoformat(timespec="seconds") if deadlines else "later"
        return f"Waiting until {until}; call get_execution then."
    if state.status == "completed":
        return "Done; every required tool call is proven by the log."
    if state.status == "rejected":
        return "A person rejected part of it; do not try the same again. Tell the user what was and was not done."
    if state.status == "incomplete":
        return (
            f"The budget of {state.exhausted} is used up; execute_plan with this threadId and larger budgets goes on."
        )
    if state.status == "cancelled":
        return "Cancelled; nothing more will run."
    return "Failed; read error and steps, correct the plan, and run it on the same thread."


def _awaiting(state: State, suspensions: Iterable[Suspension]) -> Literal["human", "caller"] | None:
    if state.status != "suspended":
        return None
    addressees = {found.addressee for found in suspensions}
    return "caller" if "caller" in addressees else "human" if "human" in addressees else None


def _output(state: State) -> str | None:
    """The synthesis, or the engine's own summary of what the log proves; None while it is not over."""
    if not state.is_finished:
        return None
    return state.synthesis or summary(state) or None


def _error(state: State) -> Error | None:
    if state.error_code is None:
        return None
    return Error(code=state.error_code, message=state.error_message or state.error_code)


def _step(found: StepState) -> Step:
    step = found.step
    return Step(
        id=step.step_id,
        description=step.description,
        step_type=step.step_type,
        required_tools=step.required_tools,
        dependencies=step.dependencies,
        status=found.status,
        validation_status=found.validation,
        tool_validation_mode=step.tool_validation_mode,
        retries=found.retries,
        result=found.result if found.status == "completed" else None,
        error=None
        if found.error_code is None
        else Error(code=found.error_code, message=found.error_message or found.error_code),
        actual_tool_calls=tuple(_call(call) for call in found.calls if call.status in SHOWN_CALLS),
    )


def _call(call: Call) -> ToolCall:
    return ToolCall(
        call_id=call.call_id,
        tool_name=call.tool_name,
        arguments=call.proposed if call.arguments is None else call.arguments,
        status=call.status,
        error=None if call.error_code is None else Error(code=call.error_code, message=call.error_message or ""),
    )


def _answer_schema(question: ev.Question) -> dict[str, JsonValue] | None:
    if question.kind == "plan":
        return PLAN_SCHEMA
    if question.kind == "step":
        return STEP_SCHEMA
    if question.kind == "synthesis":
        return TEXT_SCHEMA
    return RECONCILE_FORM if question.kind == "reconcile" else question.form


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


_OPTIONAL = frozenset(
    {"observations", "awaiting", "status", "unavailable", "warnings", "confirms", "quorum", "endorsements", "asker"}
)
"""Left out when empty: parts beyond the contract, and those that are only there when asked for."""


@cache
def _names(kind: type) -> tuple[tuple[str, str, bool], ...]:
    return tuple((entry.name, _camel(entry.name), entry.name in _OPTIONAL) for entry in fields(kind))


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _json(value: Any) -> Any:
    kind = type(cast("object", value))
    if kind is tuple:
        return [_json(item) for item in value]
    if kind is datetime:
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if not is_dataclass(kind):
        return value
    found: dict[str, Any] = {}
    for name, key, is_optional in _names(kind):
        held = getattr(value, name)
        if is_optional and (held is None or held == () or (name == "quorum" and held == 1)):
            continue
        found[key] = _json(held)
    extra = found.pop("extra", None)
    if isinstance(extra, Mapping):
        found.update(cast("Mapping[str, Any]", extra))
    if kind is ToolCall and found.get("error") is None:
        found.pop("error", None)
    return found
