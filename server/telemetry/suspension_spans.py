"""Spans of suspensions: one for each revision, made when the revision ends, by the process that commits its end.

A question may wait for a week and be answered in another process, so no span stays open for it. The span is made from
the log, with the time at which the revision was asked, below the execution's first span. Open questions have no span
yet; `planwarden.server.telemetry.open_questions` counts them.
"""

from collections import OrderedDict

from opentelemetry import trace
from opentelemetry.trace import Link, Span, Tracer

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.server.telemetry.attributes import Attributes, read_stored_context, to_nanoseconds
from planwarden.server.telemetry.metrics import OUTCOMES, build_wait_attributes, find_withdrawn

MAX_ANSWERS = 2_048
"""Answers whose execution has not continued yet; beyond this number the oldest are dropped."""


class SuspensionSpans:
    """Makes the spans of suspensions, and remembers which answer an execution continues with."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._answers: OrderedDict[str, tuple[float, tuple[Link, ...]]] = OrderedDict()

    def record(self, execution: ExecutionState, recorded: ev.Recorded) -> Span | None:
        """Makes the spans of the suspensions that the event ends; returns the span of the one that it decides."""
        event, at = recorded.event, recorded.at
        match event:
            case ev.SuspensionRevised(question=question):
                found = execution.suspensions[question.suspension_id]
                self._make_span(execution, found, question.revision - 1, "revised", at)
            case ev.SuspensionDecided() | ev.SuspensionTimedOut() | ev.SuspensionWithdrawn():
                found = execution.suspensions[event.suspension_id]
                outcome = build_wait_attributes(found)["planwarden.suspension.outcome"]
                return self._make_span(execution, found, found.question.revision, outcome, at)
            case _ if isinstance(event, OUTCOMES):
                for found in find_withdrawn(execution, at):
                    self._make_span(execution, found, found.question.revision, "withdrawn", at)
            case _:
                pass
        return None

    def remember_answer(self, execution_id: str, span: Span, at: float) -> None:
        """Remembers that the execution continues at `at`, with links to the question and to the answering request."""
        links = [Link(span.get_span_context()), Link(trace.get_current_span().get_span_context())]
        self._answers[execution_id] = at, tuple(link for link in links if link.context.is_valid)
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    def take_start(self, execution_id: str, at: float) -> tuple[float, tuple[Link, ...]]:
        """Returns when the execution continued, by default `at`, and the links of its next span."""
        return self._answers.pop(execution_id, (at, ()))

    def _make_span(
        self, execution: ExecutionState, found: SuspensionState, revision: int, outcome: str, at: float
    ) -> Span:
        question = found.question
        about: Attributes = {
            **build_wait_attributes(found),
            "planwarden.suspension.id": question.suspension_id,
            "planwarden.suspension.revision": revision,
            "planwarden.suspension.outcome": outcome,
        }
        is_answer = outcome not in ("revised", "withdrawn")
        for name, value in (
            ("planwarden.execution.id", execution.execution_id),
            ("gen_ai.conversation.id", execution.thread_id),
            ("gen_ai.tool.name", question.tool_name),
            ("planwarden.step.id", question.step_id),
            ("planwarden.suspension.risk", question.risk),
            ("planwarden.suspension.needs", question.needs),
            ("planwarden.suspension.assurance", found.assurance if is_answer else None),
            ("planwarden.suspension.channel", found.channel if is_answer else None),
        ):
            if value is not None:
                about[name] = value
        began = found.asked_at[min(revision, len(found.asked_at)) - 1]
        name = f"planwarden.suspension {question.kind}"
        span = self._tracer.start_span(
            name, read_stored_context(execution), attributes=about, start_time=to_nanoseconds(began)
        )
        span.end(to_nanoseconds(at))
        return span
