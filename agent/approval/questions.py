"""The questions about calls. A question fixes what is stored, shown and digested, and what runs after approval.

A question holds the arguments as they will be dispatched, the digest of the tool's definition, the risk, the assurance
that it needs, and an approval digest over all of it. Any change makes a new revision with a new digest.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from typing import Any

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority
from planwarden.agent.approval.context import ApprovalContext, CallRequest
from planwarden.agent.approval.covering_confirmations import list_covered_calls
from planwarden.agent.common.canonical import canonical_json, digest
from planwarden.agent.common.struct import JsonValue, copy_fields, plain_value
from planwarden.agent.core.binding.placeholders import list_texts, search
from planwarden.agent.core.control.retry_reuse import describe_earlier_runs
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import build_alarms
from planwarden.agent.core.execution.question import Alarm, ArgumentEdit
from planwarden.agent.core.execution.state import Call, CallStatus, ExecutionState, SuspensionState
from planwarden.agent.core.execution.thread_effects import REPEAT, describe_repeats
from planwarden.agent.core.plan.plan import RetryPolicy, plan_to_json
from planwarden.agent.core.tool import OnTimeout, Risk, Suspend, ToolDefinition, highest_risk, is_of_host
from planwarden.agent.ports.environment import new_id
from planwarden.agent.ports.policy import Policy, Requirement

MESSAGE_CHARS = 500
MAX_FOUND = 8
HOST_CALL_ANSWER_S = 24 * 3600.0
"""Seconds within which a person must answer a question about a host's call, unless its tool has another limit."""
MAX_PLACEHOLDERS = 5
MAX_CONDITIONAL = 5
"""The most conditional steps that a question names."""
CONDITION_CHARS = 200
"""The most characters shown of each value and each schema in a condition."""
PLACEHOLDER = "A placeholder: "
"""The beginning of every sentence about a placeholder."""
RECONCILE_FORM: dict[str, JsonValue] = {
    "type": "object",
    "required": ["happened"],
    "properties": {
        "happened": {"type": "boolean", "description": "Did the call take effect?"},
        "result": {"description": "What it returned, if it happened."},
    },
    "additionalProperties": False,
}
"""The form in which a person answers whether a call took effect."""
HOW_TO_RECONCILE = (
    "Say that it happened, with its result; that it did not happen, to run it again; or reject, to give the step up."
)
_ENDED_BADLY: Mapping[CallStatus, str] = {
    "failed": "failed",
    "rejected": "was rejected",
    "outcome_unknown": "ended without anybody knowing whether it happened",
}
POLICY_CHANGED = "the operator's policy changed after it was asked"
POLICY_DIGITS = 8
"""Digits of the policy's digest in a question. They tell a new policy from a question that was tampered with."""


def ask_what_tool_asks(request: CallRequest, arguments: dict[str, JsonValue], suspend: Suspend) -> ev.Suspended:
    """Return the event of the question that the tool itself asks."""
    context, execution, call, definition = request.context, request.execution, request.call, request.definition
    if suspend.addressee == "clock":
        waiting = {"on_timeout": "approve", "resume_payload": suspend.resume_payload}
        return _ask(request, arguments, "wait", None, suspend.message, suspend.timeout_s, **waiting)
    kind: ev.SuspensionKind = "confirmation" if suspend.form is None else "input"
    if suspend.is_delegated:
        kind = "delegated"
    covers = list_covered_calls(context, execution, call) if definition.is_blocking else ()
    required_risk = context.find_requirement(definition, arguments).risk
    covered_ids = dict.fromkeys(covered.step_id for covered, _ in covers)
    risks: list[Risk] = [risk for _, risk in covers]
    risk = highest_risk("confirm", required_risk, *risks, suspend.risk or "read")
    # A call that needs no approval runs without this question, so its tool does not decide what a time-out does.
    names = dict.fromkeys(covered.tool_name for covered, covered_risk in covers if covered_risk != "read")
    tools = [tool for name in names if (tool := context.tools.get(name)) is not None]
    wait_s, on_timeout = _limit_wait(request, suspend, risk, find_silent_approval_s(execution, tools))
    return _ask(
        request,
        arguments,
        kind,
        context.policy.for_risk(risk),
        suspend.message,
        wait_s,
        resume_payload=suspend.resume_payload,
        on_timeout=on_timeout,
        form=suspend.form,
        covers=tuple(covered for covered, _ in covers),
        asker=suspend.asker,
        releases=suspend.releases,
        undecidable=suspend.undecidable,
        found=(
            *describe_placeholders([call, *(other for name in covered_ids for other in execution.steps[name].calls)]),
            *_describe_conditions(execution, covers),
            *suspend.found,
            *describe_earlier_runs(execution, call.step_id),
        ),
    )


def _ask(
    request: CallRequest,
    arguments: dict[str, JsonValue] | None,
    kind: ev.SuspensionKind,
    required: Requirement | None = None,
    message: str | None = None,
    wait_s: float | None = None,
    **others: Any,
) -> ev.Suspended:
    """Return the event that asks a question about the call, with the needs of `required` and the fields in `others`.

    The default message describes the step. Without `wait_s`, the answer may come at any time.
    """
    context, call = request.context, request.call
    question = ev.Question(
        suspension_id=new_id(),
        kind=kind,
        message=request.state.step.description[:MESSAGE_CHARS] if message is None else message,
        step_id=call.step_id,
        call_id=call.call_id,
        tool_name=call.tool_name,
        arguments=arguments,
        definition_digest=request.definition.digest,
        risk=required and required.risk,
        needs=required and required.needs,
        quorum=1 if required is None else required.quorum,
        rule=required and required.rule,
        expires_at=None if wait_s is None else context.clock.now() + wait_s,
        **others,
    )
    return open_question(context, request.execution, question)


def ask_approval(
    request: CallRequest, arguments: dict[str, JsonValue], requirement: Requirement, findings: tuple[str, ...] = ()
) -> ev.Suspended:
    """Return the event that asks whether the call may run with exactly these arguments; `findings` say why it asks."""
    execution, call, definition = request.execution, request.call, request.definition
    return _ask(
        request,
        arguments,
        "approval",
        requirement,
        wait_s=find_answer_limit(execution, definition),
        on_timeout=limit_on_timeout(requirement.risk, definition.on_timeout),
        found=(
            *describe_placeholders([call]),
            *findings,
            *((requirement.found,) if requirement.found else ()),
            *describe_attempts(execution, call.step_id),
            *_find_circumstances(request),
        ),
    )


def ask_what_happened(request: CallRequest, findings: tuple[str, ...] = ()) -> ev.Suspended:
    """Return the event that asks whether a call of unknown outcome took effect; `findings` say why it asks again."""
    call = request.call
    required = request.context.find_requirement(request.definition, call.arguments or {}, is_full=True)
    late = (call.late_report,) if call.late_report else ()
    if call.origin:
        late = (f"Execution {call.origin.partition(':')[0]!r} made the call, and this one goes on from it.", *late)
    # The error may repeat a server's words: quotes keep them from passing for planwarden's own.
    sentences = (*findings, *late, f"About the call: {canonical_json(call.error_message)}.", HOW_TO_RECONCILE)
    return _ask(request, call.arguments, "reconcile", required, form=RECONCILE_FORM, found=sentences)


def ask_next_attempt(request: CallRequest, retry: RetryPolicy, attempts: int) -> ev.Suspended:
    """Return the durable wait before the next attempt of a call that failed `attempts` times."""
    call = request.call
    message = f"{call.tool_name} failed; attempt {attempts + 1} of {retry.attempts} comes next"
    wait_s = retry.find_delay_s(attempts)
    return _ask(request, call.arguments, "wait", message=message, wait_s=wait_s, on_timeout="approve")


def build_model_wait(
    context: ApprovalContext, execution: ExecutionState, step_id: str | None, attempt: int, until: float
) -> ev.Suspended:
    """Return the wait before a prompt is sent again after its provider failed; only step prompts have a `step_id`."""
    question = ev.Question(
        suspension_id=new_id(),
        kind="wait",
        message=f"waits for the provider before attempt {attempt}",
        step_id=step_id,
        expires_at=until,
        on_timeout="approve",
    )
    return open_question(context, execution, question)


def describe_attempts(execution: ExecutionState, step_id: str) -> tuple[str, ...]:
    """Return one sentence on the retries that an approval of the step's call covers; empty if it is not retried."""
    retry = execution.steps[step_id].step.retry
    if retry is None:
        return ()
    return (f"If the tool says that it failed, it is called again: at most {retry.attempts} calls in all.",)


def describe_placeholders(calls: Iterable[Call]) -> tuple[str, ...]:
    """Return a sentence for each placeholder in the calls as they were written, such as `<name>` or `TODO`.

    Placeholders in a model's calls can only come from the goal or the inputs, but a model may have written the goal.
    """
    sentences = _find_placeholders((call.tool_name, call.proposed) for call in calls)
    return tuple(islice(dict.fromkeys(sentences), MAX_PLACEHOLDERS))


def drop_edited_placeholders(
    findings: tuple[str, ...], calls: Iterable[tuple[str, dict[str, JsonValue]]]
) -> tuple[str, ...]:
    """Return the findings without the placeholders that the edited `calls` no longer hold."""
    remaining = set(_find_placeholders(calls))
    return tuple(sentence for sentence in findings if not sentence.startswith(PLACEHOLDER) or sentence in remaining)


def _find_placeholders(calls: Iterable[tuple[str, dict[str, JsonValue]]]) -> Iterator[str]:
    texts = ((name, path, text) for name, arguments in calls for path, text in list_texts(arguments))
    return (f"{PLACEHOLDER}{name}, {text}." for name, text in search(texts))


def _describe_conditions(execution: ExecutionState, covers: Iterable[tuple[ev.CoveredCall, Risk]]) -> Iterator[str]:
    """Yield a sentence for each covered step that runs only under conditions."""
    steps = (execution.steps[name].step for name in dict.fromkeys(covered.step_id for covered, _ in covers))
    conditional = [step for step in steps if step.when]
    for step in conditional[:MAX_CONDITIONAL]:
        conditions = (f"{_cut_json(condition.value)} fits {_cut_json(condition.matches)}" for condition in step.when)
        yield f"Step {step.step_id!r} runs only if {' and '.join(conditions)}; else its calls are not made."
    if len(conditional) > MAX_CONDITIONAL:
        yield f"{len(conditional) - MAX_CONDITIONAL} more steps run only under conditions."


def _cut_json(value: JsonValue) -> str:
    text = canonical_json(value)
    return text if len(text) <= CONDITION_CHARS else f"{text[:CONDITION_CHARS]}... ({len(text)} characters)"


def add_finding(question: ev.Question, sentence: str) -> tuple[str, ...]:
    """Return the findings of the question with the sentence at the end; only the newest `MAX_FOUND` stay."""
    return (*(other for other in question.found if other != sentence), sentence)[-MAX_FOUND:]


def _find_circumstances(request: CallRequest) -> Iterator[str]:
    """Yield sentences on what else matters to the decision, such as a retry or a grant that does not fit."""
    context, execution, call = request.context, request.execution, request.call
    if is_of_host(call.tool_name):
        yield "If you approve, the host's identical call passes once, within an hour; planwarden does not make it."
    if execution.options.note is not None:
        yield execution.options.note
    yield from describe_earlier_runs(execution, call.step_id)
    earlier = [
        other
        for other in request.state.calls
        if other.tool_name == call.tool_name and other.call_id != call.call_id and other.status in _ENDED_BADLY
    ]
    if earlier:
        ended = _ENDED_BADLY[earlier[-1].status]
        count = "" if len(earlier) == 1 else f" This is retry number {len(earlier)}."
        yield f"This is a retry: an earlier call of {call.tool_name} in this step {ended}.{count}"
    yield from context.grants.explain_no_grant(execution, call, request.definition, context.clock.now())


def bind_question(context: ApprovalContext, execution: ExecutionState, question: ev.Question) -> ev.Question:
    """Return the question with its approval digest and the policy that it is asked under.

    Findings about repeated calls come first and are made anew, because an edited call may repeat other calls or none.
    """
    others = (sentence for sentence in question.found if not sentence.startswith(REPEAT))
    question = replace(question, found=(*describe_repeats(execution, question), *others))
    return replace(
        question,
        digest=compute_approval_digest(context.policy.policy_digest, execution, question),
        policy=context.policy.policy_digest[:POLICY_DIGITS],
    )


def bind_revision(context: ApprovalContext, execution: ExecutionState, changed: ev.Question) -> ev.Question:
    """Return the changed question as its next revision."""
    return bind_question(context, execution, replace(changed, revision=changed.revision + 1))


def add_edit(question: ev.Question, edited: tuple[str, ...], editor: Authority) -> tuple[ArgumentEdit, ...]:
    """Return the question's edits and a new one. An argument is named only in its last edit, which bounds the list."""
    earlier = (
        replace(edit, arguments=tuple(name for name in edit.arguments if name not in edited)) for edit in question.edits
    )
    edit = copy_fields(ArgumentEdit, editor, revision=question.revision + 1, arguments=edited)
    return (*(other for other in earlier if other.arguments), edit)


def is_of_policy(question: ev.Question, policy: Policy) -> bool:
    """Return True when the question was asked under this policy."""
    return question.policy == policy.policy_digest[:POLICY_DIGITS]


def compute_approval_digest(policy: str, execution: ExecutionState, question: ev.Question) -> str:
    """Return the digest that covers the whole question, the ids of its principal and its execution, the plan that
    is under review, if any, and `policy`, which is the digest of the policy."""
    question_fields = msgspec.to_builtins(replace(question, digest="", policy=policy), enc_hook=plain_value)
    plan = plan_to_json(execution.plan) if question.kind == "review" and execution.plan is not None else None
    return digest([execution.principal, execution.execution_id, question_fields, plan], context="approval/v1")


def decision_json(suspension: SuspensionState) -> JsonValue:
    """Return the decision as the result of the call that asked: in the wire format of `decision`, without empty
    fields. After a wait, the result only says that the call waited, and after a withdrawal, that nobody decided."""
    decision = suspension.decision
    assert decision is not None
    if suspension.question.addressee == "clock":
        return {"waited": True}
    if suspension.status == "withdrawn":
        return {"withdrawn": True}
    fields = {"reason": decision.reason, "modifiedArgs": decision.modified_args, "content": decision.content}
    return {"approved": decision.approved, **{key: value for key, value in fields.items() if value is not None}}


def open_question(context: ApprovalContext, execution: ExecutionState, question: ev.Question) -> ev.Suspended:
    """Bind the question and return the event that asks it; a question to people gets its tool's alarms."""
    alarms: tuple[Alarm, ...] = ()
    if question.addressee == "human":
        schedule = context.policy.schedule(question.tool_name or "")
        alarms = build_alarms(schedule, context.clock.now(), question.expires_at)
    return ev.Suspended(question=bind_question(context, execution, replace(question, alarms=alarms)))


def find_answer_limit(execution: ExecutionState, definition: ToolDefinition) -> float | None:
    """Return the seconds within which a person must answer, or None for no limit. A host's call always has a limit."""
    default_s = HOST_CALL_ANSWER_S if execution.options.is_literal else None
    return default_s if definition.answer_within_s is None else definition.answer_within_s


def find_silent_approval_s(execution: ExecutionState, tools: Iterable[ToolDefinition]) -> float:
    """Return the seconds after which silence approves calls of all these tools; infinity if it never approves all."""
    limits = (find_answer_limit(execution, tool) if tool.on_timeout == "approve" else None for tool in tools)
    return max((inf if limit_s is None else limit_s for limit_s in limits), default=0.0)


def _limit_wait(request: CallRequest, suspend: Suspend, risk: Risk, silence_s: float) -> tuple[float | None, OnTimeout]:
    """Return the seconds within which the answer must come, and what silence decides after them.

    The definition's limit comes from the operator or the tool's author. A limit in the question may come from a model:
    it can only lengthen the definition's limit, or set one if there is none, and then silence rejects. Silence must not
    approve the question before it would approve the covered calls, which is after `silence_s` seconds.
    """
    definition = request.definition
    limit_s = find_answer_limit(request.execution, definition)
    if limit_s is None and definition.is_blocking:
        limit_s = definition.timeout_s
    if suspend.timeout_s is not None and (limit_s is None or suspend.timeout_s > limit_s):
        return suspend.timeout_s, "reject"
    is_rejected = suspend.on_timeout == "reject" or silence_s == inf
    on_timeout = limit_on_timeout(risk, "reject" if is_rejected else definition.on_timeout)
    return limit_s if limit_s is None or on_timeout == "reject" else max(limit_s, silence_s), on_timeout


def limit_on_timeout(risk: Risk, on_timeout: OnTimeout) -> OnTimeout:
    """Return what a time-out does at this risk: it can approve only at `confirm`."""
    return on_timeout if risk == "confirm" else "reject"
