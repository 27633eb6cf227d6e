"""What is observed: spans below the request that caused them, across processes, and numbers, without anybody's data."""

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import planwarden
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.telemetry.settings import TelemetrySettings
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import MemoryStore, requirement
from tests.server.telemetry.support import Watching, attributes, id_of, parent_of, trace_of
from tests.support.receiver import reply_with, serve_receiver
from tests.support.wardens import Ledger, calls, end_at_once, model_step, plan, says, tool_step

pytestmark = pytest.mark.anyio
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


@requirement("telemetry:resume")
async def test_an_interrupted_read_runs_again_in_the_same_trace(tmp_path: Path) -> None:
    first, second, started, opened = Watching(), Watching(), anyio.Event(), anyio.Event()

    @planwarden.tool(name="look", risk="read", effect="read")
    async def look() -> str:
        """Look at it."""
        started.set()
        await opened.wait()
        return "seen"

    store = await anyio.to_thread.run_sync(SqliteStore.open, tmp_path / "x.db")
    with anyio.fail_after(60):
        async with first.warden(tools=[look], store=store) as w:
            end_at_once(w)
            going = await w.execute_plan(plan(tool_step("a", "look")), wait_seconds=0)
            await started.wait()
        await store.close()
        opened.set()
        store = await anyio.to_thread.run_sync(SqliteStore.open, tmp_path / "x.db")
        async with second.warden(tools=[look], store=store) as w:
            engine = w.service.engine
            done = await engine.wait(await engine.find(going.execution_id), 60)
            assert done.status == "completed"
        await store.close()
    assert attributes(first.one("execute_tool look"))["planwarden.interrupted"] is True
    again = second.one("execute_tool look")
    assert again.status.is_ok and trace_of(again) == trace_of(first.one("execute_tool look"))


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
from planwarden.storage.sqlite.memory import MemoryStore
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


@requirement("telemetry:off")
async def test_a_collector_receives_spans_and_metrics_over_http(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with serve_receiver(reply_with(200)) as receiver:
            (tmp_path / "planwarden.toml").write_text(
                f'[otel]\nendpoint = "http://127.0.0.1:{receiver.port}"\n', encoding="utf-8"
            )
            settings = load_settings(home=tmp_path, environment={"OTEL_SERVICE_NAME": "ours"})
            async with planwarden.Warden(settings=settings, store=MemoryStore(), tools=Ledger().tools()) as w:
                await w.execute_plan(plan(tool_step("a", "note", {"text": "x"})))
    bodies = {request.path: request.body for request in receiver.received}
    assert set(bodies) == {"/v1/traces", "/v1/metrics"}
    [spans] = ExportTraceServiceRequest.FromString(bodies["/v1/traces"]).resource_spans[0].scope_spans
    assert spans.scope.name == "planwarden" and spans.schema_url == "https://opentelemetry.io/schemas/1.41.0"
    assert {span.name for span in spans.spans} == {WORKFLOW, "planwarden.step a", "execute_tool note"}
    [metrics] = ExportMetricsServiceRequest.FromString(bodies["/v1/metrics"]).resource_metrics[0].scope_metrics
    assert "planwarden.executions" in {metric.name for metric in metrics.metrics}
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@pytest.mark.parametrize(
    ("toml", "environment", "traces", "metrics"),
    [
        ("", {}, None, None),
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
