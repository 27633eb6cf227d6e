"""Spans made from committed events, named by OpenTelemetry's GenAI conventions where there is a name.

    invoke_workflow planwarden       from its beginning, or an answer, until it waits or ends
      plan planwarden                until there is a plan
        chat MODEL
      planwarden.step ID             until the step waits or ends
        chat MODEL
        execute_tool NAME            current while the tool runs, so that what it calls comes below it
      planwarden.suspension KIND     from the question to its end, see `planwarden.server.telemetry.waits`

Spans live in the process that does the work and are sent when they end; what a killed process had open is lost. The
context of the first span is stored with the execution: whoever goes on with it, in this process or another, months
later, does so in the same trace, below that span, and links to the question that was answered. A call that was begun by
a killed process gets its span from the log once its outcome is called unknown, or a new one when it is made again.

Sources: see `planwarden.server.telemetry.attributes`.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer

from planwarden.agent.core import events as ev
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.state import ExecutionState
from planwarden.server.telemetry.attributes import (
    MAX_TRACESTATE,
    W3C,
    Attributes,
    end,
    error_of,
    ns,
    stored_context,
    unharmed,
)
from planwarden.server.telemetry.metrics import OUTCOMES, asked_key, outcome_of, prompt_key
from planwarden.server.telemetry.waits import SuspensionSpans

OPEN = 2_048
"""Executions with open spans; the oldest are given up beyond that, as after a takeover by another process."""
STARTING = 256
"""Executions that are being created at the same time; refused ones, which leave no span, are among them."""
MAX_ARGUMENTS = 4_096


@dataclass(slots=True)
class _Stretch:
    """The spans that are open while an execution runs in this process."""

    span: Span
    plan: Span | None = None
    steps: dict[str, Span] = field(default_factory=dict[str, Span])
    jobs: dict[str, Span] = field(default_factory=dict[str, Span])
    """By call id, and prompts by their key."""


class ExecutionSpans:
    """Opens and ends spans as events are committed."""

    def __init__(self, tracer: Tracer, model: Attributes, *, record_arguments: bool) -> None:
        """`model` as from `model_attributes`."""
        self._tracer = tracer
        self._model = model
        self._records_arguments = record_arguments
        self._open: OrderedDict[str, _Stretch] = OrderedDict()
        self._starting: OrderedDict[str, Span] = OrderedDict()
        """First spans of executions that are not durable yet; those of refused ones are forgotten."""
        self._waits = SuspensionSpans(tracer)

    def starting(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        """Open an execution's first span below whatever is current; gives what others need to go on below it."""
        span = self._tracer.start_span(_WORKFLOW, attributes=_about(execution_id, thread_id))
        self._starting[execution_id] = span
        if len(self._starting) > STARTING:
            self._starting.popitem(last=False)
        carrier: dict[str, str] = {}
        W3C.inject(carrier, trace.set_span_in_context(span))
        parent, state = carrier.get("traceparent"), carrier.get("tracestate")
        return None if parent is None else (parent, state if state and len(state) <= MAX_TRACESTATE else None)

    def record(self, execution: ExecutionState, recorded: ev.Recorded, *, owned: bool) -> None:
        """Open and end what the event opens and ends; `execution` is the state after its transaction."""
        event, at = recorded.event, recorded.at
        answer = self._waits.record(execution, recorded)
        if not owned:
            return
        if answer is not None and execution.execution_id not in self._open:
            self._waits.answered(execution.execution_id, answer, at)
        match event:
            case ev.ExecutionCreated():
                self._created(execution, at)
            case ev.PlanAccepted():
                self._planned(execution)
            case ev.ExecutionSuspended() | ev.ExecutionPlanned():
                self._over(execution, execution.status, None, at)
            case _ if isinstance(event, OUTCOMES):
                self._finished(execution, event, at)
            case _:
                self._worked(execution, event, at)

    def _worked(self, execution: ExecutionState, event: ev.Event, at: float) -> None:
        match event:
            case ev.ToolCallIntended():
                self._call(execution, event.call_id, at)
            case ev.ToolReturned() | ev.ToolFailed() | ev.ToolOutcomeUnknown():
                if isinstance(event, ev.ToolOutcomeUnknown):
                    self._recover(execution, event.call_id, at)
                self._job_ended(execution, event.call_id, error_of(event), at)
            case ev.ModelReplied() | ev.ModelFailed():
                self._replied(execution, event, at)
            case ev.Suspended():
                self._asked(execution, event.question, at)
            case ev.StepStarted() | ev.StepCompleted() | ev.StepFailed() | ev.StepRejected():
                self._step_moved(execution, event, at)
            case _:
                pass

    def _created(self, execution: ExecutionState, at: float) -> None:
        first = self._starting.pop(execution.execution_id, None)
        if first is not None:
            self._keep(execution.execution_id, _Stretch(first))
        stretch = self._stretch(execution, at)
        if execution.plan is None:
            stretch.plan = self._child(stretch.span, "plan planwarden", _PLAN, at)

    def job(self, execution: ExecutionState, key: str, prompt: Prompt | None, at: float) -> Span:
        """The span of a call or prompt that is being performed, opened now unless its event opened it."""
        stretch = self._stretch(execution, at)
        if prompt is None:
            is_begun = key in stretch.jobs
            span = self._call(execution, key, at)
            if not is_begun:
                span.set_attribute("planwarden.tool.repeated", True)
            return span
        found = stretch.jobs.get(key)
        if found is None:
            parent = stretch.span
            if prompt.step_id is not None:
                parent = self._step(execution, prompt.step_id, at)
            elif prompt.purpose == "plan":
                stretch.plan = stretch.plan or self._child(stretch.span, "plan planwarden", _PLAN, at)
                parent = stretch.plan
            about: Attributes = {**self._model, "planwarden.purpose": prompt.purpose}
            name = f"chat {self._model.get('gen_ai.request.model', '')}".strip()
            found = self._child(parent, name, about, at, SpanKind.CLIENT)
            stretch.jobs[key] = found
        return found

    def close(self) -> None:
        """End what is still open; what goes on in another process begins anew there."""
        while self._open:
            self._give_up(self._open.popitem()[1])

    def _keep(self, execution_id: str, stretch: _Stretch) -> None:
        self._open[execution_id] = stretch
        if len(self._open) > OPEN:
            self._give_up(self._open.popitem(last=False)[1])

    def _give_up(self, stretch: _Stretch) -> None:
        for span in (*stretch.jobs.values(), *stretch.steps.values(), stretch.plan, stretch.span):
            if span is not None:
                with unharmed("an open span could not be ended"):
                    span.set_attribute("planwarden.interrupted", True)
                    span.end()

    def _stretch(self, execution: ExecutionState, at: float) -> _Stretch:
        found = self._open.get(execution.execution_id)
        if found is None:
            at, links = self._waits.take(execution.execution_id, at)
            about = {**_about(execution.execution_id, execution.thread_id), "planwarden.execution.resumed": True}
            span = self._tracer.start_span(
                _WORKFLOW, stored_context(execution), attributes=about, links=links, start_time=ns(at)
            )
            found = _Stretch(span)
            self._keep(execution.execution_id, found)
        return found

    def _child(
        self, parent: Span, name: str, attributes: Attributes, at: float, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        above = trace.set_span_in_context(parent, Context())
        return self._tracer.start_span(name, above, kind, attributes, start_time=ns(at))

    def _step(self, execution: ExecutionState, step_id: str, at: float) -> Span:
        stretch = self._stretch(execution, at)
        if step_id not in stretch.steps:
            about: Attributes = {"planwarden.step.id": step_id}
            stretch.steps[step_id] = self._child(stretch.span, f"planwarden.step {step_id}", about, at)
        return stretch.steps[step_id]

    def _call(self, execution: ExecutionState, call_id: str, at: float) -> Span:
        stretch = self._stretch(execution, at)
        found = stretch.jobs.get(call_id)
        if found is None:
            call = execution.call(call_id)
            about: Attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.tool_name,
                "gen_ai.tool.call.id": call_id,
                "gen_ai.tool.type": "function",
                "planwarden.tool.effect": call.effect,
            }
            if self._records_arguments:
                about["gen_ai.tool.call.arguments"] = json.dumps(call.arguments)[:MAX_ARGUMENTS]
            step = self._step(execution, call.step_id, at)
            found = self._child(step, f"execute_tool {call.tool_name}", about, at)
            stretch.jobs[call_id] = found
        return found

    def _recover(self, execution: ExecutionState, call_id: str, at: float) -> None:
        """A call that another process began and did not survive: its span is as long as the log knows."""
        call = execution.call(call_id)
        if call_id not in self._stretch(execution, at).jobs and call.intended_at is not None:
            # Its parents begin with this process, although it began before.
            self._step(execution, call.step_id, at)
            self._call(execution, call_id, call.intended_at).set_attribute("planwarden.tool.recovered", True)

    def _job_ended(self, execution: ExecutionState, key: str, error: str | None, at: float) -> None:
        stretch = self._open.get(execution.execution_id)
        found = stretch.jobs.pop(key, None) if stretch else None
        if found is not None:
            end(found, error, at)

    def _replied(self, execution: ExecutionState, event: ev.ModelReplied | ev.ModelFailed, at: float) -> None:
        stretch = self._open.get(execution.execution_id)
        key = prompt_key(event.purpose, event.step_id)
        found = stretch.jobs.get(key) if stretch else None
        if found is not None:
            found.set_attribute("gen_ai.usage.input_tokens", event.input_tokens)
            found.set_attribute("gen_ai.usage.output_tokens", event.output_tokens)
            self._job_ended(execution, key, event.code if isinstance(event, ev.ModelFailed) else None, at)

    def _planned(self, execution: ExecutionState) -> None:
        stretch = self._open.get(execution.execution_id)
        if stretch is not None and stretch.plan is not None and execution.plan is not None:
            stretch.plan.set_attribute("planwarden.plan.steps", len(execution.plan.steps))
            stretch.plan.end(ns(execution.updated_at))
            stretch.plan = None

    def _asked(self, execution: ExecutionState, question: ev.Question, at: float) -> None:
        """The call or prompt that asked is over; what it asked gets a span of its own once it is answered."""
        if question.call_id is not None:
            self._job_ended(execution, question.call_id, None, at)
        stretch = self._open.get(execution.execution_id)
        if stretch is None:
            return
        if question.prompt is not None:
            # The caller is the model: nothing was asked of a provider, so there is no call to tell of.
            stretch.jobs.pop(asked_key(question), None)
        step = stretch.steps.pop(question.step_id or "", None)
        if step is not None:
            step.set_attribute("planwarden.step.status", "suspended")
            step.end(ns(at))

    def _step_moved(
        self,
        execution: ExecutionState,
        event: ev.StepStarted | ev.StepCompleted | ev.StepFailed | ev.StepRejected,
        at: float,
    ) -> None:
        span = self._step(execution, event.step_id, at)
        match event:
            case ev.StepStarted():
                return
            case ev.StepCompleted():
                span.set_attribute("planwarden.step.status", "completed")
                span.set_attribute("planwarden.step.validation", event.validation)
            case ev.StepFailed():
                span.set_attribute("planwarden.step.status", "failed")
            case ev.StepRejected():
                span.set_attribute("planwarden.step.status", "rejected")
        del self._stretch(execution, at).steps[event.step_id]
        end(span, event.code if isinstance(event, ev.StepFailed) else None, at)

    def _finished(self, execution: ExecutionState, event: ev.Event, at: float) -> None:
        error = event.code if isinstance(event, ev.ExecutionFailed) else None
        self._stretch(execution, at)
        self._over(execution, outcome_of(event), error, at)

    def _over(self, execution: ExecutionState, status: str, error: str | None, at: float) -> None:
        stretch = self._open.pop(execution.execution_id, None)
        if stretch is None:
            return
        for span in (*stretch.jobs.values(), *stretch.steps.values(), stretch.plan):
            if span is not None:
                span.end(ns(at))
        stretch.span.set_attribute("planwarden.execution.status", status)
        end(stretch.span, error, at)


_WORKFLOW = "invoke_workflow planwarden"
_PLAN: Attributes = {"gen_ai.operation.name": "plan"}


def _about(execution_id: str, thread_id: str) -> Attributes:
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "planwarden",
        "gen_ai.conversation.id": thread_id,
        "planwarden.execution.id": execution_id,
    }
