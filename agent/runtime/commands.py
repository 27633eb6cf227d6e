"""Commands to an execution. Each one is a function that returns `build`, which in turn returns the events to append.

A run calls `build` with the state and time inside its transaction, and again with a newer state if another writer was
faster. If `build` returns no events, nothing changes; if it raises `PlanwardenError`, it refuses the command.
"""

import logging
from collections.abc import Mapping

from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.approval.revisions import add_late_report
from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.inputs import complete_inputs
from planwarden.agent.ports.store import Guard, StartRequest
from planwarden.agent.runtime.lookups import LookedUp
from planwarden.agent.runtime.transaction_builder import BuildEvents, EventBatch, JobOutcome

logger = logging.getLogger(__name__)

REPORT_CHARS = 200
"""The most characters of a late result or failure that a question quotes; the log has the whole result."""


def start(
    options: ev.Options,
    client_id: str | None,
    request: StartRequest | None,
    inputs: Mapping[str, JsonValue] | None = None,
) -> BuildEvents:
    """Start a planned execution, or continue an incomplete one. `inputs`, if any, replace those of the planned one."""

    def build(execution: ExecutionState, now: float, _: LookedUp) -> EventBatch:
        if execution.status not in ("planned", "incomplete"):
            raise InvalidArguments(
                f"execution {execution.execution_id!r} is {execution.status}; only a planned or incomplete one starts"
            )
        filled = None
        if inputs:
            if execution.status != "planned" or execution.plan is None:
                raise InvalidArguments("the plan has begun and has its inputs; leave them out")
            filled = complete_inputs(execution.plan.inputs, inputs)
        started = ev.ExecutionStarted(options=options, client_id=client_id, inputs=filled)
        return EventBatch((started,), start=request)

    return build


def cancel(reason: str | None, *, if_undecided: bool = False) -> BuildEvents:
    """Ask for the cancellation of an execution that is not over, unless somebody has already asked for it.

    With `if_undecided`, do so only if the execution has asked questions, all are open, and none is about a lost call.
    """

    def build(execution: ExecutionState, now: float, _: LookedUp) -> EventBatch:
        is_undecided = bool(execution.open_suspensions) and all(
            suspension.is_open and suspension.question.kind != "reconcile"
            for suspension in execution.suspensions.values()
        )
        if execution.is_finished or execution.cancel_requested or (if_undecided and not is_undecided):
            return EventBatch()
        return EventBatch((ev.CancelRequested(reason=reason),))

    return build


def withdraw(suspension_id: str, reason: str) -> BuildEvents:
    """Close an open question that another server or agent (the `asker`) asked through planwarden."""

    def build(execution: ExecutionState, now: float, _: LookedUp) -> EventBatch:
        suspension = execution.suspensions.get(suspension_id)
        if suspension is None or not suspension.is_open or not suspension.question.asker:
            return EventBatch()
        guard = Guard(suspension_id=suspension_id, digest=suspension.question.digest, deadline="any")
        return EventBatch((ev.SuspensionWithdrawn(suspension_id=suspension_id, reason=reason),), guard)

    return build


def report_late(context: ApprovalContext, outcome: JobOutcome) -> BuildEvents:
    """Record what became of a call that another process took over, and revise the open question about the call."""

    def build(execution: ExecutionState, now: float, _: LookedUp) -> EventBatch:
        report = _describe_late(outcome)
        if report is None or execution.call(report.call_id).effect != "effect":
            return EventBatch()
        if execution.is_finished:
            logger.error("execution %s ended before this was known: %s", execution.execution_id, report.message)
            return EventBatch()
        for suspension in execution.open_suspensions:
            question = suspension.question
            if question.kind == "reconcile" and question.call_id == report.call_id:
                revised = add_late_report(context, execution, question, report.message)
                guard = Guard(suspension_id=question.suspension_id, digest=question.digest, deadline="any")
                return EventBatch((report, revised), guard, artifacts=outcome.artifacts)
        return EventBatch((report,), artifacts=outcome.artifacts)

    return build


def _describe_late(outcome: JobOutcome) -> ev.CallReportedLate | None:
    """Return the report of a late outcome; None if the outcome does not tell whether the call returned or failed."""
    match outcome.events:
        case (ev.ToolReturned(call_id=call_id, value=value, artifact=artifact),):
            text = canonical_json(value)
            excerpt = f": {text}" if len(text) <= REPORT_CHARS else f" {len(text)} characters, which the log holds"
            message = f"The process that made the call reported later that it returned{excerpt}."
            return ev.CallReportedLate(call_id=call_id, message=message, value=value, artifact=artifact)
        case (
            ev.ToolFailed(call_id=call_id, message=reason) | ev.CallAttemptFailed(call_id=call_id, message=reason),
            *_,
        ):
            # A server wrote the reason. Quote it, so that nobody takes it for planwarden's own words.
            excerpt = canonical_json(reason[:REPORT_CHARS])
            message = f"The process that made the call reported later that it failed: {excerpt}."
            return ev.CallReportedLate(call_id=call_id, message=message)
        case _:
            return None
