"""The gate: the one place that turns a proposed call into an intent, a question, or a refusal.

Every path to a tool leads through `Dispatcher.prepare`: calls from plans and from models, calls released by a decision,
calls repeated after a crash. It looks at the folded state and gives events; nothing runs before they are committed.
What is stored with a question is exactly what runs after it: references resolved, defaults filled in.
"""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.approval.grants import GrantCache
from planwarden.agent.approval.questions import POLICY_DIGITS, Questions, decision_json
from planwarden.agent.approval.staleness import Staleness
from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import InvalidArguments, ToolError
from planwarden.agent.core import events as ev
from planwarden.agent.core.prompts import DELEGATE
from planwarden.agent.core.references import ArtifactPart, PartAddress
from planwarden.agent.core.state import Call, ExecutionState, SuspensionState
from planwarden.agent.core.tool import Effect, ToolDefinition
from planwarden.agent.ports.environment import Clock, Ids
from planwarden.agent.ports.policy import Policy, Requirement
from planwarden.agent.ports.toolbox import Toolbox

ASKED: tuple[ev.SuspensionKind, ...] = ("confirmation", "input", "delegated", "wait")
"""Questions that a tool asked itself; a call that runs after one of these is resumed, not started."""


@dataclass(frozen=True, slots=True)
class CallJob:
    """Something to perform once the events that announce it are committed."""

    kind: Literal["call", "resume"]
    call: Call
    definition: ToolDefinition

    @property
    def key(self) -> str:
        return self.call.call_id


@dataclass(frozen=True, slots=True)
class PreparedCall:
    events: tuple[ev.Event, ...] = ()
    work: CallJob | None = None


class Dispatcher:
    """Prepares calls; holds no state of its own."""

    def __init__(self, tools: Toolbox, gate: Policy, clock: Clock, ids: Ids, grants: GrantCache | None = None) -> None:
        self._tools = tools
        self._gate = gate
        self._clock = clock
        self._grants = grants or GrantCache(gate)
        self.questions = Questions(tools, gate, clock, ids)
        self.staleness = Staleness(tools, gate, self.questions)

    def knowing(self, parts: Mapping[PartAddress, ArtifactPart]) -> "Dispatcher":
        """The same, with parts of artifacts that references may take."""
        known = copy(self)
        known.questions = self.questions.knowing(parts)
        return known

    def prepare(self, execution: ExecutionState, call: Call) -> PreparedCall:
        """What to record for a call that waits for its turn, and what to perform afterwards."""
        definition = self._tools.get(call.tool_name)
        if call.status == "outcome_unknown":
            return self._unknown_outcome(execution, call, definition or _gone(call))
        if definition is None or definition.unavailable:
            return _failed(call, "unknown_tool", self._no_tool(call, definition))
        if call.status == "proposed":
            return self._proposed(execution, call, definition)
        return self._decided(execution, call, definition)

    def recover(self, execution: ExecutionState, call: Call) -> PreparedCall:
        """A call that was dispatched by a process which is gone: repeat it if that is allowed, else ask."""
        definition = self._tools.get(call.tool_name)
        is_gone = definition is None or definition.unavailable is not None
        if call.effect == "effect" or definition is None or is_gone or self.staleness.is_call(execution, definition):
            text = f"{call.tool_name} was dispatched, but the process ended before its result was recorded"
            return PreparedCall((ev.ToolOutcomeUnknown(call_id=call.call_id, message=text),))
        asked = execution.suspensions.get(call.suspension_id or "")
        is_resumed = asked is not None and asked.question.call_id == call.call_id and asked.question.kind in ASKED
        return PreparedCall((), CallJob("resume" if is_resumed else "call", call, definition))

    def _proposed(self, execution: ExecutionState, call: Call, definition: ToolDefinition) -> PreparedCall:
        step = execution.steps[call.step_id]
        if call.by_model and execution.options.tool_mode == "strict":
            offered = (*step.step.required_tools, DELEGATE)
            if call.tool_name not in offered:
                return _failed(call, "unknown_tool", f"this step may call only {', '.join(offered)}")
        try:
            arguments = self.questions.arguments(execution, call)
        except InvalidArguments as error:
            return _failed(call, error.code, error.message)
        repeated = self._same_confirmation(execution, call, definition, arguments)
        if repeated is not None:
            return PreparedCall(
                (ev.ToolReturned(call_id=call.call_id, value=repeated.value, artifact=repeated.artifact),)
            )
        return self._gated(execution, call, definition, arguments)

    def _gated(
        self,
        execution: ExecutionState,
        call: Call,
        definition: ToolDefinition,
        arguments: dict[str, JsonValue],
    ) -> PreparedCall:
        try:
            suspend = self._tools.question(call.tool_name, arguments)
        except ToolError as error:
            return _failed(call, error.code, error.message)
        if suspend is not None:
            return PreparedCall((self.questions.ask(execution, call, definition, suspend, arguments),))
        if self.staleness.is_call(execution, definition):
            return PreparedCall((self.staleness.again(execution, call, definition, arguments),))
        requirement = self._gate.requirement(definition, arguments)
        covering = self._covering(execution, call, definition, arguments, requirement)
        asks_itself = definition.is_blocking and requirement.risk == "confirm"
        if requirement.needs is None or covering is not None or asks_itself:
            return _intended(call, definition, arguments, covering)
        granted = self._grants.covering(definition, arguments, requirement, execution.principal, self._clock.now())
        if granted is not None:
            return _intended(call, definition, arguments, None, granted)
        return PreparedCall((self.questions.approval(execution, call, definition, arguments, requirement),))

    def _decided(self, execution: ExecutionState, call: Call, definition: ToolDefinition) -> PreparedCall:
        suspension = execution.suspensions[call.suspension_id or ""]
        question, decision = suspension.question, suspension.decision
        assert decision is not None and (decision.approved or question.asker)
        arguments = question.arguments or {}
        is_new_policy = question.policy != self._gate.policy_digest[:POLICY_DIGITS]
        if not is_new_policy and not self._is_intact(execution, suspension):
            return _failed(call, "digest_mismatch", "the stored question is not the one that was approved")
        if question.kind == "approval":
            if self.staleness.is_question(question):
                return self._stale(execution, call, definition, arguments, question)
            if is_new_policy:
                requirement = self._gate.requirement(definition, arguments)
                again = self.questions.approval(execution, call, definition, arguments, requirement)
                text = f"The operator's policy changed after it was approved. {again.question.message}"
                return PreparedCall((ev.Suspended(question=replace(again.question, message=text)),))
            intent = ev.ToolCallIntended(
                call_id=call.call_id, effect=definition.effect, suspension_id=question.suspension_id
            )
            running = replace(call, arguments=arguments, effect=definition.effect)
            return PreparedCall((intent,), CallJob("call", running, definition))
        if self._tools.resumes(call.tool_name):
            # Whoever waits or asks for another agent only looks at it again, as often as it has to.
            effect: Effect = "idempotent" if question.kind in ("wait", "delegated") else definition.effect
            intent = ev.ToolCallIntended(call_id=call.call_id, effect=effect, suspension_id=question.suspension_id)
            running = replace(call, arguments=arguments, effect=effect, suspension_id=question.suspension_id)
            return PreparedCall((intent,), CallJob("resume", running, definition))
        return PreparedCall((ev.ToolReturned(call_id=call.call_id, value=decision_json(decision, question)),))

    def _is_intact(self, execution: ExecutionState, suspension: SuspensionState) -> bool:
        """What is stored is what was asked, and what was asked is what was decided."""
        question = suspension.question
        is_timeout = suspension.status == "timed_out"
        if not is_timeout and suspension.decided_digest != question.digest:
            return False
        return question.digest == self.questions.approval_digest(execution, question)

    def _stale(
        self,
        execution: ExecutionState,
        call: Call,
        definition: ToolDefinition,
        arguments: dict[str, JsonValue],
        question: ev.Question,
    ) -> PreparedCall:
        _, faults = self._tools.complete(call.tool_name, arguments)
        if faults:
            text = (
                f"{call.tool_name} changed after it was approved and does not take its arguments any more: {faults[0]}"
            )
            return _failed(call, "stale_definition", text)
        again = self.staleness.again(execution, call, definition, arguments, since=question)
        return PreparedCall((again,))

    def _unknown_outcome(self, execution: ExecutionState, call: Call, definition: ToolDefinition) -> PreparedCall:
        suspension = execution.suspensions.get(call.suspension_id or "")
        decision = suspension.decision if suspension and suspension.question.kind == "reconcile" else None
        content = decision.content if decision is not None else None
        if suspension is None or not isinstance(content, dict) or call.suspension_id in call.consumed:
            return PreparedCall((self.questions.reconcile(execution, call, definition),))
        if content.get("happened") is True:
            return PreparedCall((ev.ToolReturned(call_id=call.call_id, value=content.get("result")),))
        if definition.unavailable:
            return PreparedCall((self.questions.reconcile(execution, call, definition),))
        if self.staleness.is_question(suspension.question):
            again = self.questions.reconcile(execution, call, definition)
            noted = self.staleness.noted(execution, again, definition, since=suspension.question)
            return PreparedCall((noted,))
        intent = ev.ToolCallIntended(
            call_id=call.call_id,
            arguments=call.arguments,
            effect=definition.effect,
            suspension_id=suspension.question.suspension_id,
        )
        return PreparedCall((intent,), CallJob("call", replace(call, effect=definition.effect), definition))

    def _same_confirmation(
        self, execution: ExecutionState, call: Call, definition: ToolDefinition, arguments: dict[str, JsonValue]
    ) -> Call | None:
        """An earlier call of this step that asked exactly the same and was answered."""
        if not definition.is_blocking or definition.effect == "effect":
            return None
        for earlier in execution.steps[call.step_id].calls:
            if (
                earlier.tool_name == call.tool_name
                and earlier.status == "succeeded"
                and earlier.arguments is not None
                and canonical_json(earlier.arguments) == canonical_json(arguments)
            ):
                return earlier
        return None

    def _covering(
        self,
        execution: ExecutionState,
        call: Call,
        definition: ToolDefinition,
        arguments: dict[str, JsonValue],
        requirement: Requirement,
    ) -> str | None:
        """The approved confirmation that named exactly this call, was worth enough and is not used up yet."""
        confirming = [found for found in execution.suspensions.values() if found.question.covers]
        wanted = canonical_json(arguments) if confirming else ""
        for suspension in confirming:
            decision, question = suspension.decision, suspension.question
            if decision is None or not decision.approved or question.quorum < requirement.quorum:
                continue
            if not self._is_worth(suspension, requirement, execution.principal):
                continue
            for covered in question.covers:
                if (
                    covered.step_id == call.step_id
                    and covered.tool_name == call.tool_name
                    and covered.definition_digest == definition.digest
                    and canonical_json(covered.arguments) == wanted
                    and not self._is_consumed(execution, call, question, wanted)
                ):
                    return question.suspension_id
        return None

    def _is_worth(self, suspension: SuspensionState, requirement: Requirement, owner: str) -> bool:
        if suspension.status == "timed_out":
            # Only questions of the lowest risk are ever approved by waiting.
            return requirement.risk == "confirm"
        assurance, decider = suspension.assurance, suspension.principal
        if assurance is None or decider is None:
            return False
        return self._gate.worth(assurance, decider, owner, requirement.needs) is not None

    def _is_consumed(self, execution: ExecutionState, call: Call, question: ev.Question, wanted: str) -> bool:
        used = sum(
            1
            for other in execution.steps[call.step_id].calls
            if question.suspension_id in other.consumed and canonical_json(other.arguments) == wanted
        )
        granted = sum(
            1
            for covered in question.covers
            if covered.step_id == call.step_id and canonical_json(covered.arguments) == wanted
        )
        return used >= granted

    def _no_tool(self, call: Call, definition: ToolDefinition | None) -> str:
        if definition is not None:
            return f"{call.tool_name} is not available: {definition.unavailable}"
        names = ", ".join(known.name for known in self._tools.definitions()[:20])
        return f"there is no tool {call.tool_name[:128]!r}; available: {names}"


def running_calls(execution: ExecutionState) -> Iterator[Call]:
    """Calls that were dispatched and have no recorded result."""
    for state in execution.steps.values():
        for call in state.calls:
            if call.status == "running":
                yield call


def _gone(call: Call) -> ToolDefinition:
    """Stands in for a tool that no longer exists while the outcome of its call is still to be settled."""
    text = "the tool is no longer registered"
    return ToolDefinition(name=call.tool_name, description=text, input_schema={}, unavailable=text)


def _failed(call: Call, code: str, message: str) -> PreparedCall:
    return PreparedCall((ev.ToolFailed(call_id=call.call_id, code=code, message=message),))


def _intended(
    call: Call,
    definition: ToolDefinition,
    arguments: dict[str, JsonValue],
    covering: str | None,
    granted: str | None = None,
) -> PreparedCall:
    intent = ev.ToolCallIntended(
        call_id=call.call_id,
        arguments=arguments,
        effect=definition.effect,
        suspension_id=covering,
        grant_id=granted,
    )
    return PreparedCall(
        (intent,), CallJob("call", replace(call, arguments=arguments, effect=definition.effect), definition)
    )
