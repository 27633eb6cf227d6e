"""Spans made from committed events, named by OpenTelemetry's GenAI conventions where there is a name.

    invoke_workflow planwarden       from its beginning, or an answer, until it waits or ends
      plan planwarden                until there is a plan
        chat MODEL
      planwarden.step ID             until the step waits or ends
        chat MODEL
        execute_tool NAME            current while the tool runs, so that what it calls comes below it
      planwarden.suspension KIND     from the question to its answer

Spans live in the process that does the work and are sent when they end; what a killed process had open is lost. The
context of the first span is stored with the execution: whoever goes on with it, in this process or another, months
later, does so in the same trace, below that span, and links to the question that was answered.

Sources, all of status "Development": https://github.com/open-telemetry/semantic-conventions/blob/v1.41.0/docs/gen-ai/
(agent spans, model spans); the operation `plan` from https://github.com/open-telemetry/semantic-conventions-genai
at 55a32cddb97d99cec08d5ee081e74206a0636041.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from planwarden.agent import events as ev
from planwarden.agent.prompts import Prompt
from planwarden.agent.state import Execution, SuspensionState
from planwarden.server.telemetry.metrics import OUTCOMES, outcome_of, waiting_attributes

OPEN = 2_048
"""Executions with open spans; the oldest are given up beyond that, as after a takeover by another process."""
MAX_ARGUMENTS = 4_096
MAX_TRACESTATE = 512
"""Characters, as in https://www.w3.org/TR/trace-context/#tracestate-limits."""
_W3C = TraceContextTextMapPropagator()

Attributes = dict[str, AttributeValue]


@dataclass(slots=True)
class _Stretch:
    """The spans that are open while an execution runs in this process."""

    span: Span
    is_committed: bool = False
    """False until the execution is durable; a refused one leaves no span."""
    plan: Span | None = None
    steps: dict[str, Span] = field(default_factory=dict[str, Span])
    jobs: dict[str, Span] = field(default_factory=dict[str, Span])
    """By call id, and prompts by their key."""


class Spans:
    """Opens and ends spans as events are committed."""

    def __init__(self, tracer: Tracer, model: str, *, record_arguments: bool) -> None:
        """`model` is the name as in the settings, `PROVIDER:MODEL`."""
        self._tracer = tracer
        self._model = model_attributes(model)
        self._records_arguments = record_arguments
        self._open: OrderedDict[str, _Stretch] = OrderedDict()
        self._answers: OrderedDict[str, tuple[float, tuple[Link, ...]]] = OrderedDict()
        """When an execution that waited was answered, and by what; its next stretch begins there, if it is here."""

    def starting(self, execution_id: str, thread_id: str) -> tuple[str, str | None] | None:
        """Open an execution's first span below whatever is current; gives what others need to go on below it."""
        span = self._tracer.start_span(_WORKFLOW, attributes=_about(execution_id, thread_id))
        self._keep(execution_id, _Stretch(span))
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span))
        parent, state = carrier.get("traceparent"), carrier.get("tracestate")
        return None if parent is None else (parent, state if state and len(state) <= MAX_TRACESTATE else None)

    def record(self, execution: Execution, recorded: ev.Recorded, *, owned: bool) -> None:
        """Open and end what the event opens and ends; `execution` is the state after its transaction."""
        event, at = recorded.event, recorded.at
        match event:
            case ev.SuspensionDecided() | ev.SuspensionTimedOut():
                self._answered(execution, execution.suspensions[event.suspension_id], at, owned=owned)
            case _ if not owned:
                pass
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

    def _worked(self, execution: Execution, event: ev.Event, at: float) -> None:
        match event:
            case ev.ToolCallIntended():
                self._call(execution, event.call_id, at)
            case ev.ToolReturned() | ev.ToolFailed() | ev.ToolOutcomeUnknown():
                self._job_ended(execution, event.call_id, _error(event), at)
            case ev.ModelReplied() | ev.ModelFailed():
                self._replied(execution, event, at)
            case ev.Suspended():
                self._asked(execution, event.question, at)
            case ev.StepStarted() | ev.StepCompleted() | ev.StepFailed() | ev.StepRejected():
                self._step_moved(execution, event, at)
            case _:
                pass

    def _created(self, execution: Execution, at: float) -> None:
        stretch = self._stretch(execution, at)
        stretch.is_committed = True
        if execution.plan is None:
            stretch.plan = self._child(stretch.span, "plan planwarden", _PLAN, at)

    def job(self, execution: Execution, key: str, prompt: Prompt | None, at: float) -> Span:
        """The span of a call or prompt that is being performed, opened now unless its event opened it."""
        if prompt is None:
            return self._call(execution, key, at)
        stretch = self._stretch(execution, at)
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
        if not stretch.is_committed:
            return
        for span in (*stretch.jobs.values(), *stretch.steps.values(), stretch.plan, stretch.span):
            if span is not None:
                span.set_attribute("planwarden.interrupted", True)
                span.end()

    def _stretch(self, execution: Execution, at: float) -> _Stretch:
        found = self._open.get(execution.execution_id)
        if found is None:
            at, links = self._answers.pop(execution.execution_id, (at, ()))
            about = {**_about(execution.execution_id, execution.thread_id), "planwarden.execution.resumed": True}
            span = self._tracer.start_span(
                _WORKFLOW, _stored(execution), attributes=about, links=links, start_time=_ns(at)
            )
            found = _Stretch(span, is_committed=True)
            self._keep(execution.execution_id, found)
        return found

    def _child(
        self, parent: Span, name: str, attributes: Attributes, at: float, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        above = trace.set_span_in_context(parent, Context())
        return self._tracer.start_span(name, above, kind, attributes, start_time=_ns(at))

    def _step(self, execution: Execution, step_id: str, at: float) -> Span:
        stretch = self._stretch(execution, at)
        if step_id not in stretch.steps:
            about: Attributes = {"planwarden.step.id": step_id}
            stretch.steps[step_id] = self._child(stretch.span, f"planwarden.step {step_id}", about, at)
        return stretch.steps[step_id]

    def _call(self, execution: Execution, call_id: str, at: float) -> Span:
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

    def _job_ended(self, execution: Execution, key: str, error: str | None, at: float) -> None:
        stretch = self._open.get(execution.execution_id)
        found = stretch.jobs.pop(key, None) if stretch else None
        if found is not None:
            _end(found, error, at)

    def _replied(self, execution: Execution, event: ev.ModelReplied | ev.ModelFailed, at: float) -> None:
        stretch = self._open.get(execution.execution_id)
        key = _prompt_key(event.purpose, event.step_id)
        found = stretch.jobs.get(key) if stretch else None
        if found is not None:
            found.set_attribute("gen_ai.usage.input_tokens", event.input_tokens)
            found.set_attribute("gen_ai.usage.output_tokens", event.output_tokens)
            self._job_ended(execution, key, event.code if isinstance(event, ev.ModelFailed) else None, at)

    def _planned(self, execution: Execution) -> None:
        stretch = self._open.get(execution.execution_id)
        if stretch is not None and stretch.plan is not None and execution.plan is not None:
            stretch.plan.set_attribute("planwarden.plan.steps", len(execution.plan.steps))
            stretch.plan.end(_ns(execution.updated_at))
            stretch.plan = None

    def _asked(self, execution: Execution, question: ev.Question, at: float) -> None:
        """The call or prompt that asked is over; what it asked gets a span of its own once it is answered."""
        if question.call_id is not None:
            self._job_ended(execution, question.call_id, None, at)
        stretch = self._open.get(execution.execution_id)
        if stretch is None:
            return
        if question.prompt is not None:
            # The caller is the model: nothing was asked of a provider, so there is no call to tell of.
            purpose: dict[str, ev.Purpose] = {"plan": "plan", "step": "step", "synthesis": "synthesize"}
            stretch.jobs.pop(_prompt_key(purpose.get(question.kind, "step"), question.step_id), None)
        step = stretch.steps.pop(question.step_id or "", None)
        if step is not None:
            step.set_attribute("planwarden.step.status", "suspended")
            step.end(_ns(at))

    def _answered(self, execution: Execution, found: SuspensionState, at: float, *, owned: bool) -> None:
        question = found.question
        about: Attributes = {"planwarden.suspension.id": question.suspension_id, **waiting_attributes(found)}
        for name, value in (
            ("planwarden.execution.id", execution.execution_id),
            ("gen_ai.tool.name", question.tool_name),
            ("planwarden.step.id", question.step_id),
            ("planwarden.suspension.risk", question.risk),
            ("planwarden.suspension.assurance", found.assurance),
            ("planwarden.suspension.channel", found.channel),
        ):
            if value is not None:
                about[name] = value
        name = f"planwarden.suspension {question.kind}"
        span = self._tracer.start_span(name, _stored(execution), attributes=about, start_time=_ns(found.created_at))
        span.end(_ns(at))
        if owned and execution.execution_id not in self._open:
            # Whoever answered is linked too, because they may have a trace of their own.
            links = [Link(span.get_span_context()), Link(trace.get_current_span().get_span_context())]
            self._answers[execution.execution_id] = at, tuple(link for link in links if link.context.is_valid)
            if len(self._answers) > OPEN:
                self._answers.popitem(last=False)

    def _step_moved(
        self,
        execution: Execution,
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
        _end(span, event.code if isinstance(event, ev.StepFailed) else None, at)

    def _finished(self, execution: Execution, event: ev.Event, at: float) -> None:
        error = event.code if isinstance(event, ev.ExecutionFailed) else None
        self._stretch(execution, at)
        self._over(execution, outcome_of(event), error, at)

    def _over(self, execution: Execution, status: str, error: str | None, at: float) -> None:
        stretch = self._open.pop(execution.execution_id, None)
        if stretch is None:
            return
        for span in (*stretch.jobs.values(), *stretch.steps.values(), stretch.plan):
            if span is not None:
                span.end(_ns(at))
        stretch.span.set_attribute("planwarden.execution.status", status)
        _end(stretch.span, error, at)


_WORKFLOW = "invoke_workflow planwarden"
_PLAN: Attributes = {"gen_ai.operation.name": "plan"}
_PROVIDERS = {
    "anthropic": "anthropic",
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "google": "gcp.gemini",
}


def model_attributes(name: str) -> Attributes:
    """What a model's name in the settings says, in the words of the conventions; its own word where they have none."""
    kind, _, model = name.partition(":")
    about: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": _PROVIDERS.get(kind, kind)}
    if model and kind != "scripted":
        about["gen_ai.request.model"] = model
    return about


def _about(execution_id: str, thread_id: str) -> Attributes:
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "planwarden",
        "gen_ai.conversation.id": thread_id,
        "planwarden.execution.id": execution_id,
    }


def _prompt_key(purpose: ev.Purpose, step_id: str | None) -> str:
    """As `PromptWork.key`."""
    return f"prompt {purpose} {step_id or ''}"


def _stored(execution: Execution) -> Context:
    """The context of the execution's first span; empty, which begins a new trace, when none was stored."""
    carrier = {"traceparent": execution.traceparent or "", "tracestate": execution.tracestate or ""}
    return _W3C.extract({name: value for name, value in carrier.items() if value}, Context())


def _error(event: ev.ToolReturned | ev.ToolFailed | ev.ToolOutcomeUnknown) -> str | None:
    match event:
        case ev.ToolReturned():
            return None
        case ev.ToolFailed():
            return event.code
        case ev.ToolOutcomeUnknown():
            return "outcome_unknown"


def _end(span: Span, error: str | None, at: float) -> None:
    """End the span. Of an error only its code is told: messages may quote what a tool said."""
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end(_ns(at))


def _ns(at: float) -> int:
    return round(at * 1_000_000) * 1_000
