"""The dispatcher: the only place that turns a proposed call into an intent, a question, or a refusal.

Every path to a tool leads through `prepare_call` (calls from plans and from models, and calls that a decision released)
or `recover_call` (calls that are repeated after a crash). Both read the folded state and return events and perhaps a
job, which runs only after the events are committed. A question stores exactly what an approval then runs: references
are resolved, defaults filled in.

All of these paths end in `_limit_to_rehearsal`. In a rehearsal, each call is judged exactly as in a real run, but then
only calls that read are made; every other call and every question becomes a `CallRehearsed`.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Literal

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.authorize import (
    Allow,
    Ask,
    Deny,
    Permit,
    Reject,
    authorize,
    find_attempt_permit,
    fits_call,
    is_intact,
    judge_row,
    list_confirmations,
)
from planwarden.agent.approval.batch import ask_batch
from planwarden.agent.approval.business_keys import explain_duplicate, find_key
from planwarden.agent.approval.context import ApprovalContext, CallRequest, complete_arguments, has_changed_since_plan
from planwarden.agent.approval.covering_confirmations import check_covered_calls
from planwarden.agent.approval.questions import (
    ask_approval,
    ask_what_happened,
    ask_what_tool_asks,
    decision_json,
    is_of_policy,
)
from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import DuplicateEffect, InvalidArguments, ToolError
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState, SuspensionState
from planwarden.agent.core.execution.verify import runs_in_rehearsal
from planwarden.agent.core.prompts import DELEGATE
from planwarden.agent.core.tool import Effect, ToolDefinition, is_of_host
from planwarden.agent.ports.policy import describe_denial
from planwarden.agent.ports.toolbox import Toolbox


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
    """Return what to record for a call whose turn has come, and what to perform after that is committed."""
    prepared = _keep_once(context, execution, call, _prepare(context, execution, call))
    return _limit_to_rehearsal(execution, call, prepared)


def _prepare(context: ApprovalContext, execution: ExecutionState, call: Call) -> PreparedCall:
    definition = context.tools.get(call.tool_name)
    if call.status == "outcome_unknown":
        return _prepare_unknown(CallRequest(context, execution, call, definition or _stand_in(call)))
    if call.status == "proposed" and call.by_model and (fault := _find_foreign_call(context, execution, call)):
        return _fail(call, "unknown_tool", fault)
    if definition is None or definition.unavailable:
        return _fail(call, "unknown_tool", _explain_no_tool(context.tools, call, definition))
    request = CallRequest(context, execution, call, definition)
    return _prepare_proposed(request) if call.status == "proposed" else _prepare_decided(request)


def _find_foreign_call(context: ApprovalContext, execution: ExecutionState, call: Call) -> str | None:
    """Return why the model may not call this tool in this step; None if it may."""
    if is_of_host(call.tool_name):
        return "the host's own tools are not for plans; the host makes such calls"
    if execution.options.tool_mode != "strict":
        return None
    required = execution.steps[call.step_id].step.required_tools
    offered = (*required, *([DELEGATE] if required and context.tools.get(DELEGATE) else []))
    return None if call.tool_name in offered else f"this step may call only {', '.join(offered) or 'no tools'}"


def recover_call(context: ApprovalContext, execution: ExecutionState, call: Call, is_owner_gone: bool) -> PreparedCall:
    """Return the job that repeats a call without a recorded result, or, if it may not be repeated, the event that says
    that its outcome is unknown."""
    return _limit_to_rehearsal(execution, call, _recover(context, execution, call, is_owner_gone=is_owner_gone))


def _keep_once(context: ApprovalContext, execution: ExecutionState, call: Call, prepared: PreparedCall) -> PreparedCall:
    """Return `prepared` with the business key, if any, in its intent, or a refusal if another call holds the key.

    Every path to an intent leads through here. Raise `OnceNeeded` until the holder of the key has been looked up.
    """
    job = prepared.job
    once_key = None if job is None else find_key(context, call.tool_name, job.call.arguments or {})
    if job is None or once_key is None:
        return prepared
    duplicate = explain_duplicate(context, execution, call, once_key)
    if duplicate is not None:
        return _fail(call, DuplicateEffect.code, duplicate)
    events = (
        replace(event, once=once_key) if isinstance(event, ev.ToolCallIntended) else event for event in prepared.events
    )
    return PreparedCall(tuple(events), job)


def _limit_to_rehearsal(execution: ExecutionState, call: Call, prepared: PreparedCall) -> PreparedCall:
    """Return `prepared` as it is or, in a rehearsal, reduced to calls that read and records of everything else."""
    if not execution.options.rehearse:
        return prepared
    job = prepared.job
    if job is not None:
        if runs_in_rehearsal(job.definition):
            return prepared
        intent = next((event for event in prepared.events if isinstance(event, ev.ToolCallIntended)), None)
        return PreparedCall((_rehearse_dispatch(job.call, job.definition, intent),))
    return PreparedCall(tuple(chain.from_iterable(_rehearse(execution, call, event) for event in prepared.events)))


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
    """Return the question that the call's own tool asked, if its answer resumes the call; otherwise None."""
    for suspension_id in reversed(call.consumed):
        suspension = execution.suspensions[suspension_id]
        if suspension.question.kind != "reconcile":
            is_own = suspension.question.call_id == call.call_id and suspension.question.traits.resumes_tool
            return suspension if is_own else None
    return None


def _build_repeat(execution: ExecutionState, call: Call, definition: ToolDefinition) -> CallJob:
    """Return the job that makes a call again, or resumes it if its tool asked a question that has been answered."""
    return CallJob("call" if find_tool_question(execution, call) is None else "resume", call, definition)


def _prepare_proposed(request: CallRequest) -> PreparedCall:
    context, execution, call = request.context, request.execution, request.call
    answered = judge_row(request)
    if answered is not None:
        return _act_on(request, {}, answered)
    try:
        arguments = complete_arguments(request)
        check_covered_calls(context, execution, call)
    except InvalidArguments as error:
        return _fail(call, error.code, error.message)
    repeated = _find_same_confirmation(request, arguments)
    if repeated is not None:
        return PreparedCall((ev.ToolReturned(call_id=call.call_id, value=repeated.value, artifact=repeated.artifact),))
    # Check this before anybody is asked.
    duplicate = explain_duplicate(context, execution, call, find_key(context, call.tool_name, arguments))
    if duplicate is not None:
        return _fail(call, DuplicateEffect.code, duplicate)
    try:
        suspend = context.tools.question(call.tool_name, arguments)
    except ToolError as error:
        return _fail(call, error.code, error.message)
    if suspend is not None:
        return PreparedCall((ask_what_tool_asks(request, arguments, suspend),))
    return _judge(request, arguments)


def _judge(request: CallRequest, arguments: dict[str, JsonValue], permit: Permit | None = None) -> PreparedCall:
    """Return what follows from the verdict of `authorize`. A new call has no `permit`; confirmations may cover it."""
    permits = list_confirmations(request, arguments) if permit is None else (permit,)
    return _act_on(request, arguments, authorize(request, arguments, permits))


def _act_on(
    request: CallRequest, arguments: dict[str, JsonValue], verdict: Allow | Ask | Deny | Reject
) -> PreparedCall:
    call = request.call
    match verdict:
        case Reject(suspension_id=suspension_id):
            return PreparedCall((ev.CallRejected(call_id=call.call_id, suspension_id=suspension_id),))
        case Deny(requirement=requirement):
            # The call fails with the operator's reason, which a model reads; nobody is asked.
            return _fail(call, "denied", describe_denial(requirement), requirement.rule)
        case Allow():
            return _dispatch(request, arguments, verdict)
        case Ask(permit=None) if request.state.items is not None:
            return PreparedCall(ask_batch(request.context, request.execution, request.state))
        case Ask(requirement=requirement, permit=permit):
            pass
    reasons = () if verdict.reason is None else (verdict.reason,)
    if permit is not None:
        arguments = permit.arguments
        if permit.source == "reconcile":
            return PreparedCall((ask_what_happened(request, reasons),))
        _, faults = request.context.tools.complete(call.tool_name, arguments)
        if faults:
            text = f"{call.tool_name} changed after it was approved and no longer takes its arguments: {faults[0]}"
            return _fail(call, "stale_definition", text)
    return PreparedCall((ask_approval(request, arguments, requirement, reasons),))


def _prepare_decided(request: CallRequest) -> PreparedCall:
    context, execution, call = request.context, request.execution, request.call
    suspension = execution.suspensions[call.suspension_id or ""]
    question, decision = suspension.question, suspension.decision
    assert decision is not None and (decision.approved or question.asker)
    if is_of_policy(question, context.policy) and not is_intact(context, execution, suspension):
        return _fail(call, "digest_mismatch", "the stored question is not the one that was approved")
    if question.kind == "wait" and call.last_failure is not None:
        # Whatever released the first attempt also releases the next one, as long as nothing has changed.
        return _judge(request, call.arguments or {}, find_attempt_permit(execution, call, question))
    arguments = question.arguments or {}
    if question.kind == "approval":
        permit = Permit(source="approval", suspension=suspension, arguments=arguments, basis=question)
        return _judge(request, arguments, permit)
    if context.tools.resumes(call.tool_name):
        # Resuming a call that waits, or that passes on another agent's question, only checks again: repeating is safe.
        effect: Effect = "idempotent" if question.kind in ("wait", "delegated") else request.definition.effect
        intent = ev.ToolCallIntended(call_id=call.call_id, effect=effect, suspension_id=question.suspension_id)
        running = replace(call, arguments=arguments, effect=effect, suspension_id=question.suspension_id)
        return PreparedCall((intent,), CallJob("resume", running, request.definition))
    return PreparedCall((ev.ToolReturned(call_id=call.call_id, value=decision_json(suspension)),))


def _prepare_unknown(request: CallRequest) -> PreparedCall:
    """Ask whether the call happened; after the answer, take the result or run the call again."""
    context, execution, call = request.context, request.execution, request.call
    suspension = execution.suspensions.get(call.suspension_id or "")
    decision = suspension.decision if suspension and suspension.question.kind == "reconcile" else None
    content = decision.content if decision is not None else None
    if suspension is None or not isinstance(content, dict) or call.suspension_id in call.consumed:
        return PreparedCall((ask_what_happened(request),))
    if content.get("happened") is True:
        return PreparedCall((ev.ToolReturned(call_id=call.call_id, value=content.get("result")),))
    if request.definition.unavailable:
        return PreparedCall((ask_what_happened(request),))
    question = suspension.question
    if is_of_policy(question, context.policy) and not is_intact(context, execution, suspension):
        fault = "The stored question is not the one that was answered."
        return PreparedCall((ask_what_happened(request, (fault,)),))
    arguments = call.arguments or {}
    # A person said that the call did not happen. Judge the call anew before it is repeated: a rule may deny it now.
    permit = Permit(source="reconcile", suspension=suspension, arguments=arguments, basis=question)
    return _judge(request, arguments, permit)


def _find_same_confirmation(request: CallRequest, arguments: dict[str, JsonValue]) -> Call | None:
    """Return an earlier call of this step that asked exactly the same question and has its answer."""
    definition = request.definition
    if not definition.is_blocking or definition.effect == "effect":
        return None
    answered = (call for call in request.state.calls if call.status == "succeeded")
    same = (call for call in answered if call.tool_name == definition.name and is_same_json(call.arguments, arguments))
    return next(same, None)


def _dispatch(request: CallRequest, arguments: dict[str, JsonValue], verdict: Allow) -> PreparedCall:
    """Return the intent, which says what let the call run, and the job that makes the call."""
    call, definition, permit, requirement = request.call, request.definition, verdict.permit, verdict.requirement
    source = None if permit is None else permit.source
    arguments = arguments if permit is None else permit.arguments
    is_by_rule = permit is None and verdict.grant_id is None
    intent = ev.ToolCallIntended(
        call_id=call.call_id,
        # After an approval, the approved question already holds the arguments.
        arguments=None if source == "approval" else arguments,
        effect=definition.effect,
        suspension_id=None if permit is None or source == "attempt" else permit.suspension_id,
        grant_id=verdict.grant_id,
        rule=requirement.rule if is_by_rule else None,
        shares=verdict.shares,
    )
    running = replace(call, arguments=arguments, effect=definition.effect)
    if source == "reconcile":
        return PreparedCall((intent,), _build_repeat(request.execution, running, definition))
    return PreparedCall((intent,), CallJob("call", running, definition))


def _fail(call: Call, code: str, message: str, rule: ev.MatchedRule | None = None) -> PreparedCall:
    # A call with an unknown outcome fails only if a person said that it did not happen: free its shares and key.
    is_lost = call.status == "outcome_unknown"
    failed = ev.ToolFailed(call_id=call.call_id, code=code, message=message, nothing_happened=is_lost, rule=rule)
    return PreparedCall((failed,))


def _explain_no_tool(tools: Toolbox, call: Call, definition: ToolDefinition | None) -> str:
    if definition is not None:
        return f"{call.tool_name} is not available: {definition.unavailable}"
    names = ", ".join(other.name for other in tools.definitions()[:20])
    return f"there is no tool {call.tool_name[:128]!r}; available: {names}"


def _stand_in(call: Call) -> ToolDefinition:
    """Return a substitute for the definition of a tool that is gone while the outcome of its call is unknown."""
    text = "the tool is no longer registered"
    return ToolDefinition(name=call.tool_name, description=text, input_schema={}, unavailable=text)


def _rehearse(execution: ExecutionState, call: Call, event: ev.Event) -> Iterator[ev.Event]:
    """Yield what a rehearsal records: for a question, one record per call that it asks about; else the event itself."""
    if not isinstance(event, ev.Suspended):
        yield event
        return
    if not event.question.rows:
        yield rehearse_question(execution, call, event.question)
    for row in event.question.rows:
        about = replace(event.question, kind="approval", covers=(), found=())
        about = replace(about, arguments=row.arguments, definition_digest=row.definition_digest)
        yield rehearse_question(execution, execution.call(row.call_id), about)


def rehearse_question(execution: ExecutionState, call: Call, question: ev.Question) -> ev.CallRehearsed:
    """Return the record of a call that a real run would ask about."""
    rehearsed = copy_fields(ev.CallRehearsed, question, call_id=call.call_id, asks=question.kind)
    confirmed = _find_confirmation(execution, call, question)
    if confirmed is None:
        return rehearsed
    return replace(rehearsed, needs=None, quorum=1, asks=None, covered_by=confirmed.call_id)


def _rehearse_dispatch(call: Call, definition: ToolDefinition, intent: ev.ToolCallIntended | None) -> ev.CallRehearsed:
    """Return the record of a call that would have run without a question."""
    return ev.CallRehearsed(
        call_id=call.call_id,
        arguments=call.arguments,
        definition_digest=definition.digest,
        effect=definition.effect,
        risk=definition.risk,
        grant_id=None if intent is None else intent.grant_id,
        rule=None if intent is None else intent.rule,
    )


def _find_confirmation(execution: ExecutionState, call: Call, question: ev.Question) -> Call | None:
    """Return the rehearsed confirmation that names exactly this call."""
    if question.kind != "approval":
        return None
    for state in execution.steps.values():
        for other in state.calls:
            for covered in () if other.rehearsed is None else other.rehearsed.covers:
                if fits_call(covered, call, question.definition_digest, question.arguments):
                    return other
    return None
