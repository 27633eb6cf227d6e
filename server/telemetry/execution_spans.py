"""Spans made from committed events, named by OpenTelemetry's GenAI conventions where there is a name.

    invoke_workflow planwarden       from the start, or an answer, until the execution waits or ends
      plan planwarden                until there is a plan
        chat MODEL
      planwarden.step ID             until the step waits or ends
        chat MODEL
        execute_tool NAME            current while the tool runs, so that the tool's own spans come below it
      planwarden.suspension KIND     from the question to its end, see `planwarden.server.telemetry.suspension_spans`

Spans live in the process that does the work and are sent when they end; the open spans of a killed process are lost.
The store keeps the context of the first span with the execution. Any process that continues the execution, even months
later, uses the same trace, below that span, and links to the answered question. A call that a killed process began gets
its span from the log when its outcome becomes unknown, or a new span when it runs again.

Sources: see `planwarden.server.telemetry.attributes`.
"""

import json
from collections import OrderedDict

import msgspec
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
    end_span,
    find_error_code,
    log_failures,
    read_stored_context,
    to_nanoseconds,
)
from planwarden.server.telemetry.metrics import OUTCOMES, build_prompt_key, build_question_key, find_outcome
from planwarden.server.telemetry.suspension_spans import SuspensionSpans

MAX_OPEN = 2_048
"""Executions with open spans; beyond this number the oldest end as interrupted."""
MAX_STARTING = 256
"""First spans of executions that are not committed yet; spans of refused executions are among them and are dropped."""
MAX_ARGUMENTS_CHARS = 4_096


class _OpenSpans(msgspec.Struct):
    """The open spans of an execution that runs in this process."""

    span: Span
    plan: Span | None = None
    steps: dict[str, Span] = msgspec.field(default_factory=dict[str, Span])
    jobs: dict[str, Span] = msgspec.field(default_factory=dict[str, Span])
    """Calls by their id, prompts by their key."""


class ExecutionSpans:
    """Opens and ends spans as events are committed."""

    def __init__(self, tracer: Tracer, model: Attributes, *, record_arguments: bool) -> None:
        """`model` comes from `build_model_attributes`."""
        self._tracer = tracer
        self._model = model
        self._records_arguments = record_arguments
        self._open: OrderedDict[str, _OpenSpans] = OrderedDict()
        self._starting: OrderedDict[str, Span] = OrderedDict()
        self._waits = SuspensionSpans(tracer)

    def start_execution(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        """Starts an execution's first span below the current one; returns its `traceparent` and `tracestate`."""
        span = self._tracer.start_span(_WORKFLOW, attributes=_build_attributes(execution_id, thread_id))
        self._starting[execution_id] = span
        if len(self._starting) > MAX_STARTING:
            self._starting.popitem(last=False)
        carrier: dict[str, str] = {}
        W3C.inject(carrier, trace.set_span_in_context(span))
        parent, state = carrier.get("traceparent"), carrier.get("tracestate")
        return None if parent is None else (parent, state if state and len(state) <= MAX_TRACESTATE else None)

    def record(self, execution: ExecutionState, recorded: ev.Recorded, *, owned: bool) -> None:
        """Starts and ends the spans that the event starts and ends; `execution` is the state after its transaction."""
        event, at = recorded.event, recorded.at
        answer = self._waits.record(execution, recorded)
        if not owned:
            return
        if answer is not None and execution.execution_id not in self._open:
            self._waits.remember_answer(execution.execution_id, answer, at)
        match event:
            case ev.ExecutionCreated():
                self._record_creation(execution, at)
            case ev.PlanAccepted():
                self._end_plan(execution)
            case ev.ExecutionSuspended() | ev.ExecutionPlanned():
                self._end_execution(execution, execution.status, None, at)
            case _ if isinstance(event, OUTCOMES):
                self._finish(execution, event, at)
            case _:
                self._record_work(execution, event, at)

    def _record_work(self, execution: ExecutionState, event: ev.Event, at: float) -> None:
        match event:
            case ev.ToolCallIntended():
                self._start_call(execution, event.call_id, at)
            case ev.ToolReturned() | ev.ToolFailed() | ev.ToolOutcomeUnknown():
                if isinstance(event, ev.ToolOutcomeUnknown):
                    self._record_lost_call(execution, event.call_id, at)
                self._end_job(execution, event.call_id, find_error_code(event), at)
            case ev.ModelReplied() | ev.ModelFailed():
                self._record_reply(execution, event, at)
            case ev.Suspended():
                self._record_question(execution, event.question, at)
            case ev.StepStarted() | ev.StepCompleted() | ev.StepFailed() | ev.StepRejected() | ev.StepRehearsed():
                self._record_step(execution, event, at)
            case _:
                pass

    def _record_creation(self, execution: ExecutionState, at: float) -> None:
        first = self._starting.pop(execution.execution_id, None)
        if first is not None:
            self._remember(execution.execution_id, _OpenSpans(first))
        stretch = self._find_open(execution, at)
        if execution.plan is None:
            stretch.plan = self._start_child(stretch.span, "plan planwarden", _PLAN, at)

    def start_job(self, execution: ExecutionState, key: str, prompt: Prompt | None, at: float) -> Span:
        """Returns the span of a call or prompt that runs now; starts it unless its event has."""
        stretch = self._find_open(execution, at)
        if prompt is None:
            is_begun = key in stretch.jobs
            span = self._start_call(execution, key, at)
            if not is_begun:
                span.set_attribute("planwarden.tool.repeated", True)
            return span
        found = stretch.jobs.get(key)
        if found is None:
            parent = stretch.span
            if prompt.step_id is not None:
                parent = self._start_step(execution, prompt.step_id, at)
            elif prompt.purpose == "plan":
                stretch.plan = stretch.plan or self._start_child(stretch.span, "plan planwarden", _PLAN, at)
                parent = stretch.plan
            about: Attributes = {**self._model, "planwarden.purpose": prompt.purpose}
            name = f"chat {self._model.get('gen_ai.request.model', '')}".strip()
            found = self._start_child(parent, name, about, at, SpanKind.CLIENT)
            stretch.jobs[key] = found
        return found

    def close(self) -> None:
        """Ends the open spans as interrupted; a process that continues the execution starts new ones."""
        while self._open:
            self._abandon(self._open.popitem()[1])

    def _remember(self, execution_id: str, stretch: _OpenSpans) -> None:
        self._open[execution_id] = stretch
        if len(self._open) > MAX_OPEN:
            self._abandon(self._open.popitem(last=False)[1])

    def _abandon(self, stretch: _OpenSpans) -> None:
        for span in (*stretch.jobs.values(), *stretch.steps.values(), stretch.plan, stretch.span):
            if span is not None:
                with log_failures("an open span could not be ended"):
                    span.set_attribute("planwarden.interrupted", True)
                    span.end()

    def _find_open(self, execution: ExecutionState, at: float) -> _OpenSpans:
        found = self._open.get(execution.execution_id)
        if found is None:
            at, links = self._waits.take_start(execution.execution_id, at)
            about = {
                **_build_attributes(execution.execution_id, execution.thread_id),
                "planwarden.execution.resumed": True,
            }
            span = self._tracer.start_span(
                _WORKFLOW, read_stored_context(execution), attributes=about, links=links, start_time=to_nanoseconds(at)
            )
            found = _OpenSpans(span)
            self._remember(execution.execution_id, found)
        return found

    def _start_child(
        self, parent: Span, name: str, attributes: Attributes, at: float, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        above = trace.set_span_in_context(parent, Context())
        return self._tracer.start_span(name, above, kind, attributes, start_time=to_nanoseconds(at))

    def _start_step(self, execution: ExecutionState, step_id: str, at: float) -> Span:
        stretch = self._find_open(execution, at)
        if step_id not in stretch.steps:
            about: Attributes = {"planwarden.step.id": step_id}
            stretch.steps[step_id] = self._start_child(stretch.span, f"planwarden.step {step_id}", about, at)
        return stretch.steps[step_id]

    def _start_call(self, execution: ExecutionState, call_id: str, at: float) -> Span:
        stretch = self._find_open(execution, at)
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
                about["gen_ai.tool.call.arguments"] = json.dumps(call.arguments)[:MAX_ARGUMENTS_CHARS]
            step = self._start_step(execution, call.step_id, at)
            found = self._start_child(step, f"execute_tool {call.tool_name}", about, at)
            stretch.jobs[call_id] = found
        return found

    def _record_lost_call(self, execution: ExecutionState, call_id: str, at: float) -> None:
        """Starts the span of a call that a dead process began, at the time that the log knows."""
        call = execution.call(call_id)
        if call_id not in self._find_open(execution, at).jobs and call.intended_at is not None:
            # Its parents start now, in this process, although the call started earlier.
            self._start_step(execution, call.step_id, at)
            self._start_call(execution, call_id, call.intended_at).set_attribute("planwarden.tool.recovered", True)

    def _end_job(self, execution: ExecutionState, key: str, error: str | None, at: float) -> None:
        stretch = self._open.get(execution.execution_id)
        found = stretch.jobs.pop(key, None) if stretch else None
        if found is not None:
            end_span(found, error, at)

    def _record_reply(self, execution: ExecutionState, event: ev.ModelReplied | ev.ModelFailed, at: float) -> None:
        stretch = self._open.get(execution.execution_id)
        key = build_prompt_key(event.purpose, event.step_id)
        found = stretch.jobs.get(key) if stretch else None
        if found is not None:
            found.set_attribute("gen_ai.usage.input_tokens", event.input_tokens)
            found.set_attribute("gen_ai.usage.output_tokens", event.output_tokens)
            self._end_job(execution, key, event.code if isinstance(event, ev.ModelFailed) else None, at)

    def _end_plan(self, execution: ExecutionState) -> None:
        stretch = self._open.get(execution.execution_id)
        if stretch is not None and stretch.plan is not None and execution.plan is not None:
            stretch.plan.set_attribute("planwarden.plan.steps", len(execution.plan.steps))
            stretch.plan.end(to_nanoseconds(execution.updated_at))
            stretch.plan = None

    def _record_question(self, execution: ExecutionState, question: ev.Question, at: float) -> None:
        """Ends the spans of the call or prompt that asked, and of its step; the question gets its own span later."""
        if question.call_id is not None:
            self._end_job(execution, question.call_id, None, at)
        stretch = self._open.get(execution.execution_id)
        if stretch is None:
            return
        if question.prompt is not None:
            # The caller answers the prompt, so there is no call of a provider to trace.
            stretch.jobs.pop(build_question_key(question), None)
        step = stretch.steps.pop(question.step_id or "", None)
        if step is not None:
            step.set_attribute("planwarden.step.status", "suspended")
            step.end(to_nanoseconds(at))

    def _record_step(
        self,
        execution: ExecutionState,
        event: ev.StepStarted | ev.StepCompleted | ev.StepFailed | ev.StepRejected | ev.StepRehearsed,
        at: float,
    ) -> None:
        span = self._start_step(execution, event.step_id, at)
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
            case ev.StepRehearsed():
                span.set_attribute("planwarden.step.status", "rehearsed")
        del self._find_open(execution, at).steps[event.step_id]
        end_span(span, event.code if isinstance(event, ev.StepFailed) else None, at)

    def _finish(self, execution: ExecutionState, event: ev.Event, at: float) -> None:
        error = event.code if isinstance(event, ev.ExecutionFailed) else None
        self._find_open(execution, at)
        self._end_execution(execution, find_outcome(event), error, at)

    def _end_execution(self, execution: ExecutionState, status: str, error: str | None, at: float) -> None:
        stretch = self._open.pop(execution.execution_id, None)
        if stretch is None:
            return
        for span in (*stretch.jobs.values(), *stretch.steps.values(), stretch.plan):
            if span is not None:
                span.end(to_nanoseconds(at))
        stretch.span.set_attribute("planwarden.execution.status", status)
        end_span(stretch.span, error, at)


_WORKFLOW = "invoke_workflow planwarden"
_PLAN: Attributes = {"gen_ai.operation.name": "plan"}


def _build_attributes(execution_id: str, thread_id: str) -> Attributes:
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "planwarden",
        "gen_ai.conversation.id": thread_id,
        "planwarden.execution.id": execution_id,
    }
