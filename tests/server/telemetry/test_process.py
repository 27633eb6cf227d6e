"""Real server processes under a collector: killed, resumed, and with a collector that does not do its part."""

import json
import sys
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import RequestParamsMeta

from tests.kit import confirm, ok, plan, requirement, tool_step
from tests.server.telemetry.support import spans_of
from tests.support.receiver import Manner, never_reply, reply_with, send_garbage, serve_receiver
from tests.support.slices import first_only

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
TRACE = "0af7651916cd43dd8448eb211c80319c"
SECRET = "s3cr3t-key-of-the-collector"
ARGUMENT = "40000+2"


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
            server = StdioServerParameters(command=sys.executable, args=command, env=environment)
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
            server = StdioServerParameters(command=sys.executable, args=command, env=environment)
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
