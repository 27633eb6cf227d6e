"""Where spans and metrics go, and that each of OpenTelemetry's variables that the page names does something."""

import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.api.observer import build_observer
from planwarden.server.telemetry.settings import TelemetrySettings
from tests.requirements import requirement
from tests.server.telemetry.support import spans_of
from tests.support.receiver import Receiver, reply_with, serve_receiver
from tests.support.slices import first_only

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

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
    """Runs one plan in a process with these variables; returns its stderr."""
    done = await anyio.run_process(
        [sys.executable, "-c", PROGRAM, str(home)], env={"PATH": "", "HOME": str(home), **environment}
    )
    assert done.stdout.decode() == "completed\n"
    return done.stderr.decode()


def _resource(receiver: Receiver) -> dict[str, str]:
    [body, *_] = [request.body for request in receiver.received if request.path == "/v1/traces"]
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    return {found.key: found.value.string_value for found in resource.resource.attributes}


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
        found = _resource(receiver)
        assert (found["service.name"], found["service.version"]) == ("ours", "7")
        assert found["deployment.environment.name"] == "test"
        async with serve_receiver(reply_with(200)) as receiver:
            await _run(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"})
        assert _resource(receiver)["service.name"] == "planwarden"


@requirement("telemetry:variables")
@pytest.mark.parametrize(
    ("variables", "paths"),
    first_only(
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.0"}, {"/v1/metrics"}),
        ({"OTEL_METRICS_EXPORTER": "none"}, {"/v1/traces"}),
        ({"OTEL_SDK_DISABLED": "true"}, set[str]()),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, {"/v1/metrics"}),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, set[str]()),
    ),
)
async def test_variables_for_samplers_and_switches_apply(
    tmp_path: Path, variables: dict[str, str], paths: set[str]
) -> None:
    with anyio.fail_after(60):
        async with serve_receiver(reply_with(200)) as receiver:
            base = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
            assert await _run(tmp_path, base | variables) == ""
    assert {request.path for request in receiver.received} == paths


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer):
    """An OTLP receiver over gRPC; both services call the same method, which looks at the type of the request."""

    traces: list[ExportTraceServiceRequest] = field(default_factory=list[ExportTraceServiceRequest])
    metrics: list[Any] = field(default_factory=list[Any])
    keys: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    port: int = 0

    def Export(self, request: Any, context: Any) -> Any:
        self.keys.append(dict(context.invocation_metadata()))
        if isinstance(request, ExportTraceServiceRequest):
            self.traces.append(request)
            return ExportTraceServiceResponse()
        self.metrics.append(request)
        return ExportMetricsServiceResponse()


@contextmanager
def collecting() -> Generator[Collector]:
    import grpc

    collector = Collector()
    server: Any = grpc.server(ThreadPoolExecutor(2))
    # The generated modules have no types.
    services: tuple[Any, Any] = (trace_service_pb2_grpc, metrics_service_pb2_grpc)
    services[0].add_TraceServiceServicer_to_server(collector, server)
    services[1].add_MetricsServiceServicer_to_server(collector, server)
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


@requirement("telemetry:variables")
async def test_a_collector_receives_spans_and_metrics_over_grpc(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="the extra otel-grpc is not installed")
    with anyio.fail_after(60), collecting() as collector:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=abc",
        }
        assert await _run(tmp_path, environment) == ""
    names = {
        span.name
        for request in collector.traces
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert names == {"invoke_workflow planwarden", "planwarden.step a", "execute_tool calculator"}
    assert collector.metrics and {keys["x-key"] for keys in collector.keys} == {"abc"}


@requirement("telemetry:variables")
async def test_an_unsupported_protocol_is_named_and_nothing_is_sent(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with serve_receiver(reply_with(200)) as receiver:
            base = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
            said = await _run(tmp_path, base | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})
            assert "OTEL_EXPORTER_OTLP_PROTOCOL='http/json' is not supported" in said
            assert await _run(tmp_path, base | {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}) != ""
        assert {request.path for request in receiver.received} == {"/v1/metrics"} and not spans_of(receiver.received)
    with pytest.raises(InvalidArguments, match="http/json"):
        build_observer(
            TelemetrySettings(problems=("PROTOCOL='http/json' is not supported",), is_demanded=True), "caller"
        )


@requirement("telemetry:variables")
@pytest.mark.parametrize(("protocol", "extra"), [("grpc", "otel-grpc"), ("http/protobuf", "otel")])
def test_a_missing_extra_is_named(protocol: str, extra: str) -> None:
    program = f"""
import sys
sys.modules["opentelemetry.exporter"] = None
from planwarden.server.api.observer import build_observer
from planwarden.server.telemetry.settings import ExportTarget, TelemetrySettings
target = ExportTarget(url="http://127.0.0.1:1", protocol={protocol!r})
print(build_observer(TelemetrySettings(traces=target), "caller"))
try:
    build_observer(TelemetrySettings(traces=target, is_demanded=True), "caller")
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"pip install 'planwarden[{extra}]'" in done.stderr
    assert done.stdout.splitlines()[0] == "None" and f"planwarden[{extra}]" in done.stdout.splitlines()[1]


@requirement("telemetry:variables")
def test_a_broken_package_is_not_reported_as_missing() -> None:
    program = """
import sys, types
from planwarden.server.api.observer import build_observer
from planwarden.server.telemetry.settings import ExportTarget, TelemetrySettings
wanted = TelemetrySettings(traces=ExportTarget(url="http://127.0.0.1:1"), is_demanded=True)
sys.modules["opentelemetry.sdk.trace"] = types.ModuleType("opentelemetry.sdk.trace")
for _ in range(2):
    try:
        build_observer(wanted, "caller")
    except Exception as error:
        print(type(error).__name__, error)
    sys.modules["planwarden.server.telemetry.export"] = None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    broken, ours = done.stdout.splitlines()
    assert broken.startswith("InvalidArguments [otel] endpoint fails because OpenTelemetry cannot be imported (cannot")
    assert "needs an extra" not in broken and "pip install --upgrade 'planwarden[otel]'" in broken
    assert ours.startswith("ModuleNotFoundError") and "planwarden.server.telemetry.export" in ours
