"""What may let a call run without another question: an answer that a person gave, or what they allowed beforehand.

An approval, a row of one question about many calls, a confirmation that covers later calls, the answer that a lost call
did not happen, and what released the first attempt of a call that failed are one `Permit` each. A permit names exactly
one call; whether it counts now is said by `planwarden.agent.approval.authorize` alone. Standing grants are bound to
constraints instead of calls and are counted by the store, see `planwarden.agent.approval.grants`.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.context import ApprovalContext, CallRequest, DecidedBatch
from planwarden.agent.approval.questions import compute_approval_digest, is_of_policy
from planwarden.agent.common.canonical import canonical_json, is_same_json
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, SuspensionState

Source = Literal["approval", "attempt", "reconcile", "row", "confirmation"]

MAX_CACHED = 100


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer to one question allows: this call, with exactly these arguments."""

    source: Source
    suspension: SuspensionState
    """The question and its answer: what the answer is worth, from whom, for which risk and quorum."""
    arguments: dict[str, JsonValue]
    since: ev.Question
    """What was shown of the tool; for a retry the wait before it, which saw the tool last."""

    @property
    def suspension_id(self) -> str:
        return self.suspension.question.suspension_id


def is_intact(context: ApprovalContext, execution: ExecutionState, suspension: SuspensionState) -> bool:
    """Return True when what is stored is what was asked, and what was asked is what was decided."""
    question = suspension.question
    if suspension.status != "timed_out" and suspension.decided_digest != question.digest:
        return False
    return question.digest == compute_approval_digest(context.policy.policy_digest, execution, question)


def find_attempt_permit(execution: ExecutionState, call: Call, wait: ev.Question) -> Permit | None:
    """Return what released the attempt before `wait`; None when nobody was asked about it."""
    if not call.consumed:
        return None
    suspension = execution.suspensions[call.consumed[-1]]
    return Permit(source="attempt", suspension=suspension, arguments=call.arguments or {}, since=wait)


def list_confirmations(request: CallRequest, arguments: dict[str, JsonValue]) -> Iterator[Permit]:
    """Yield the approved confirmations that name exactly this call and are not used up."""
    call, state, digest = request.call, request.state, request.definition.digest
    call_id = "" if state.step.loop is None else call.call_id
    for suspension in request.execution.suspensions.values():
        question = suspension.question
        for covered in suspension.covered:
            is_meant = covered.call_id == call_id and names_call(covered, call, digest, arguments)
            if is_meant and not _is_used_up(state, call, question, arguments):
                yield Permit(source="confirmation", suspension=suspension, arguments=arguments, since=question)
                break


def names_call(
    covered: ev.CoveredCall, call: Call, definition_digest: str, arguments: dict[str, JsonValue] | None
) -> bool:
    """Return True when the covered call is one of this step, of the tool as it is, with these arguments."""
    return (
        (covered.step_id, covered.tool_name) == (call.step_id, call.tool_name)
        and covered.definition_digest == definition_digest
        and is_same_json(covered.arguments, arguments)
    )


def _is_used_up(state: StepState, call: Call, question: ev.Question, arguments: dict[str, JsonValue]) -> bool:
    if state.step.loop is not None:
        return question.suspension_id in call.consumed
    text = canonical_json(arguments)
    used = sum(
        question.suspension_id in other.consumed and canonical_json(other.arguments) == text for other in state.calls
    )
    limit = sum(
        covered.step_id == call.step_id and canonical_json(covered.arguments) == text for covered in question.covers
    )
    return used >= limit


def find_row(request: CallRequest) -> tuple[DecidedBatch, Permit | None] | None:
    """Return the latest answered question that has a row for the call, and what the row allows.

    It allows nothing where the person left it out, and where its answer cannot count any more.
    """
    call, execution = request.call, request.execution
    for suspension in reversed(execution.find_suspensions("batch")):
        question = suspension.question
        if question.step_id == call.step_id and suspension.decision is not None:
            batch = _read_batch(request.context, execution, suspension)
            row = batch.rows.get(call.call_id)
            if row is None:
                continue
            counts = call.call_id in batch.approved and batch.is_intact and question.suspension_id not in call.consumed
            since = replace(question, definition_digest=row.definition_digest)
            permit = Permit(source="row", suspension=suspension, arguments=row.arguments, since=since)
            return batch, permit if counts else None
    return None


def _read_batch(context: ApprovalContext, execution: ExecutionState, suspension: SuspensionState) -> DecidedBatch:
    question = suspension.question
    cached = context.batches.get(question.suspension_id)
    if cached is not None and cached.suspension is suspension:
        return cached
    rows = {covered.call_id: covered for covered in question.covers}
    approved = frozenset(covered.call_id for covered in suspension.covered)
    counts = is_of_policy(question, context.policy) and is_intact(context, execution, suspension)
    batch = DecidedBatch(suspension, rows, approved, counts)
    if len(context.batches) >= MAX_CACHED:
        context.batches.clear()
    context.batches[question.suspension_id] = batch
    return batch
