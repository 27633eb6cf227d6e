"""Spans of questions, made when a revision of one is over, by the process that records why.

A question may wait for a week and be answered by another process, so nothing is kept open for it: its span is made from
the log, with the time at which the revision was asked, below the execution's first span. What is still open has no span
yet; `planwarden.server.telemetry.questions` counts it.
"""

from collections import OrderedDict

from opentelemetry import trace
from opentelemetry.trace import Link, Span, Tracer

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.server.telemetry.attributes import Attributes, ns, stored_context
from planwarden.server.telemetry.metrics import OUTCOMES, closed_by, waiting_attributes

KEPT = 2_048
"""Answers whose execution has not gone on yet; the oldest are forgotten beyond that."""


class SuspensionSpans:
    """Makes the spans of questions, and remembers what an execution that waited was answered by."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._answers: OrderedDict[str, tuple[float, tuple[Link, ...]]] = OrderedDict()

    def record(self, execution: ExecutionState, recorded: ev.Recorded) -> Span | None:
        """The span of the question that the event answers, if it does; closes the others that it ends."""
        event, at = recorded.event, recorded.at
        match event:
            case ev.SuspensionRevised(question=question):
                found = execution.suspensions[question.suspension_id]
                self._span(execution, found, question.revision - 1, "revised", at)
            case ev.SuspensionDecided() | ev.SuspensionTimedOut() | ev.SuspensionWithdrawn():
                found = execution.suspensions[event.suspension_id]
                outcome = waiting_attributes(found)["planwarden.suspension.outcome"]
                return self._span(execution, found, found.question.revision, outcome, at)
            case _ if isinstance(event, OUTCOMES):
                for found in closed_by(execution, at):
                    self._span(execution, found, found.question.revision, "withdrawn", at)
            case _:
                pass
        return None

    def answered(self, execution_id: str, span: Span, at: float) -> None:
        """The execution's next stretch begins at `at` and links to the question, and to whoever answered it."""
        links = [Link(span.get_span_context()), Link(trace.get_current_span().get_span_context())]
        self._answers[execution_id] = at, tuple(link for link in links if link.context.is_valid)
        if len(self._answers) > KEPT:
            self._answers.popitem(last=False)

    def take(self, execution_id: str, at: float) -> tuple[float, tuple[Link, ...]]:
        """When the execution's next stretch begins, `at` unless it was answered here, and what it links to."""
        return self._answers.pop(execution_id, (at, ()))

    def _span(self, execution: ExecutionState, found: SuspensionState, revision: int, outcome: str, at: float) -> Span:
        question = found.question
        about: Attributes = {
            **waiting_attributes(found),
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
        span = self._tracer.start_span(name, stored_context(execution), attributes=about, start_time=ns(began))
        span.end(ns(at))
        return span
