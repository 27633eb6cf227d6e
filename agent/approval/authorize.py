"""The one judge of whether a call may run: `authorize` says allow, ask a person, or deny.

A `Permit` is an answer that may let a call run: an approval, one row of an answer about many calls, a confirmation
that covers later calls, a statement that a call of unknown outcome did not happen, or the answer that let an earlier
attempt run. A permit names exactly one call; standing grants (`planwarden.agent.approval.grants`) name constraints.

The dispatcher asks `authorize` before every call; forecasts use it too, as does the code that asks about loops.
The guard and the replay of rules have no permits, so they ask the policy directly. `authorize` decides in this order:

1. A call that a rule of the operator denies does not run, even if a person allowed it.
2. An answer that names exactly this call lets it run if the answer still counts: the tool is the one that was shown,
   and the answer still meets what the policy requires. If a decision about the call itself no longer counts, the
   person is asked again and told why.
3. A person is asked if the tool changed since the plan was accepted, or if the execution's options demand it.
4. A call runs if it needs no approval, or if its risk is `confirm` and its tool asks by itself; otherwise a
   standing grant may let it run.
5. For every other call, a person is asked.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.answers import can_decide
from planwarden.agent.approval.context import (
    ApprovalContext,
    CallRequest,
    DecidedRows,
    describe_change,
    has_changed_since_plan,
)
from planwarden.agent.approval.questions import compute_approval_digest, is_of_policy
from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, SuspensionState
from planwarden.agent.core.tool import highest_risk
from planwarden.agent.ports.policy import Requirement

Source = Literal["approval", "attempt", "reconcile", "row", "confirmation"]

MAX_CACHED = 100
NEEDS_MORE = "The call now needs more than the approval that it got: a rule of the operator now matches it differently."
ASKED_AGAIN: tuple[Source, ...] = ("approval", "attempt", "reconcile")
"""Sources of permits about a single call: if such a permit no longer counts, a person is asked again and told why. For
a row, this happens only if its tool changed."""


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer to one question allows: one call, with exactly these arguments."""

    source: Source
    suspension: SuspensionState
    """The question, including its risk and quorum, and its answer, including who gave it and with what assurance."""
    arguments: dict[str, JsonValue]
    basis: ev.Question
    """The last question that recorded the tool's definition; for a retry, the `wait` question before the attempt."""

    @property
    def suspension_id(self) -> str:
        return self.suspension.question.suspension_id


def is_intact(context: ApprovalContext, execution: ExecutionState, suspension: SuspensionState) -> bool:
    """Return True when the question still fits its digest, and the decision names that digest or is a timeout."""
    question = suspension.question
    if suspension.status != "timed_out" and suspension.decided_digest != question.digest:
        return False
    return question.digest == compute_approval_digest(context.policy.policy_digest, execution, question)


def find_attempt_permit(execution: ExecutionState, call: Call, wait: ev.Question) -> Permit | None:
    """Return the permit that let the attempt before `wait` run; None when nobody was asked about that attempt."""
    if not call.consumed:
        return None
    suspension = execution.suspensions[call.consumed[-1]]
    return Permit(source="attempt", suspension=suspension, arguments=call.arguments or {}, basis=wait)


def list_confirmations(request: CallRequest, arguments: dict[str, JsonValue]) -> Iterator[Permit]:
    """Yield a permit for each approved confirmation that names exactly this call, is not used up, and is intact."""
    call, state, digest = request.call, request.state, request.definition.digest
    call_id = "" if state.step.loop is None else call.call_id
    for suspension in request.execution.suspensions.values():
        question = suspension.question
        for covered in suspension.covered:
            is_meant = covered.call_id == call_id and fits_call(covered, call, digest, arguments)
            is_free = is_meant and not _is_used_up(state, call, question, arguments)
            if is_free and _load_decided_rows(request.context, request.execution, suspension).is_intact:
                yield Permit(source="confirmation", suspension=suspension, arguments=covered.arguments, basis=question)
                break


def fits_call(
    covered: ev.CoveredCall, call: Call, definition_digest: str, arguments: dict[str, JsonValue] | None
) -> bool:
    """Return True when the covered call has the same step, the same arguments, and the tool as it is defined now."""
    return (
        (covered.step_id, covered.tool_name) == (call.step_id, call.tool_name)
        and covered.definition_digest == definition_digest
        and is_same_json(covered.arguments, arguments)
    )


def _is_used_up(state: StepState, call: Call, question: ev.Question, arguments: dict[str, JsonValue]) -> bool:
    if state.step.loop is not None:
        return question.suspension_id in call.consumed
    used = sum(
        question.suspension_id in other.consumed and is_same_json(other.arguments, arguments) for other in state.calls
    )
    limit = sum(
        covered.step_id == call.step_id and is_same_json(covered.arguments, arguments) for covered in question.covers
    )
    return used >= limit


def _load_decided_rows(context: ApprovalContext, execution: ExecutionState, suspension: SuspensionState) -> DecidedRows:
    question = suspension.question
    cached = context.decided_rows.get(question.suspension_id)
    if cached is not None and cached.suspension is suspension and cached.plan is execution.plan:
        return cached
    rows = {covered.call_id: covered for covered in question.covers}
    approved = frozenset(covered.call_id for covered in suspension.covered)
    decided = DecidedRows(suspension, execution.plan, rows, approved, is_intact(context, execution, suspension))
    if len(context.decided_rows) >= MAX_CACHED:
        context.decided_rows.clear()
    context.decided_rows[question.suspension_id] = decided
    return decided


class Allow(msgspec.Struct, frozen=True):
    """The call may run: because of the permit, the grant or the rule, or because nobody has to be asked about it."""

    requirement: Requirement
    permit: Permit | None = None
    grant_id: str | None = None

    @property
    def shares(self) -> tuple[ev.BudgetShare, ...]:
        """What the call takes from budgets of the rule that lets it run."""
        return self.requirement.shares if self.permit is None and self.grant_id is None else ()


class Ask(msgspec.Struct, frozen=True):
    """A person must be asked; the requirement says which assurance the answer needs, and how many people."""

    requirement: Requirement
    reason: str | None = None
    """A sentence on why a person is asked now, if something that counted before no longer counts."""
    permit: Permit | None = None
    """The permit that no longer counts, if there is one."""


class Deny(msgspec.Struct, frozen=True):
    """The operator's rule refuses the call; nobody is asked."""

    requirement: Requirement


class Reject(msgspec.Struct, frozen=True):
    """A person left the call out of an answer about many calls."""

    suspension_id: str


def judge_row(request: CallRequest) -> Allow | Ask | Deny | Reject | None:
    """Judge a call of a loop by the latest answered question that has a row for it, and return the verdict.

    None if there is no such question or its answer no longer counts; then the call is judged like any other.
    """
    call, execution = request.call, request.execution
    for suspension in reversed(execution.find_suspensions("batch")):
        question = suspension.question
        if question.step_id != call.step_id or suspension.decision is None:
            continue
        decided = _load_decided_rows(request.context, execution, suspension)
        row = decided.rows.get(call.call_id)
        if row is None:
            continue
        if call.call_id not in decided.approved:
            return Reject(question.suspension_id)
        if question.suspension_id in call.consumed or not decided.is_intact:
            return None
        basis = replace(question, definition_digest=row.definition_digest)
        permit = Permit(source="row", suspension=suspension, arguments=row.arguments, basis=basis)
        verdict = authorize(request, permit.arguments, (permit,))
        return verdict if isinstance(verdict, Deny) or verdict.permit is permit else None
    return None


def authorize(
    request: CallRequest,
    arguments: dict[str, JsonValue],
    permits: Iterable[Permit] = (),
    *,
    uses: Mapping[str, int] | None = None,
) -> Allow | Ask | Deny:
    """Return whether the call may run with exactly these arguments.

    `uses` counts, for each grant, the uses that a forecast has already assigned to other calls.

    Raises:
        PathsNeeded: as in `Policy.requirement`.
    """
    context, execution, definition = request.context, request.execution, request.definition
    requirement = context.find_requirement(definition, arguments)
    if requirement.denied is not None:
        return Deny(requirement)
    for permit in permits:
        if definition.digest != permit.basis.definition_digest and permit.source != "confirmation":
            reason = describe_change(request, permit.basis)
        elif permit.source in ASKED_AGAIN and not is_of_policy(permit.suspension.question, context.policy):
            answer = "answered" if permit.source == "reconcile" else "approved"
            reason = f"The operator's policy changed after it was {answer}."
        elif suffices(context, execution, permit, requirement):
            return Allow(requirement, permit)
        elif permit.source in ASKED_AGAIN:
            reason = NEEDS_MORE
        else:
            continue
        return Ask(context.find_requirement(definition, arguments, is_full=True), reason, permit)
    has_changed = has_changed_since_plan(execution, definition)
    reason = describe_change(request, None) if has_changed else execution.options.asks_because
    if reason is not None:
        return Ask(context.find_requirement(definition, arguments, is_full=True), reason)
    if requirement.needs is None or (definition.is_blocking and requirement.risk == "confirm"):
        return Allow(requirement)
    now = context.clock.now()
    grant_id = context.grants.find_covering(execution, request.call, definition, arguments, requirement, now, uses=uses)
    return Ask(requirement) if grant_id is None else Allow(requirement, grant_id=grant_id)


def suffices(context: ApprovalContext, execution: ExecutionState, permit: Permit, requirement: Requirement) -> bool:
    """Return whether the permit's answer is enough for what the call needs now: its risk, assurance and quorum."""
    suspension, question = permit.suspension, permit.suspension.question
    # `can_decide` judges only the last approver by the present policy, so the others must have answered under it too.
    if question.quorum < requirement.quorum or (requirement.quorum > 1 and not is_of_policy(question, context.policy)):
        return False
    if (
        permit.source in ASKED_AGAIN
        and highest_risk(question.risk or "read", requirement.effective_risk) != question.risk
    ):
        return False
    if suspension.status == "timed_out":
        # A timeout approves only at risk `confirm`; at risk `read`, the call would run even without a permit.
        return requirement.risk == "confirm" or (requirement.risk == "read" and permit.source in ASKED_AGAIN)
    assurance, decider = suspension.assurance, suspension.principal
    if assurance is None or decider is None:
        return False
    return can_decide(context.policy, execution, requirement.needs, decider, assurance) is not None
