"""Requests and downstream calls by the MCP conventions; what strangers send makes no error and no label."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import RequestParamsMeta
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import planwarden
from planwarden.server.api.service import Service
from planwarden.server.mcp.server import build_server
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.telemetry.scrub import ScrubbingExporter
from planwarden.server.telemetry.telemetry import Telemetry
from planwarden.server.telemetry.trace_context import read_trace_context
from planwarden.storage.sqlite.memory import MemoryStore
from tests.requirements import requirement
from tests.server.mcp.http_support import serving
from tests.server.mcp.support import ERAS, Era, served
from tests.server.telemetry.support import Watching, attributes, id_of, parent_of, trace_of
from tests.support.wardens import Ledger, calls, model_step, plan, says, tool_step
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


@asynccontextmanager
async def observed(
    home: Path, watching: Watching, *, era: Era = "auto", settings: Settings | None = None
) -> AsyncGenerator[Client]:
    """A client of a server with observed requests."""
    made = planwarden.Warden(
        settings=settings or Settings(home=home),
        tools=Ledger().tools(),
        store=MemoryStore(),
        tracer_provider=watching.traces,
        meter_provider=watching.meters,
        whole_process=True,
    )

    @asynccontextmanager
    async def opening() -> AsyncGenerator[Service]:
        yield made.service

    async with made, Client(build_server(opening, observer=made.observer), mode=era) as client:
        yield client


STEPS = plan(tool_step("a", "note", {"text": "x"}))


@requirement("telemetry:context")
@pytest.mark.parametrize("era", ERAS)
async def test_a_request_is_a_server_span_with_conventional_names_in_the_trace_of_its_meta(
    tmp_path: Path, era: Era
) -> None:
    watching, meta = Watching(), RequestParamsMeta(traceparent=PARENT, tracestate="rojo=1")
    async with observed(tmp_path, watching, era=era) as client:
        await client.call_tool("execute_plan", {"plan": STEPS}, meta=meta)
    span = watching.one("tools/call execute_plan")
    told = dict(attributes(span))
    assert str(told.pop("jsonrpc.request.id")).isdecimal() and str(told["mcp.protocol.version"]).startswith("202")
    assert told == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": told["mcp.protocol.version"],
        "network.transport": "pipe",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "execute_plan",
    }
    assert span.kind is SpanKind.SERVER and parent_of(span) == 0xB7AD6B7169203331
    workflow = watching.one("invoke_workflow planwarden")
    assert parent_of(workflow) == id_of(span) and trace_of(workflow) == 0x0AF7651916CD43DD8448EB211C80319C
    assert workflow.context is not None and workflow.context.trace_state.to_header() == "rojo=1"
    [about] = [
        about
        for about, _ in watching.points("mcp.server.operation.duration")
        if about["mcp.method.name"] == "tools/call"
    ]
    assert about == told


@requirement("telemetry:context")
@pytest.mark.parametrize("era", ERAS)
async def test_over_http_a_span_names_transport_and_session(
    tmp_path: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching()
    observer = Telemetry(watching.traces, watching.meters)

    def build_observer(*_: object, **__: object) -> Telemetry:
        return observer

    monkeypatch.setattr("planwarden.server.api.warden.build_observer", build_observer)
    async with serving(Settings(home=tmp_path)) as url, Client(url, mode=era) as client:
        result = await client.call_tool("search_tools", {})
        assert not result.is_error
    told = attributes(watching.one("tools/call search_tools"))
    assert told["network.transport"] == "tcp" and ("mcp.session.id" in told) == (era == "legacy")
    points = [about for about, _ in watching.points("mcp.server.operation.duration")]
    assert points and all("mcp.session.id" not in about and "jsonrpc.request.id" not in about for about in points)


@requirement("telemetry:hostile")
async def test_hostile_trace_context_counts_as_absent_and_only_what_is_well_formed_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watching = Watching()
    async with (
        observed(tmp_path, watching) as client,
        served(tmp_path, tools=Ledger().tools()) as running,
        Client(running.server) as unwatched,
    ):
        for meta, each in product(HOSTILE, (client, unwatched)):
            result = await each.call_tool("execute_plan", {"plan": STEPS}, meta=meta)  # pyright: ignore[reportArgumentType]  # hostile
            assert not result.is_error
    assert len(watching.named("invoke_workflow planwarden")) == len(HOSTILE)
    assert sum(len(record.getMessage()) for record in caplog.records) < 10_000
    good = {"traceparent": PARENT, "tracestate": "rojo=1,congo=2", "baggage": "userId=alice,serverNode=DF%2028;meta"}
    assert read_trace_context({**good, "progressToken": 1}) == good
    assert read_trace_context({"traceparent": PARENT, "baggage": ",".join(["a=1"] * 181)}) == {"traceparent": PARENT}
    assert read_trace_context(None) == {} and all("baggage" not in read_trace_context(meta) for meta in HOSTILE[:-1])


@requirement("telemetry:hostile")
async def test_names_that_a_client_invents_become_no_label(tmp_path: Path) -> None:
    watching = Watching()
    async with observed(tmp_path, watching) as client:
        for number in range(3):
            result = await client.call_tool(f"invented_{number}_" + "x" * 5_000, {})
            assert result.is_error
        with pytest.raises(MCPError):
            await client.get_prompt("invented")
    told = json.dumps([about for about, _ in watching.points("mcp.server.operation.duration")])
    assert "invented" not in told
    spans = watching.named("tools/call")
    assert len(spans) == 3 and all(len(str(attributes(span)["gen_ai.tool.name"])) == 128 for span in spans)
    assert {attributes(span)["error.type"] for span in spans} == {"tool_error"}
    [prompt] = watching.named("prompts/get")
    assert attributes(prompt)["error.type"] == attributes(prompt)["rpc.response.status_code"] == "-32602"
    assert prompt.status.status_code is StatusCode.ERROR and prompt.status.description is None


@requirement("telemetry:context")
async def test_a_downstream_call_adds_to_the_span_of_its_tool_and_is_measured(tmp_path: Path) -> None:
    place, watching = Place(tmp_path), Watching()
    place.serve(d="good")
    settings = load_settings(home=tmp_path, environment={})
    with anyio.fail_after(60):
        async with watching.warden(settings=settings) as w:
            await w.execute_plan(plan(tool_step("a", "d_meta"), tool_step("b", "d_fail")), wait_seconds=60)
    told = attributes(watching.one("execute_tool d_meta"))
    assert told["mcp.method.name"] == "tools/call" and told["gen_ai.tool.name"] == "d_meta"
    assert told["network.transport"] == "pipe" and str(told["mcp.protocol.version"]).startswith("202")
    points = {
        about["gen_ai.tool.name"]: about.get("error.type")
        for about, _ in watching.points("mcp.client.operation.duration")
    }
    assert points == {"meta": None, "fail": "tool_error"}


@requirement("telemetry:context")
async def test_baggage_of_a_request_reaches_downstream_servers(tmp_path: Path) -> None:
    place, watching = Place(tmp_path), Watching()
    place.serve(d="good")
    settings = load_settings(home=tmp_path, environment={})
    meta: Any = {"traceparent": PARENT, "tracestate": "rojo=1", "baggage": "tenant=7"}
    with anyio.fail_after(60):
        async with observed(tmp_path, watching, settings=settings) as client:
            result = await client.call_tool("execute_plan", {"plan": plan(tool_step("a", "d_meta"))}, meta=meta)
    sent, span = result.structured_content["steps"][0]["result"], watching.one("execute_tool d_meta")
    assert sent["baggage"] == "tenant=7" and sent["tracestate"] == "rojo=1"
    assert sent["traceparent"].startswith(f"00-0af7651916cd43dd8448eb211c80319c-{id_of(span):016x}-")


@requirement("telemetry:private")
async def test_spans_of_the_sdks_client_are_sent_with_conventional_names_and_without_messages() -> None:
    kept = InMemorySpanExporter()
    watching = Watching()
    watching.traces.add_span_processor(SimpleSpanProcessor(ScrubbingExporter(kept)))
    tracer = watching.traces.get_tracer("mcp-python-sdk")
    with (
        pytest.raises(ValueError),
        tracer.start_as_current_span("MCP send tools/call find", kind=SpanKind.CLIENT) as span,
    ):
        span.set_attribute("mcp.method.name", "tools/call")
        raise ValueError("my secret")
    with watching.traces.get_tracer("ours").start_as_current_span("MCP send as it is"):
        pass
    scrubbed, other = kept.get_finished_spans()
    assert (scrubbed.name, other.name) == ("tools/call find", "MCP send as it is")
    assert "secret" not in scrubbed.to_json() and "secret" in watching.spans[0].to_json()
    assert attributes(scrubbed)["error.type"] == "ValueError" and attributes(scrubbed)["gen_ai.tool.name"] == "find"
    assert _identity(scrubbed) == _identity(watching.spans[0])


def _identity(span: ReadableSpan) -> tuple[object, ...]:
    return trace_of(span), id_of(span), span.kind, span.start_time, span.end_time


@requirement("telemetry:metrics")
async def test_calls_of_a_provider_are_measured_and_their_tokens_counted() -> None:
    watching = Watching()
    script = [says("I will write it."), calls(("note", {"text": "x"}))]
    async with watching.warden(tools=Ledger().tools(), script=script) as w:
        await w.execute_plan(plan(model_step("a", "note")), goal="write")
    [(about, _)] = watching.points("gen_ai.client.operation.duration")
    assert about == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "custom",
        "gen_ai.request.model": "ScriptedModel",
        "planwarden.purpose": "step",
    }
    assert watching.counts("gen_ai.client.operation.duration") == [2]
    watching = Watching()
    async with watching.warden(tools=Ledger().tools()) as w:
        asked = await w.execute_plan(plan({"id": "a", "description": "think"}))
        [question] = asked.suspensions
        done = await w.submit_answer(asked.thread_id, question.suspension_id, {"content": "thought"})
        assert done.status == "completed"
    assert watching.points("gen_ai.client.operation.duration") == []
    assert watching.points("gen_ai.client.token.usage") == []
