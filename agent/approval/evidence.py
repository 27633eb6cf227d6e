"""What the log of one execution proves about its questions, its decisions and the calls that they released.

Digests of questions to people are not trusted: they are computed again from the rest of the log. A decision may
release only the call that its question was about, or a call that the question listed. The rows of the audit are derived
again from the same events, so that they can be compared with the stored rows.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from planwarden.agent.approval.questions import compute_approval_digest
from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import AuditEntry, build_audit_entries
from planwarden.agent.core.execution.fold import apply
from planwarden.agent.core.execution.state import Call, ExecutionState, SuspensionState


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one log proves, and where it contradicts itself."""

    execution: ExecutionState
    """The state after the last event."""
    entries: tuple[AuditEntry, ...]
    """The rows that the audit must have for this log, without the policy under which each row was written."""
    faults: tuple[str, ...]
    """Where the log contradicts itself."""


def gather_evidence(
    execution: ExecutionState, recorded: Iterable[ev.Recorded], digests: Mapping[str, Collection[str]]
) -> Evidence:
    """Fold a log into a new `execution`, and return what it proves. `digests` maps first digits to policies' digests.

    Raises:
        IllegalTransition: an event cannot follow the events before it.
    """
    entries: list[AuditEntry] = []
    faults: list[str] = []
    for item in recorded:
        faults.extend(_find_faults(execution, item.event, digests))
        execution = apply(execution, item.event, item.at)
        entries.extend(build_audit_entries((item,), execution, ""))
    return Evidence(execution=execution, entries=tuple(entries), faults=tuple(faults))


def _find_faults(execution: ExecutionState, event: ev.Event, digests: Mapping[str, Collection[str]]) -> Iterator[str]:
    match event:
        case ev.Suspended(question=question) | ev.SuspensionRevised(question=question):
            policy_digests = digests.get(question.policy, ())
            if question.addressee == "human" and not any(
                compute_approval_digest(policy, execution, question) == question.digest for policy in policy_digests
            ):
                yield f"revision {question.revision} of suspension {question.suspension_id!r} does not fit its digest"
        case ev.SuspensionDecided() | ev.SuspensionEndorsed():
            suspension = execution.suspensions.get(event.suspension_id)
            if suspension is not None and suspension.question.digest != event.digest:
                yield f"the decision on suspension {event.suspension_id!r} does not name the revision that was open"
        case ev.ToolCallIntended():
            yield from _find_faults_of_intent(execution, event)
        case _:
            pass


def _find_faults_of_intent(execution: ExecutionState, event: ev.ToolCallIntended) -> Iterator[str]:
    call = execution.call(event.call_id)
    if event.suspension_id is None:
        if call.status in ("decided", "outcome_unknown"):
            yield f"call {call.call_id!r} ran without the decision that it waited for"
        return
    suspension = execution.suspensions.get(event.suspension_id)
    if suspension is None or not suspension.releases(call):
        yield f"call {call.call_id!r} ran on suspension {event.suspension_id!r}, which did not release it"
    elif not _was_named(suspension, call, event):
        yield f"call {call.call_id!r} ran with arguments other than those of suspension {event.suspension_id!r}"


def _was_named(suspension: SuspensionState, call: Call, event: ev.ToolCallIntended) -> bool:
    """Return whether the question was about this call with these arguments, or listed it."""
    question = suspension.question
    if event.arguments is None:
        return question.call_id == call.call_id
    if question.call_id == call.call_id:
        return is_same_json(question.arguments, event.arguments)
    return any(
        covered.is_about(call.step_id, call.tool_name, call.call_id)
        and is_same_json(covered.arguments, event.arguments)
        for covered in suspension.covered
    )
