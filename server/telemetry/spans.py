"""Spans of what this process runs, named after OpenTelemetry's GenAI conventions where these have a name.

    invoke_workflow planwarden       from a start or an answer until the execution waits or ends
      planwarden.step ID             until the step waits or ends
        chat MODEL
        execute_tool NAME            current while the tool runs, so that the tool's own spans come below it

The store keeps the context of the first span with the execution. Any process that continues the execution, even months
later, adds to the same trace, below that span. Spans are sent when they end; a killed process loses its open spans.

Names: https://github.com/open-telemetry/semantic-conventions/blob/v1.41.0/docs/gen-ai/, in status "Development". Names
that the conventions lack begin with `planwarden.`.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import STEP_TRANSITIONS, TRANSITIONS, ExecutionState
from planwarden.agent.core.prompts import Prompt

logger = logging.getLogger(__name__)

MAX_OPEN = 2_048
"""How many executions may have open spans. Beyond this number, the spans of the oldest execution end as interrupted."""
MAX_STARTING = 256
"""How many uncommitted executions may have a first span. Beyond it, the oldest is dropped; it was probably refused."""
MAX_ARGUMENTS_CHARS = 4_096
MAX_TRACESTATE = 512
"""The most characters of a `tracestate`, as in https://www.w3.org/TR/trace-context/#tracestate-limits."""

Attributes = dict[str, AttributeValue]
_WORKFLOW = "invoke_workflow planwarden"
_W3C = TraceContextTextMapPropagator()
_PROVIDERS = {"openai-chat": "openai", "openai-responses": "openai", "google": "gcp.gemini"}


class _OpenSpans(msgspec.Struct):
    """The open spans of an execution that runs in this process."""

    span: Span
    steps: dict[str, Span] = msgspec.field(default_factory=dict[str, Span])


class ExecutionSpans:
    """Opens and ends the spans of executions and steps as events are committed, and opens the spans of jobs."""

    def __init__(self, tracer: Tracer, model: str, *, record_arguments: bool) -> None:
        """`model` is the name of the model in the settings."""
        self._tracer = tracer
        kind, _, name = model.partition(":")
        self._model: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": _PROVIDERS.get(kind, kind)}
        if name and kind != "scripted":
            self._model["gen_ai.request.model"] = name
        self._records_arguments = record_arguments
        self._open: OrderedDict[str, _OpenSpans] = OrderedDict()
        self._starting: OrderedDict[str, Span] = OrderedDict()

    def start_execution(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        """Start an execution's first span below the current span; return its `traceparent` and `tracestate`, if any."""
        span = self._tracer.start_span(_WORKFLOW, attributes=_build_attributes(execution_id, thread_id))
        self._starting[execution_id] = span
        if len(self._starting) > MAX_STARTING:
            self._starting.popitem(last=False)
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span))
        parent, state = carrier.get("traceparent"), carrier.get("tracestate")
        return None if parent is None else (parent, state if state and len(state) <= MAX_TRACESTATE else None)

    def record(self, execution: ExecutionState, event: ev.Event) -> None:
        """Start or end spans as the event requires; `execution` is the state after the event's transaction."""
        match event:
            case ev.ExecutionCreated():
                first = self._starting.pop(execution.execution_id, None)
                if first is not None:
                    self._remember(execution.execution_id, _OpenSpans(first))
            case ev.StepStarted():
                self._ensure_step_span(execution, event.step_id)
            case ev.StepCompleted() | ev.StepFailed() | ev.StepRejected() | ev.StepRehearsed():
                span = self._ensure_step_span(execution, event.step_id)
                if isinstance(event, ev.StepCompleted):
                    span.set_attribute("planwarden.step.validation", event.validation)
                self._end_step(execution, event.step_id, event)
            case ev.Suspended(question=question):
                self._end_step(execution, question.step_id or "", event)
            case _ if TRANSITIONS["running"].get(type(event), "running") != "running":
                self._end_execution(execution, event)
            case _:
                pass

    def start_job(self, execution: ExecutionState, key: str, prompt: Prompt | None) -> Span:
        """Start and return the span of the prompt or, if that is None, of the call whose id is `key`."""
        if prompt is not None:
            attributes: Attributes = {**self._model, "planwarden.purpose": prompt.purpose}
            name, step_id = f"chat {self._model.get('gen_ai.request.model', '')}".strip(), prompt.step_id
        else:
            call = execution.call(key)
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.tool_name,
                "gen_ai.tool.call.id": key,
                "gen_ai.tool.type": "function",
                "planwarden.tool.effect": call.effect,
            }
            if self._records_arguments:
                attributes["gen_ai.tool.call.arguments"] = json.dumps(call.arguments)[:MAX_ARGUMENTS_CHARS]
            name, step_id = f"execute_tool {call.tool_name}", call.step_id
        parent = self._ensure_spans(execution).span if step_id is None else self._ensure_step_span(execution, step_id)
        return self._start_child(parent, name, attributes)

    def close(self) -> None:
        """End the open spans as interrupted; a process that continues an execution starts new ones."""
        while self._open:
            self._abandon(self._open.popitem()[1])

    def _remember(self, execution_id: str, spans: _OpenSpans) -> None:
        self._open[execution_id] = spans
        if len(self._open) > MAX_OPEN:
            self._abandon(self._open.popitem(last=False)[1])

    def _abandon(self, spans: _OpenSpans) -> None:
        for span in (*spans.steps.values(), spans.span):
            with log_failures("an open span could not be ended"):
                span.set_attribute("planwarden.interrupted", True)
                span.end()

    def _ensure_spans(self, execution: ExecutionState) -> _OpenSpans:
        """Return the execution's open spans; if it has none, start a span below the execution's first span."""
        spans = self._open.get(execution.execution_id)
        if spans is None:
            attributes = _build_attributes(execution.execution_id, execution.thread_id)
            attributes["planwarden.execution.resumed"] = True
            # If no context is stored, an empty one begins a new trace.
            carrier = {"traceparent": execution.traceparent or "", "tracestate": execution.tracestate or ""}
            stored = _W3C.extract({name: value for name, value in carrier.items() if value}, Context())
            spans = _OpenSpans(self._tracer.start_span(_WORKFLOW, stored, attributes=attributes))
            self._remember(execution.execution_id, spans)
        return spans

    def _ensure_step_span(self, execution: ExecutionState, step_id: str) -> Span:
        spans = self._ensure_spans(execution)
        if step_id not in spans.steps:
            attributes: Attributes = {"planwarden.step.id": step_id}
            spans.steps[step_id] = self._start_child(spans.span, f"planwarden.step {step_id}", attributes)
        return spans.steps[step_id]

    def _start_child(self, parent: Span, name: str, attributes: Attributes) -> Span:
        return self._tracer.start_span(name, trace.set_span_in_context(parent), attributes=attributes)

    def _end_step(self, execution: ExecutionState, step_id: str, event: ev.Event) -> None:
        spans = self._open.get(execution.execution_id)
        span = spans.steps.pop(step_id, None) if spans else None
        if span is not None:
            span.set_attribute("planwarden.step.status", STEP_TRANSITIONS["in_progress"][type(event)])
            _set_error(span, event)
            span.end()

    def _end_execution(self, execution: ExecutionState, event: ev.Event) -> None:
        spans = self._open.pop(execution.execution_id, None)
        if spans is None:
            return
        for span in spans.steps.values():
            span.end()
        spans.span.set_attribute("planwarden.execution.status", execution.status)
        _set_error(spans.span, event)
        spans.span.end()


def describe_outcome(span: Span, events: Sequence[ev.Event]) -> None:
    """Describe the outcome of a job in its span: the code of an error, and the tokens of a prompt."""
    for event in events:
        if isinstance(event, ev.ModelReplied | ev.ModelFailed):
            span.set_attribute("gen_ai.usage.input_tokens", event.input_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", event.output_tokens)
        _set_error(span, event)


def find_error(event: ev.Event) -> str | None:
    """Return the error code of an event that reports a failure; None for any other event."""
    match event:
        case ev.ToolFailed() | ev.ModelFailed() | ev.StepFailed() | ev.ExecutionFailed():
            return event.code
        case ev.ToolOutcomeUnknown():
            return "outcome_unknown"
        case _:
            return None


def _set_error(span: Span, event: ev.Event) -> None:
    """Mark the span as failed if the event reports a failure. Messages may quote a tool's output, so only the code of
    the error is sent."""
    error = find_error(event)
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))


@contextmanager
def log_failures(what: str, *about: object) -> Generator[None]:
    """Log an exception from the block and continue after the block: telemetry must not break what it observes."""
    try:
        yield
    # Exporters, processors and samplers are third-party code.
    except Exception:
        logger.exception(what, *about)


def _build_attributes(execution_id: str, thread_id: str) -> Attributes:
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "planwarden",
        "gen_ai.conversation.id": thread_id,
        "planwarden.execution.id": execution_id,
    }
