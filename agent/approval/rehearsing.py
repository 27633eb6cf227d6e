"""What a rehearsal records of a call that it does not make.

The call is judged exactly as in a real run. Then its question, or its dispatch, becomes a `CallRehearsed`.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from planwarden.agent.approval.permits import names_call
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.core.tool import ToolDefinition


def rehearse_event(execution: ExecutionState, call: Call, event: ev.Event) -> Iterator[ev.Event]:
    """Yield what a rehearsal records instead of the event: a record for each call of a question, else the event."""
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
    """Return the call whose question nobody is asked."""
    rehearsed = ev.CallRehearsed(
        call_id=call.call_id,
        arguments=question.arguments,
        definition_digest=question.definition_digest,
        risk=question.risk,
        needs=question.needs,
        quorum=question.quorum,
        asks=question.kind,
        covers=question.covers,
        found=question.found,
        rule=question.rule,
    )
    confirmed = _find_confirmation(execution, call, question)
    if confirmed is None:
        return rehearsed
    return replace(rehearsed, needs=None, quorum=1, asks=None, covered_by=confirmed.call_id)


def rehearse_dispatch(call: Call, definition: ToolDefinition, intent: ev.ToolCallIntended | None) -> ev.CallRehearsed:
    """Return the call that would have run without a question."""
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
                if names_call(covered, call, question.definition_digest, question.arguments):
                    return other
    return None
