"""What is observed: spans below what caused them, across processes, and numbers, without anybody's data."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import planwarden
from planwarden.agent.runtime.adoption import UNLIMITED_S
from planwarden.server.mcp.frames import read_trace_context
from planwarden.server.telemetry.settings import TelemetrySettings
from planwarden.server.telemetry.telemetry import ScrubbingExporter, Telemetry
from tests.harness.team import ASK, MAIL, SLOW, Gate, SilentStore, Team, answer, start
from tests.kit import Client, Engine, Ledger, Settings, SqliteStore, load_settings, plan, requirement, served, tool_step
from tests.server.telemetry.support import Watching, attributes, id_of, parent_of, trace_of
from tests.storage.suite import LEASE_S, BackEnd
from tests.support.wardens import calls, end_at_once, model_step, says
from tests.tools.downstream.support import Place

YES = planwarden.Decision(approved=True)
WORKFLOW = "invoke_workflow planwarden"


@requirement("telemetry:spans")
async def test_an_execution_is_a_tree_of_workflow_step_model_call_and_tool_call() -> None:
    watching = Watching()
    script = [says("I will write it."), calls(("note", {"text": "x"}))]
    async with watching.warden(tools=Ledger().tools(), script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "note")), goal="write")
    workflow, step = watching.one(WORKFLOW), watching.one("planwarden.step a")
    tool, chats = watching.one("execute_tool note"), watching.named("chat ScriptedModel")
    assert attributes(workflow) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "planwarden",
        "gen_ai.conversation.id": execution.thread_id,
        "planwarden.execution.id": execution.execution_id,
        "planwarden.execution.status": "completed",
    }
    assert attributes(step)["planwarden.step.validation"] == "passed"
    assert attributes(tool)["gen_ai.tool.name"] == "note" and attributes(tool)["gen_ai.tool.call.id"] == "a:1"
    assert [attributes(chat)["gen_ai.operation.name"] for chat in chats] == ["chat", "chat"]
    assert workflow.parent is None and parent_of(step) == id_of(workflow)
    assert {parent_of(found) for found in (tool, *chats)} == {id_of(step)}
    assert {trace_of(span) for span in watching.spans} == {trace_of(workflow)}


@requirement("telemetry:private")
async def test_spans_hold_arguments_only_when_configured() -> None:
    step = plan(tool_step("a", "note", {"text": "my secret"}), tool_step("b", "broken"))
    quiet, frank = Watching(), Watching()
    async with quiet.warden(tools=Ledger().tools()) as w:
        await w.execute_plan(step, goal="my secret goal")
    told = "".join(span.to_json() for span in quiet.spans)
    assert "secret" not in told and "on fire" not in told
    assert attributes(quiet.one("execute_tool broken"))["error.type"] == "tool_error"
    assert quiet.one("execute_tool broken").status.status_code is trace.StatusCode.ERROR
    asked = Settings(home=Path("/nonexistent"), observation=TelemetrySettings(record_arguments=True))
    async with frank.warden(tools=Ledger().tools(), settings=asked) as w:
        await w.execute_plan(step)
    assert attributes(frank.one("execute_tool note"))["gen_ai.tool.call.arguments"] == '{"text": "my secret"}'


@requirement("telemetry:resume")
async def test_a_waiting_execution_continues_in_another_process_in_the_same_trace(tmp_path: Path) -> None:
    first, second = Watching(), Watching()
    store = await anyio.to_thread.run_sync(SqliteStore.open, tmp_path / "x.db")
    async with first.warden(tools=Ledger().tools(), store=store) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})), goal="erase")
    await store.close()
    assert [span.name for span in first.spans] == ["planwarden.step a", WORKFLOW]
    assert attributes(first.one(WORKFLOW))["planwarden.execution.status"] == "suspended"

    store = await anyio.to_thread.run_sync(SqliteStore.open, tmp_path / "x.db")
    async with second.warden(tools=Ledger().tools(), store=store) as w:
        await w.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, YES)
    await store.close()
    resumed = second.one(WORKFLOW)
    assert {trace_of(span) for span in (*first.spans, *second.spans)} == {trace_of(first.spans[0])}
    assert parent_of(resumed) == id_of(first.one(WORKFLOW))
    assert attributes(resumed)["planwarden.execution.resumed"] is True
    assert second.one("execute_tool erase").status.is_ok


async def test_a_refused_execution_leaves_no_span_and_closing_ends_open_spans() -> None:
    watching, started = Watching(), anyio.Event()

    @planwarden.tool(name="stuck", risk="read", effect="read")
    async def stuck() -> str:
        """Never ends."""
        started.set()
        await anyio.sleep_forever()
        return ""

    with anyio.fail_after(60):
        async with watching.warden(tools=[stuck]) as w:
            end_at_once(w)
            going = await w.execute_plan(plan(tool_step("a", "stuck")), wait_seconds=0)
            await started.wait()
            with pytest.raises(planwarden.PlanwardenError):
                await w.execute_plan(plan(tool_step("a", "stuck")), thread_id=going.thread_id, wait_seconds=0)
    assert attributes(watching.one(WORKFLOW))["planwarden.interrupted"] is True
    assert attributes(watching.one("execute_tool stuck"))["planwarden.interrupted"] is True


@requirement("telemetry:metrics", "telemetry:questions")
async def test_executions_calls_questions_and_failures_are_counted_once() -> None:
    watching = Watching()
    script = [says("I will write it."), calls(("note", {"text": "x"}))]
    async with watching.warden(tools=Ledger().tools(), script=script) as w:
        await w.execute_plan(plan(model_step("a", "note"), tool_step("b", "broken")), goal="write")
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
        no = planwarden.Decision(approved=False)
        await w.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, no)
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
        await w.cancel_execution(asked.thread_id)
    counted = {name: watching.values(f"planwarden.{name}") for name in ("executions", "tool.calls", "questions")}
    assert counted == {
        "executions": {"failed": 1, "rejected": 1, "cancelled": 1},
        "tool.calls": {"effect": 1, "read tool_error": 1},
        "questions": {"approval human asked": 2, "approval human rejected": 1, "approval human withdrawn": 1},
    }
    assert watching.points("planwarden.validation.failures") == [
        ({"planwarden.validation.mode": "strict", "planwarden.validation.enforced": True}, 1)
    ]


@requirement("telemetry:off")
async def test_without_configuration_nothing_is_imported_or_stored() -> None:
    program = """
import asyncio, sys, planwarden
from planwarden.storage.sqlite.store import MemoryStore
from planwarden.server.settings.configuration import Settings
from pathlib import Path
async def main():
    store = MemoryStore()
    async with planwarden.Warden(settings=Settings(home=Path('/nonexistent')), store=store) as w:
        done = await w.execute_plan({"todoList": [{"id": "a", "description": "add", "requiredTools": ["calculator"],
            "toolCalls": [{"toolName": "calculator", "arguments": {"expression": "1+1"}}]}]})
        assert done.status == "completed"
        [first, *_] = await store.read(done.execution_id)
        assert first.event.traceparent is None
asyncio.run(main())
print([name for name in sys.modules if name.startswith(("opentelemetry", "planwarden.server.telemetry."))])
"""
    done = await anyio.run_process([sys.executable, "-c", program], stderr=subprocess.STDOUT)
    assert done.stdout.decode().strip() == "['planwarden.server.telemetry.settings']"


@pytest.mark.parametrize(
    ("toml", "environment", "traces", "metrics"),
    [
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1/"}, "http://c:1/v1/traces", "http://c:1/v1/metrics"),
        ('[otel]\nendpoint="http://f:1"', {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1"}, "http://c:1/v1/traces", "*"),
        ('[otel]\nendpoint="http://f:1"', {"OTEL_SDK_DISABLED": "true"}, None, None),
        ('[otel]\nendpoint="http://f:1"', {"OTEL_METRICS_EXPORTER": "none"}, "http://f:1/v1/traces", None),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://c:1", "*"),
        ('[otel]\nendpoint="http://f:1"\nprotocol="grpc"', {}, "http://f:1", "http://f:1"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, None, None),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_TRACES_EXPORTER": "console"}, None, "*"),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:1/x"}, "http://t:1/x", None),
    ],
)
def test_the_variables_win_over_the_file(
    tmp_path: Path, toml: str, environment: dict[str, str], traces: str | None, metrics: str | None
) -> None:
    (tmp_path / "planwarden.toml").write_text(toml, encoding="utf-8")
    found = load_settings(home=tmp_path, environment=environment).observation
    assert (found.traces and found.traces.url) == traces
    assert (found.metrics and found.metrics.url) == metrics or (metrics == "*" and found.metrics is not None)


def test_log_lines_are_json_when_configured() -> None:
    program = """
import logging
from planwarden.server.telemetry.logs import log_to_stderr
from planwarden.server.telemetry.settings import TelemetrySettings
logging.basicConfig(level=logging.ERROR, format="planwarden: %(message)s")
log = logging.getLogger("planwarden.agent.runtime.run")
for level in (None, "info"):
    log_to_stderr(TelemetrySettings(log_format="json", log_level=level))
    log.info(f"told at {level}")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("two\\nlines")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.stdout == "" and [line["message"] for line in lines] == ["told at info", "two\nlines"]
    assert lines[-1]["level"] == "error" and lines[-1]["logger"] == "planwarden.agent.runtime.run"
    assert "ZeroDivisionError" in lines[-1]["exception"] and lines[-1]["time"].endswith("+00:00")


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
    assert read_trace_context({**good, "baggage": "a=1", "progressToken": 1}) == good and read_trace_context({}) == {}
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


TAKEOVERS, WAKE_UPS = "planwarden.takeover.delay", "planwarden.wakeup.delay"


class Fleet(Team):
    """One store, and engines that are observed."""

    def __init__(self, back_end: BackEnd, folder: Path) -> None:
        super().__init__(back_end, folder)
        self.gate = Gate()

    @asynccontextmanager
    async def watch(
        self, *, front: bool = False, is_held: bool = False, is_silent: bool = False
    ) -> AsyncGenerator[tuple[Engine, Watching]]:
        """A front, or an engine that runs what it finds; its tool `slow` may be held at the gate."""
        watching = Watching()
        observer = Telemetry(watching.traces, watching.meters)
        async with self.process(
            self.gate if is_held else None,
            on=SilentStore if is_silent else lambda store: store,
            adopts=not front,
            executes=not front,
            observer=observer,
        ) as engine:
            yield engine, watching


@pytest.fixture
def fleet(back_end: BackEnd, tmp_path: Path) -> Fleet:
    return Fleet(back_end, tmp_path)


@requirement("telemetry:handovers")
async def test_a_takeover_from_a_silent_process_is_counted_with_the_time_since_it_renewed(fleet: Fleet) -> None:
    async with fleet.watch(is_held=True, is_silent=True) as (owner, watched), fleet.watch() as (other, watching):
        began, passed_s = fleet.clock.steady(), 0.0
        await start(owner, SLOW)
        await fleet.gate.is_reached.wait()
        fleet.clock.advance(LEASE_S)
        while not watching.points(TAKEOVERS):
            passed_s = fleet.clock.steady() - began
            await other.tick()
            await anyio.lowlevel.checkpoint()
            fleet.clock.advance(UNLIMITED_S)
        [(labels, after_s)] = watching.points(TAKEOVERS)
        assert labels == {"planwarden.takeover.owner": "silent"}
        assert after_s == pytest.approx(passed_s) and watching.counts(TAKEOVERS) == [1]
        assert watched.points(TAKEOVERS) == [] and watching.points(WAKE_UPS) == []


@requirement("telemetry:handovers")
async def test_a_decision_that_a_front_stored_is_counted_where_the_execution_goes_on(fleet: Fleet) -> None:
    async with fleet.watch(front=True) as (front, seen):
        async with fleet.watch() as (worker, _):
            running = await start(front, ASK, MAIL)
            await worker.wait(running, 60)
            while not (await front.find(running.execution_id)).open_suspensions:
                await worker.tick()
                await anyio.lowlevel.checkpoint()
        await answer(front, running)
        fleet.clock.advance(3.0)
        async with fleet.watch() as (worker, watching):
            while not watching.points(WAKE_UPS):
                await worker.tick()
                await anyio.lowlevel.checkpoint()
            assert watching.points(WAKE_UPS) == [({}, pytest.approx(3.0))] and watching.counts(WAKE_UPS) == [1]
            assert watching.points(TAKEOVERS) == [] and seen.points(WAKE_UPS) == []
