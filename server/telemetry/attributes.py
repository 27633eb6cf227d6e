"""What spans and metrics share: attributes in the words of the conventions, times, errors, and the stored context.

Names are those of OpenTelemetry's GenAI and MCP conventions, which are all in status "Development":
https://github.com/open-telemetry/semantic-conventions/blob/v1.41.0/docs/gen-ai/, where they have moved to
https://github.com/open-telemetry/semantic-conventions-genai (agreeing in what is used here at
7269173edd774fb00a9fabc374955e0888714fa7, metrics, and 1e01e830ef3c17b939ab7db8d25c7061e4239c0b, MCP); the operation
`plan` is from there at 55a32cddb97d99cec08d5ee081e74206a0636041. What they have no name for begins with `planwarden.`.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState

logger = logging.getLogger(__name__)

SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
MAX_TRACESTATE = 512
"""Characters, as in https://www.w3.org/TR/trace-context/#tracestate-limits."""
W3C = TraceContextTextMapPropagator()

Attributes = dict[str, AttributeValue]

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


def stored_context(execution: ExecutionState) -> Context:
    """The context of the execution's first span; empty, which begins a new trace, when none was stored."""
    carrier = {"traceparent": execution.traceparent or "", "tracestate": execution.tracestate or ""}
    return W3C.extract({name: value for name, value in carrier.items() if value}, Context())


def error_of(event: ev.ToolReturned | ev.ToolFailed | ev.ToolOutcomeUnknown) -> str | None:
    """The code of what went wrong with a call; None when nothing did."""
    match event:
        case ev.ToolReturned():
            return None
        case ev.ToolFailed():
            return event.code
        case ev.ToolOutcomeUnknown():
            return "outcome_unknown"


def end(span: Span, error: str | None, at: float) -> None:
    """End the span. Of an error only its code is told: messages may quote what a tool said."""
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end(ns(at))


def ns(at: float) -> int:
    """Unix seconds as OpenTelemetry's nanoseconds."""
    return round(at * 1_000_000) * 1_000


@contextmanager
def unharmed(what: str, *about: object) -> Generator[None]:
    """Whatever goes wrong inside is logged and forgotten: nothing may fail because it is looked at."""
    try:
        yield
    # Exporters, processors and samplers are other people's code.
    except Exception:
        logger.exception(what, *about)


@contextmanager
def current(span: Span) -> Generator[None]:
    """`span` is the current one inside. As `trace.use_span`, which asks the span itself something when the inside raises."""
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        context.detach(token)
