"""What spans and metrics share: attribute names, times, errors, and the stored trace context.

Names come from OpenTelemetry's GenAI and MCP conventions, all in status "Development":
https://github.com/open-telemetry/semantic-conventions/blob/v1.41.0/docs/gen-ai/. The conventions have moved to
https://github.com/open-telemetry/semantic-conventions-genai, which agrees in what is used here at commits
7269173edd774fb00a9fabc374955e0888714fa7 (metrics) and 1e01e830ef3c17b939ab7db8d25c7061e4239c0b (MCP); the operation
`plan` comes from 55a32cddb97d99cec08d5ee081e74206a0636041. Names that the conventions lack begin with `planwarden.`.
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


def build_model_attributes(name: str) -> Attributes:
    """Returns the attributes of a model by its name in the settings; unknown providers keep their own name."""
    kind, _, model = name.partition(":")
    about: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": _PROVIDERS.get(kind, kind)}
    if model and kind != "scripted":
        about["gen_ai.request.model"] = model
    return about


def read_stored_context(execution: ExecutionState) -> Context:
    """Returns the context of the execution's first span; empty if none is stored, so that a new trace begins."""
    carrier = {"traceparent": execution.traceparent or "", "tracestate": execution.tracestate or ""}
    return W3C.extract({name: value for name, value in carrier.items() if value}, Context())


def find_error_code(event: ev.ToolReturned | ev.ToolFailed | ev.ToolOutcomeUnknown) -> str | None:
    """Returns the error code of a call; None when the call succeeded."""
    match event:
        case ev.ToolReturned():
            return None
        case ev.ToolFailed():
            return event.code
        case ev.ToolOutcomeUnknown():
            return "outcome_unknown"


def end_span(span: Span, error: str | None, at: float) -> None:
    """Ends the span at Unix seconds. Records only the code of an error, because messages may quote a tool's output."""
    if error is not None:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end(to_nanoseconds(at))


def to_nanoseconds(at: float) -> int:
    """Returns Unix seconds as OpenTelemetry's nanoseconds, rounded to microseconds."""
    return round(at * 1_000_000) * 1_000


@contextmanager
def log_failures(what: str, *about: object) -> Generator[None]:
    """Logs an exception of the block and continues after it: observing must not break what it observes."""
    try:
        yield
    # Exporters, processors and samplers are third-party code.
    except Exception:
        logger.exception(what, *about)


@contextmanager
def use_span(span: Span) -> Generator[None]:
    """Makes `span` current in the block. Unlike `trace.use_span`, it does not call the span when the block raises."""
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        context.detach(token)
