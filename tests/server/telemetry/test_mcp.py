"""Trace context of requests and downstream calls: what strangers send makes no error."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from planwarden.server.settings.configuration import load_settings
from planwarden.server.telemetry.scrub import ScrubbingExporter
from planwarden.server.telemetry.trace_context import read_trace_context
from tests.kit import Client, Ledger, plan, requirement, served, tool_step
from tests.server.telemetry.support import Watching, attributes, id_of, trace_of
from tests.tools.downstream.support import Place

pytestmark = pytest.mark.anyio

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HOSTILE: list[dict[str, Any]] = [
    {"traceparent": "x" * 1_000_000},
    {"traceparent": 5},
    {"traceparent": [PARENT]},
    {"traceparent": PARENT, "tracestate": "a" * 1_000_000},
    {"traceparent": PARENT, "tracestate": [[1]]},
    {"traceparent": PARENT, "tracestate": {"a": 1}},
    {"traceparent": PARENT, "baggage": "k=v," * 250_000},
    {"traceparent": PARENT, "baggage": "no baggage at all"},
    {"traceparent": PARENT, "baggage": "a=\u00e9,b=\x1b[31m"},
    {"traceparent": PARENT, "baggage": ["a=1"]},
    {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "baggage": "a=1"},
]


STEPS = plan(tool_step("a", "note", {"text": "x"}))


@requirement("telemetry:hostile")
async def test_hostile_trace_context_counts_as_absent_and_only_what_is_well_formed_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as running, Client(running.server) as client:
        for meta in HOSTILE:
            result = await client.call_tool("execute_plan", {"plan": STEPS}, meta=meta)  # pyright: ignore[reportArgumentType]  # hostile
            assert not result.is_error
    assert sum(len(record.getMessage()) for record in caplog.records) < 10_000
    good = {"traceparent": PARENT, "tracestate": "rojo=1,congo=2"}
    assert read_trace_context({**good, "baggage": "a=1", "progressToken": 1}) == good and read_trace_context(None) == {}
    assert all(read_trace_context(meta) in ({}, {"traceparent": PARENT}) for meta in HOSTILE[:-1])


@requirement("telemetry:context")
async def test_a_downstream_call_is_below_the_span_of_its_tool(tmp_path: Path) -> None:
    place, watching = Place(tmp_path), Watching()
    place.serve(d="good")
    settings = load_settings(home=tmp_path, environment={})
    with anyio.fail_after(60):
        async with watching.warden(settings=settings) as w:
            done = await w.execute_plan(plan(tool_step("a", "d_meta")), wait_seconds=60)
    span, sent = watching.one("execute_tool d_meta"), done.steps[0].result
    assert isinstance(sent, dict)
    assert str(sent["traceparent"]).startswith(f"00-{trace_of(span):032x}-{id_of(span):016x}-")


@requirement("telemetry:private")
async def test_spans_of_the_sdk_are_sent_with_conventional_bounded_names_and_without_messages() -> None:
    kept = InMemorySpanExporter()
    watching = Watching()
    watching.traces.add_span_processor(SimpleSpanProcessor(ScrubbingExporter(kept)))
    tracer = watching.traces.get_tracer("mcp-python-sdk")
    with (
        pytest.raises(ValueError),
        tracer.start_as_current_span("MCP send tools/call find", kind=SpanKind.CLIENT) as span,
    ):
        span.set_attribute("gen_ai.tool.name", "x" * 5_000)
        raise ValueError("my secret")
    with watching.traces.get_tracer("ours").start_as_current_span("MCP send as it is"):
        pass
    scrubbed, other = kept.get_finished_spans()
    assert (scrubbed.name, other.name) == ("tools/call find", "MCP send as it is")
    assert "secret" not in scrubbed.to_json() and "secret" in watching.spans[0].to_json()
    assert attributes(scrubbed)["error.type"] == "ValueError" and attributes(scrubbed)["gen_ai.tool.name"] == "x" * 128
    assert _identity(scrubbed) == _identity(watching.spans[0])


def _identity(span: ReadableSpan) -> tuple[object, ...]:
    return trace_of(span), id_of(span), span.kind, span.start_time, span.end_time
