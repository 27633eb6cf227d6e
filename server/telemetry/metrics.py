"""Numbers about executions, counted by the process that commits the event, so that each is counted once."""

from opentelemetry.metrics import Meter

from planwarden.agent import events as ev
from planwarden.agent.state import Execution, SuspensionState

OUTCOMES = (
    ev.ExecutionCompleted,
    ev.ExecutionRejected,
    ev.ExecutionFailed,
    ev.ExecutionExhausted,
    ev.ExecutionCancelled,
)
WAITS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0, 604_800.0)
"""Boundaries for how long people take, from a second to a week."""


class Metrics:
    """Instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        self._executions = meter.create_counter(
            "planwarden.executions", unit="{execution}", description="Executions that ended, by outcome."
        )
        self._failures = meter.create_counter(
            "planwarden.validation.failures",
            unit="{failure}",
            description="Times that the log did not prove a step: a required tool had no successful call.",
        )
        self._rescues = meter.create_counter(
            "planwarden.enforcement.rescues",
            unit="{step}",
            description="Steps that were proved only after an enforcement prompt.",
        )
        self._waits = meter.create_histogram(
            "planwarden.question.wait",
            unit="s",
            description="Time from a question to its answer or its time-out.",
            explicit_bucket_boundaries_advisory=WAITS_S,
        )
        self._tokens = meter.create_counter(
            "planwarden.model.tokens", unit="{token}", description="Tokens that providers' models used."
        )

    def count(self, execution: Execution, event: ev.Event) -> None:
        """Count the event; `execution` is the state after its transaction."""
        if isinstance(event, OUTCOMES):
            self._executions.add(1, {"planwarden.execution.status": outcome_of(event)})
            return
        match event:
            case ev.ValidationFailed():
                self._failures.add(
                    1, {"planwarden.validation.mode": event.mode, "planwarden.validation.enforced": event.enforced}
                )
            case ev.StepCompleted(validation="passed") if execution.steps[event.step_id].retries:
                self._rescues.add(1)
            case ev.SuspensionDecided() | ev.SuspensionTimedOut():
                found = execution.suspensions[event.suspension_id]
                self._waits.record(waited_s(found), waiting_attributes(found))
            case ev.ModelReplied() | ev.ModelFailed():
                for kind, tokens in (("input", event.input_tokens), ("output", event.output_tokens)):
                    if tokens:
                        self._tokens.add(tokens, {"gen_ai.token.type": kind, "planwarden.purpose": event.purpose})
            case _:
                pass


def outcome_of(event: ev.Event) -> str:
    """The status that the event ends an execution with."""
    match event:
        case ev.ExecutionExhausted():
            return "incomplete"
        case _:
            return type(event).__name__.removeprefix("Execution").lower()


def waited_s(found: SuspensionState) -> float:
    """Seconds from the question to its answer, by the store's clock."""
    return max(0.0, (found.decided_at or found.created_at) - found.created_at)


def waiting_attributes(found: SuspensionState) -> dict[str, str]:
    """What kind of question it was and how it ended; few values each."""
    outcome = found.status if found.decision is None or found.status == "timed_out" else "rejected"
    if found.status == "decided" and found.decision is not None and found.decision.approved:
        outcome = "approved"
    return {
        "planwarden.suspension.kind": found.question.kind,
        "planwarden.suspension.addressee": found.question.addressee,
        "planwarden.suspension.outcome": outcome,
    }
