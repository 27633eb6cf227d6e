"""Where spans and metrics go, which variables say so, and that a collector or an observer that fails harms nothing."""

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import RequestParamsMeta
from opentelemetry.metrics import MeterProvider, NoOpCounter, NoOpHistogram, NoOpMeter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, NoOpTracer, NoOpTracerProvider, TracerProvider
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.api.home import build_observer
from planwarden.server.telemetry.settings import TelemetrySettings
from tests.kit import MemoryStore, ScriptedModel, Settings, confirm, first_only, ok, plan, requirement, tool_step
from tests.server.telemetry.support import list_spans, spans_of
from tests.support.paths import MEASURED
from tests.support.receiver import Manner, never_reply, reply_with, send_garbage, serve_receiver
from tests.support.wardens import Ledger, PausingTool, calls, end_at_once, model_step, says, statuses

PROGRAM = """
import asyncio, sys, planwarden
async def main():
    async with planwarden.Warden(home=sys.argv[1]) as w:
        done = await w.execute_plan({"todoList": [{"id": "a", "description": "add", "requiredTools": ["calculator"],
            "toolCalls": [{"toolName": "calculator", "arguments": {"expression": "1+1"}}]}]})
        print(done.status)
asyncio.run(main())
"""


async def _run(home: Path, environment: dict[str, str]) -> str:
    done = await anyio.run_process(
        [sys.executable, "-c", PROGRAM, str(home)], env={**MEASURED, "PATH": "", "HOME": str(home), **environment}
    )
    assert done.stdout.decode() == "completed\n"
    return done.stderr.decode()


@pytest.mark.slow
@requirement("telemetry:variables")
async def test_variables_for_keys_names_and_resources_apply(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with serve_receiver(reply_with(200)) as receiver:
            base = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
            told = {
                "OTEL_EXPORTER_OTLP_HEADERS": "x-key=abc",
                "OTEL_SERVICE_NAME": "ours",
                "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test,service.version=7",
            }
            assert await _run(tmp_path, base | told) == ""
        assert {request.headers["x-key"] for request in receiver.received} == {"abc"}
        [body, *_] = [request.body for request in receiver.received if request.path == "/v1/traces"]
        [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
        found = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
        assert (found["service.name"], found["service.version"]) == ("ours", "7")
        assert found["deployment.environment.name"] == "test"


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP receiver over gRPC."""

    traces: list[ExportTraceServiceRequest] = field(default_factory=list[ExportTraceServiceRequest])
    keys: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    port: int = 0

    def Export(self, request: Any, context: Any) -> Any:
        self.keys.append(dict(context.invocation_metadata()))
        self.traces.append(request)
        return ExportTraceServiceResponse()


@contextmanager
def collecting() -> Generator[Collector]:
    import grpc

    collector = Collector()
    server: Any = grpc.server(ThreadPoolExecutor(2))
    # The generated module has no types.
    service: Any = trace_service_pb2_grpc
    service.add_TraceServiceServicer_to_server(collector, server)
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


@pytest.mark.slow
@requirement("telemetry:variables")
async def test_a_collector_receives_spans_over_grpc(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the extra otel-grpc is not installed")
    with anyio.fail_after(60), collecting() as collector:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=abc",
            "OTEL_METRICS_EXPORTER": "none",
        }
        assert await _run(tmp_path, environment) == ""
    names = {span.name for request in collector.traces for span in list_spans(request)}
    assert names == {"invoke_workflow planwarden", "planwarden.step a", "execute_tool calculator"}
    assert {keys["x-key"] for keys in collector.keys} == {"abc"}


@pytest.mark.slow
@requirement("telemetry:variables")
async def test_an_unsupported_protocol_is_named_and_nothing_is_sent(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with serve_receiver(reply_with(200)) as receiver:
            base = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
            said = await _run(tmp_path, base | {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"})
            assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL='http/json' is not supported" in said
        assert {request.path for request in receiver.received} == {"/v1/metrics"}
    with pytest.raises(InvalidArguments, match="http/json"):
        build_observer(
            TelemetrySettings(problems=("PROTOCOL='http/json' is not supported",), is_demanded=True), "caller"
        )


@pytest.mark.slow
@requirement("telemetry:variables")
def test_a_missing_extra_is_named() -> None:
    program = """
import sys
sys.modules["opentelemetry.exporter"] = None
from planwarden.server.api.home import build_observer
from planwarden.server.telemetry.settings import ExportTarget, TelemetrySettings
for protocol in ("grpc", "http/protobuf"):
    target = ExportTarget(url="http://127.0.0.1:1", protocol=protocol)
    print(build_observer(TelemetrySettings(traces=target), "caller"))
    try:
        build_observer(TelemetrySettings(traces=target, is_demanded=True), "caller")
    except Exception as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    for extra, (observer, refusal) in {"otel-grpc": lines[:2], "otel": lines[2:]}.items():
        assert f"pip install 'planwarden[{extra}]'" in done.stderr
        assert observer == "None" and f"planwarden[{extra}]" in refusal


TRACE = "0af7651916cd43dd8448eb211c80319c"
SECRET = "s3cr3t-key-of-the-collector"
ARGUMENT = "40000+2"


@pytest.mark.slow
@requirement("telemetry:harmless")
@pytest.mark.parametrize(
    "manner", first_only(never_reply, None, reply_with(503), reply_with(400), reply_with(401), send_garbage)
)
async def test_a_collector_that_fails_harms_no_execution_and_ends_no_later(
    tmp_path: Path, manner: Manner | None
) -> None:
    with anyio.fail_after(60), (tmp_path / "stderr").open("w+", encoding="utf-8") as errors:
        async with serve_receiver(manner or reply_with(200)) as receiver:
            port = receiver.port if manner is not None else 1
            environment = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
                "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}",
                "OTEL_BSP_SCHEDULE_DELAY": "10",
                "OTEL_METRIC_EXPORT_INTERVAL": "50",
            }
            if manner is not never_reply:
                # Otherwise each way to fail is tried again until the end of the process waits no longer.
                environment["OTEL_EXPORTER_OTLP_TIMEOUT"] = "0.2"
            command = ["-m", "planwarden.server.main", "--home", str(tmp_path), "serve"]
            server = StdioServerParameters(command=sys.executable, args=command, env=MEASURED | environment)
            async with Client(stdio_client(server, errlog=errors)) as client:
                for _ in range(5):
                    done = await ok(
                        client, "execute_plan", plan=plan(tool_step("a", "calculator", {"expression": ARGUMENT}))
                    )
                    assert done["status"] == "completed"
                if manner is not None:
                    await receiver.wait_for(1)
                    assert receiver.received[0].headers["authorization"] == SECRET
        errors.seek(0)
        said = errors.read()
    assert SECRET not in said and ARGUMENT not in said


@pytest.mark.slow
@requirement("telemetry:context")
async def test_a_request_and_its_execution_are_in_the_trace_of_its_meta_and_so_are_log_lines(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "import logging, planwarden\n"
        "@planwarden.tool(risk='read')\n"
        "def shout(words: str) -> str:\n"
        "    'Log it.'\n"
        "    logging.getLogger('planwarden.shout').warning('shouting')\n"
        "    return words\n"
    )
    settings = '[tools]\npython = ["tools.py"]\n[logging]\nformat = "json"\n'
    (tmp_path / "planwarden.toml").write_text(settings, encoding="utf-8")
    with anyio.fail_after(60), (tmp_path / "stderr").open("w+", encoding="utf-8") as errors:
        async with serve_receiver(reply_with(200)) as receiver:
            environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
            command = ["-m", "planwarden.server.main", "--home", str(tmp_path), "serve"]
            server = StdioServerParameters(command=sys.executable, args=command, env=MEASURED | environment)
            async with Client(stdio_client(server, errlog=errors)) as client:
                steps = plan(tool_step("a", "shout", {"words": "my secret"}), confirm("b"))
                meta = RequestParamsMeta(traceparent=f"00-{TRACE}-b7ad6b7169203331-01")
                answer = await client.call_tool("execute_plan", {"plan": steps}, meta=meta)
                asked = answer.structured_content
        errors.seek(0)
        lines = [json.loads(line) for line in errors.read().splitlines()]
    [line] = [line for line in lines if line["message"] == "shouting"]
    assert (line["execution_id"], line["thread_id"]) == (asked["executionId"], asked["threadId"])
    spans = {span.name: span for span in spans_of(receiver.received)}
    request, execution = spans["tools/call execute_plan"], spans["invoke_workflow planwarden"]
    assert request.parent_span_id.hex() == "b7ad6b7169203331" and execution.parent_span_id == request.span_id
    assert {span.trace_id.hex() for span in (request, execution)} == {line["trace_id"]} == {TRACE}
    assert len(line["span_id"]) == 16 and int(line["trace_flags"], 16) & 1
    assert "my secret" not in json.dumps(lines)


HOOKS = ("start_span", "get_span_context", "is_recording", "set_attribute", "set_status", "end", "add", "record")


class Broken:
    """Providers of which everything named `hook` raises."""

    def __init__(self, hook: str) -> None:
        self.hook = hook
        self.times = 0

    def check(self, name: str) -> None:
        if name == self.hook:
            self.times += 1
            raise RuntimeError(f"{self.hook} is broken")


def breaking(base: type[Any], broken: Broken, **made: Callable[..., object]) -> Any:
    """Returns a class like `base`, which does nothing, with hooks that may fail and methods that make what is given."""

    def method(name: str) -> Callable[..., object]:
        def call(self: object, *about: Any, **more: Any) -> object:
            broken.check(name)
            return made[name](*about[:1]) if name in made else getattr(base, name)(self, *about, **more)

        return call

    names = [name for name in {*HOOKS, *made} if hasattr(base, name)]
    return type(f"Broken{base.__name__}", (base,), {name: method(name) for name in names})


def break_providers(broken: Broken) -> tuple[TracerProvider, MeterProvider]:
    span, counter, histogram = (breaking(base, broken) for base in (NonRecordingSpan, NoOpCounter, NoOpHistogram))
    tracer = breaking(NoOpTracer, broken, start_span=lambda *_: span(INVALID_SPAN_CONTEXT))
    meter = breaking(NoOpMeter, broken, create_counter=counter, create_histogram=histogram)
    traces = breaking(NoOpTracerProvider, broken, get_tracer=lambda *_: tracer())
    return traces(), breaking(MeterProvider, broken, get_meter=meter)()


@requirement("telemetry:harmless")
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_failing_observer_changes_no_execution_and_keeps_no_program_from_ending(hook: str) -> None:
    broken, ledger, gate = Broken(hook), Ledger(), PausingTool()
    traces, meters = break_providers(broken)
    steps = plan(
        tool_step("a", "note", {"text": "x"}),
        tool_step("b", "broken", dependencies=[]),
        model_step("c", "note", dependencies=["a"]),
        tool_step("d", "erase", {"ids": [1]}, dependencies=["c"]),
    )
    script: list[JsonValue] = [calls(("note", {"text": "y"})), says("noted")]
    with anyio.fail_after(60):
        async with planwarden.Warden(
            settings=Settings(home=Path("/nonexistent")),
            model=ScriptedModel({"replies": script}),
            tools=[*ledger.tools(), gate.tool()],
            store=MemoryStore(),
            tracer_provider=traces,
            meter_provider=meters,
        ) as w:
            asked = await w.execute_plan(steps, wait_seconds=60)
            assert (asked.status, statuses(asked)["b"]) == ("suspended", "failed")
            [question] = asked.suspensions
            yes = planwarden.Decision(approved=True)
            done = await w.resume_execution(asked.thread_id, question.suspension_id, yes, wait_seconds=60)
            assert statuses(done)["d"] == "completed"
            end_at_once(w)
            await w.execute_plan(plan(tool_step("a", "gate")), wait_seconds=0)
            await gate.started.wait()
    assert ledger.lines == ["note x", "note y", "erase [1]"]
    assert broken.times or hook in ("is_recording", "record")
