"""The dispatcher: the one place that turns a proposed call into an intent, a question, or a refusal.

Every path to a tool leads through `prepare_call`: calls from plans and from models, calls that a decision released, and
calls that are repeated after a crash. It looks at the folded state and returns events; nothing runs before they are
committed. What a question stores is exactly what runs after it: references resolved, defaults filled in.

In a rehearsal, `_hold` stands behind all of these paths: it lets through only calls that read, and turns every other
call and every question into a record.
"""

from typing import Literal

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.arguments import complete_arguments
from planwarden.agent.approval.batch import ask_batch, find_row
from planwarden.agent.approval.context import ApprovalContext, DecidedBatch
from planwarden.agent.approval.covering import check_covered_calls, find_covering_suspension
from planwarden.agent.approval.once import find_duplicate, find_key
from planwarden.agent.approval.questions import (
    ask_approval,
    ask_approval_of_change,
    ask_what_happened,
    ask_what_tool_asks,
    compute_approval_digest,
    decision_json,
    is_of_policy,
)
from planwarden.agent.approval.rehearsing import rehearse_dispatch, rehearse_event
from planwarden.agent.approval.staleness import describe_change, has_changed_since_plan, has_changed_since_question
from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import DuplicateEffect, InvalidArguments, ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.prompts import DELEGATE
from planwarden.agent.core.rehearsal import runs_in_rehearsal
from planwarden.agent.core.state import Call, ExecutionState, SuspensionState
from planwarden.agent.core.tool import Effect, ToolDefinition, highest_risk, is_of_host
from planwarden.agent.ports.policy import Requirement, describe_denial
from planwarden.agent.ports.toolbox import Toolbox

NEEDS_MORE = "It needs more now than when it was approved: a rule of the operator matches it otherwise."
ASKED_BY_TOOL: tuple[ev.SuspensionKind, ...] = ("confirmation", "input", "delegated", "wait")
"""Questions that a tool asked itself; a call that runs after one of these is resumed, not started."""


class CallJob(msgspec.Struct, frozen=True, gc=False):
    """A call to perform once the events that announce it are committed."""

    kind: Literal["call", "resume"]
    call: Call
    definition: ToolDefinition

    @property
    def key(self) -> str:
        return self.call.call_id


class PreparedCall(msgspec.Struct, frozen=True, gc=False):
    """What to record for a call, and what to perform after the commit."""

    events: tuple[ev.Event, ...] = ()
    job: CallJob | None = None


def prepare_call(context: ApprovalContext, execution: ExecutionState, call: Call) -> PreparedCall:
    """What to record for a call that waits for its turn, and what to perform afterwards."""
    return _hold(execution, call, _keep_once(context, execution, call, _prepare(context, execution, call)))


def _prepare(context: ApprovalContext, execution: ExecutionState, call: Call) -> PreparedCall:
    definition = context.tools.get(call.tool_name)
    if call.status == "outcome_unknown":
        return _prepare_unknown(context, execution, call, definition or _stand_in(call))
    if definition is None or definition.unavailable:
        return _fail(call, "unknown_tool", _explain_no_tool(context.tools, call, definition))
    if call.status == "proposed":
        return _prepare_proposed(context, execution, call, definition)
    return _prepare_decided(context, execution, call, definition)


def recover_call(
    context: ApprovalContext, execution: ExecutionState, call: Call, is_owner_gone: bool = True
) -> PreparedCall:
    """A call that another process made and recorded no result of: repeat it if that is allowed, else say so."""
    return _hold(execution, call, _recover(context, execution, call, is_owner_gone=is_owner_gone))


def _keep_once(context: ApprovalContext, execution: ExecutionState, call: Call, prepared: PreparedCall) -> PreparedCall:
    """What was prepared, with the business key in the intent; a refusal when another call has the key.

    Stands behind every path to an intent. Raises `OnceNeeded` as long as nobody has looked who has it.
    """
    job = prepared.job
    once = None if job is None else find_key(context, call.tool_name, job.call.arguments or {})
    if job is None or once is None:
        return prepared
    duplicate = find_duplicate(context, execution, call, once)
    if duplicate is not None:
        return _fail(call, DuplicateEffect.code, duplicate)
    events = (
        replace(event, once=once) if isinstance(event, ev.ToolCallIntended) else event for event in prepared.events
    )
    return PreparedCall(tuple(events), job)


def _hold(execution: ExecutionState, call: Call, prepared: PreparedCall) -> PreparedCall:
    """What may really happen: everything, except in a rehearsal, which makes only calls that read and asks nobody."""
    if not execution.options.rehearse:
        return prepared
    job = prepared.job
    if job is not None:
        if runs_in_rehearsal(job.definition):
            return prepared
        intent = next((event for event in prepared.events if isinstance(event, ev.ToolCallIntended)), None)
        return PreparedCall((rehearse_dispatch(job.call, job.definition, intent),))
    events: list[ev.Event] = []
    for event in prepared.events:
        events.extend(rehearse_event(execution, call, event))
    return PreparedCall(tuple(events))


def _recover(context: ApprovalContext, execution: ExecutionState, call: Call, *, is_owner_gone: bool) -> PreparedCall:
    definition = context.tools.get(call.tool_name)
    is_gone = definition is None or definition.unavailable is not None
    if call.effect == "effect" or definition is None or is_gone or has_changed_since_plan(execution, definition):
        text = f"{call.tool_name} was dispatched, but its process ended or gave up before the result was recorded"
        if not is_owner_gone:
            text = f"{call.tool_name} was dispatched by a process that lives but does not respond; it has no result"
        return PreparedCall((ev.ToolOutcomeUnknown(call_id=call.call_id, message=text),))
    return PreparedCall((), _build_repeat(execution, call, definition))


def find_tool_question(execution: ExecutionState, call: Call) -> SuspensionState | None:
    """Return the question that the call's tool asked and whose answer the call goes on with; None for another call."""
    for suspension_id in reversed(call.consumed):
        suspension = execution.suspensions[suspension_id]
        if suspension.question.kind != "reconcile":
            is_own = suspension.question.call_id == call.call_id and suspension.question.kind in ASKED_BY_TOOL
            return suspension if is_own else None
    return None


def _build_repeat(execution: ExecutionState, call: Call, definition: ToolDefinition) -> CallJob:
    """A call that was dispatched before; what its tool asked has an answer already."""
    return CallJob("call" if find_tool_question(execution, call) is None else "resume", call, definition)


def _prepare_proposed(
    context: ApprovalContext, execution: ExecutionState, call: Call, definition: ToolDefinition
) -> PreparedCall:
    if call.by_model and is_of_host(call.tool_name):
        return _fail(call, "unknown_tool", "the host's own tools are not for plans; the host makes such calls")
    if call.by_model and execution.options.tool_mode == "strict":
        step = execution.steps[call.step_id].step
        offered = (*step.required_tools, *([DELEGATE] if step.required_tools and context.tools.get(DELEGATE) else []))
        if call.tool_name not in offered:
            return _fail(call, "unknown_tool", f"this step may call only {', '.join(offered) or 'no tools'}")
    answered = find_row(context, execution, call, definition)
    if answered is not None:
        return _prepare_row(context, execution, call, definition, *answered)
    try:
        arguments = complete_arguments(context, execution, call)
        check_covered_calls(context, execution, call)
    except InvalidArguments as error:
        return _fail(call, error.code, error.message)
    repeated = _find_same_confirmation(execution, call, definition, arguments)
    if repeated is not None:
        return PreparedCall((ev.ToolReturned(call_id=call.call_id, value=repeated.value, artifact=repeated.artifact),))
    # Before anybody is asked.
    duplicate = find_duplicate(context, execution, call, find_key(context, call.tool_name, arguments))
    if duplicate is not None:
        return _fail(call, DuplicateEffect.code, duplicate)
    try:
        suspend = context.tools.question(call.tool_name, arguments)
    except ToolError as error:
        return _fail(call, error.code, error.message)
    if suspend is not None:
        return PreparedCall((ask_what_tool_asks(context, execution, call, definition, arguments, suspend),))
    return _apply_policy(context, execution, call, definition, arguments)


def _prepare_row(
    context: ApprovalContext,
    execution: ExecutionState,
    call: Call,
    definition: ToolDefinition,
    batch: DecidedBatch,
    row: ev.CoveredCall,
) -> PreparedCall:
    """A call of a loop about which a person decided together with others."""
    question = batch.suspension.question
    if call.call_id not in batch.approved:
        return PreparedCall((ev.CallRejected(call_id=call.call_id, suspension_id=question.suspension_id),))
    requirement = context.find_requirement(definition, row.arguments)
    if requirement.denied is not None:
        return _deny(call, requirement)
    if row.definition_digest == definition.digest:
        return _dispatch(call, definition, row.arguments, suspension_id=question.suspension_id)
    _, faults = context.tools.complete(call.tool_name, row.arguments)
    if faults:
        text = f"{call.tool_name} changed after it was approved and does not take its arguments any more: {faults[0]}"
        return _fail(call, "stale_definition", text)
    since = replace(question, definition_digest=row.definition_digest)
    return PreparedCall((ask_approval_of_change(context, execution, call, definition, row.arguments, since=since),))


def _apply_policy(
    context: ApprovalContext,
    execution: ExecutionState,
    call: Call,
    definition: ToolDefinition,
    arguments: dict[str, JsonValue],
) -> PreparedCall:
    """Run the call if the policy, an earlier confirmation or a grant allows it; else ask for approval.

    What a rule of the operator denies is not even asked about.
    """
    state = execution.steps[call.step_id]
    requirement = context.find_requirement(definition, arguments)
    if requirement.denied is not None:
        return _deny(call, requirement)
    if has_changed_since_plan(execution, definition):
        if state.items is not None:
            return PreparedCall(ask_batch(context, execution, state))
        return PreparedCall((ask_approval_of_change(context, execution, call, definition, arguments),))
    covering = find_covering_suspension(context, execution, call, definition, arguments, requirement)
    asks_itself = definition.is_blocking and requirement.risk == "confirm"
    if covering is not None or asks_itself:
        return _dispatch(call, definition, arguments, suspension_id=covering)
    if requirement.needs is None:
        return _dispatch(call, definition, arguments, requirement=requirement)
    now = context.clock.now()
    grant_id = context.grants.find_covering(execution, call, definition, arguments, requirement, now)
    if grant_id is not None:
        return _dispatch(call, definition, arguments, grant_id=grant_id)
    if state.items is not None:
        return PreparedCall(ask_batch(context, execution, state))
    return PreparedCall((ask_approval(context, execution, call, definition, arguments, requirement),))


def _prepare_decided(
    context: ApprovalContext, execution: ExecutionState, call: Call, definition: ToolDefinition
) -> PreparedCall:
    suspension = execution.suspensions[call.suspension_id or ""]
    question, decision = suspension.question, suspension.decision
    assert decision is not None and (decision.approved or question.asker)
    is_new_policy = not is_of_policy(question, context.policy)
    if not is_new_policy and not _is_intact(context, execution, suspension):
        return _fail(call, "digest_mismatch", "the stored question is not the one that was approved")
    if question.kind == "wait" and call.last_failure is not None:
        return _prepare_attempt(context, execution, call, definition, question)
    if question.kind == "approval":
        return _prepare_approved(context, execution, call, definition, question, is_new_policy=is_new_policy)
    arguments = question.arguments or {}
    if context.tools.resumes(call.tool_name):
        # A call that waits, or asks for another agent, only looks again, as often as it has to.
        effect: Effect = "idempotent" if question.kind in ("wait", "delegated") else definition.effect
        intent = ev.ToolCallIntended(call_id=call.call_id, effect=effect, suspension_id=question.suspension_id)
        running = replace(call, arguments=arguments, effect=effect, suspension_id=question.suspension_id)
        return PreparedCall((intent,), CallJob("resume", running, definition))
    return PreparedCall((ev.ToolReturned(call_id=call.call_id, value=decision_json(decision, question)),))


def _prepare_attempt(
    context: ApprovalContext, execution: ExecutionState, call: Call, definition: ToolDefinition, wait: ev.Question
) -> PreparedCall:
    """The next attempt of a call that failed; what released the first one covers it while nothing has changed."""
    arguments = call.arguments or {}
    approvals = [execution.suspensions[name].question for name in call.consumed]
    requirement = context.find_requirement(definition, arguments)
    if requirement.denied is not None:
        return _deny(call, requirement)
    if approvals and has_changed_since_question(definition, wait):
        return PreparedCall((ask_approval_of_change(context, execution, call, definition, arguments, since=wait),))
    if approvals and not is_of_policy(approvals[-1], context.policy):
        requirement = context.find_full_requirement(definition, arguments)
        found = ("The operator's policy changed after it was approved.",)
        return PreparedCall((ask_approval(context, execution, call, definition, arguments, requirement, found),))
    if approvals:
        return _dispatch(call, definition, arguments)
    return _apply_policy(context, execution, call, definition, arguments)


def _prepare_approved(
    context: ApprovalContext,
    execution: ExecutionState,
    call: Call,
    definition: ToolDefinition,
    question: ev.Question,
    *,
    is_new_policy: bool,
) -> PreparedCall:
    """Run what was approved; ask again when the tool or the policy changed since."""
    arguments = question.arguments or {}
    requirement = context.find_requirement(definition, arguments)
    if requirement.denied is not None:
        return _deny(call, requirement)
    if has_changed_since_question(definition, question):
        _, faults = context.tools.complete(call.tool_name, arguments)
        if faults:
            text = (
                f"{call.tool_name} changed after it was approved and does not take its arguments any more: {faults[0]}"
            )
            return _fail(call, "stale_definition", text)
        return PreparedCall((ask_approval_of_change(context, execution, call, definition, arguments, since=question),))
    # The policy is the same, but a link may lead elsewhere than when it was asked.
    is_higher = highest_risk(question.risk or "read", requirement.effective_risk) != question.risk
    if is_new_policy or is_higher:
        found = ("The operator's policy changed after it was approved.",) if is_new_policy else (NEEDS_MORE,)
        requirement = context.find_full_requirement(definition, arguments)
        return PreparedCall((ask_approval(context, execution, call, definition, arguments, requirement, found),))
    intent = ev.ToolCallIntended(call_id=call.call_id, effect=definition.effect, suspension_id=question.suspension_id)
    running = replace(call, arguments=arguments, effect=definition.effect)
    return PreparedCall((intent,), CallJob("call", running, definition))


def _prepare_unknown(
    context: ApprovalContext, execution: ExecutionState, call: Call, definition: ToolDefinition
) -> PreparedCall:
    """Ask whether the call happened; after the answer, take the result or run the call again."""
    suspension = execution.suspensions.get(call.suspension_id or "")
    decision = suspension.decision if suspension and suspension.question.kind == "reconcile" else None
    content = decision.content if decision is not None else None
    if suspension is None or not isinstance(content, dict) or call.suspension_id in call.consumed:
        return PreparedCall((ask_what_happened(context, execution, call, definition),))
    if content.get("happened") is True:
        return PreparedCall((ev.ToolReturned(call_id=call.call_id, value=content.get("result")),))
    if definition.unavailable:
        return PreparedCall((ask_what_happened(context, execution, call, definition),))
    doubt = _find_doubt(context, execution, definition, suspension)
    if doubt is not None:
        return PreparedCall((ask_what_happened(context, execution, call, definition, (doubt,)),))
    requirement = context.find_requirement(definition, call.arguments or {})
    if requirement.denied is not None:
        # A person said that it did not happen, and it does not happen again.
        return _deny(call, requirement)
    intent = ev.ToolCallIntended(
        call_id=call.call_id,
        arguments=call.arguments,
        effect=definition.effect,
        suspension_id=suspension.question.suspension_id,
    )
    return PreparedCall((intent,), _build_repeat(execution, replace(call, effect=definition.effect), definition))


def _find_doubt(
    context: ApprovalContext, execution: ExecutionState, definition: ToolDefinition, suspension: SuspensionState
) -> str | None:
    """Why "it did not happen" does not let the call run again, in a sentence; None when it does."""
    if has_changed_since_question(definition, suspension.question):
        return describe_change(context, execution, definition, suspension.question)
    if not is_of_policy(suspension.question, context.policy):
        return "The operator's policy changed after it was answered."
    if not _is_intact(context, execution, suspension):
        return "The stored question is not the one that was answered."
    return None


def _is_intact(context: ApprovalContext, execution: ExecutionState, suspension: SuspensionState) -> bool:
    """True when what is stored is what was asked, and what was asked is what was decided."""
    question = suspension.question
    if suspension.status != "timed_out" and suspension.decided_digest != question.digest:
        return False
    return question.digest == compute_approval_digest(context.policy.policy_digest, execution, question)


def _find_same_confirmation(
    execution: ExecutionState, call: Call, definition: ToolDefinition, arguments: dict[str, JsonValue]
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


def _dispatch(
    call: Call,
    definition: ToolDefinition,
    arguments: dict[str, JsonValue],
    *,
    suspension_id: str | None = None,
    grant_id: str | None = None,
    requirement: Requirement | None = None,
) -> PreparedCall:
    """The intent. `requirement` is that of a call that nobody was asked about: perhaps a rule let it pass."""
    intent = ev.ToolCallIntended(
        call_id=call.call_id,
        arguments=arguments,
        effect=definition.effect,
        suspension_id=suspension_id,
        grant_id=grant_id,
        rule=None if requirement is None else requirement.rule,
        shares=() if requirement is None else requirement.shares,
    )
    running = replace(call, arguments=arguments, effect=definition.effect)
    return PreparedCall((intent,), CallJob("call", running, definition))


def _deny(call: Call, requirement: Requirement) -> PreparedCall:
    """The call fails with the operator's reason, which a model reads; nobody is asked."""
    failed = ev.ToolFailed(
        call_id=call.call_id,
        code="denied",
        message=describe_denial(requirement),
        # As in `_fail`.
        nothing_happened=call.status == "outcome_unknown",
        rule=requirement.rule,
    )
    return PreparedCall((failed,))


def _fail(call: Call, code: str, message: str) -> PreparedCall:
    # What a lost call took is given back when a person said that it did not happen and it does not run again.
    is_lost = call.status == "outcome_unknown"
    failed = ev.ToolFailed(call_id=call.call_id, code=code, message=message, nothing_happened=is_lost)
    return PreparedCall((failed,))


def _explain_no_tool(tools: Toolbox, call: Call, definition: ToolDefinition | None) -> str:
    if definition is not None:
        return f"{call.tool_name} is not available: {definition.unavailable}"
    names = ", ".join(known.name for known in tools.definitions()[:20])
    return f"there is no tool {call.tool_name[:128]!r}; available: {names}"


def _stand_in(call: Call) -> ToolDefinition:
    """Stands in for a tool that no longer exists while the outcome of its call is still to be settled."""
    text = "the tool is no longer registered"
    return ToolDefinition(name=call.tool_name, description=text, input_schema={}, unavailable=text)
