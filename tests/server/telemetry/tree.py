"""One execution over four processes, two of them killed, watched by a collector; and its trace as text.

`python -m tests.server.telemetry.tree` writes the tree into docs/observability.md, where a test looks for it.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import RequestParamsMeta
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.server.mcp.support import approving, ids_of, ok
from tests.server.telemetry.support import spans_of
from tests.support.paths import DOCS
from tests.support.receiver import reply_with, serve_receiver
from tests.support.wardens import confirm, plan, tool_step
from tests.tools.downstream.support import Place

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
PAGE = DOCS / "observability.md"
BEGIN, END = "<!-- tree: written by `python -m tests.server.telemetry.tree` -->\n```\n", "```\n<!-- /tree -->"
SHOWN = (
    "planwarden.execution.status",
    "planwarden.execution.resumed",
    "planwarden.step.status",
    "planwarden.suspension.outcome",
    "planwarden.tool.recovered",
    "error.type",
)
TOOLS = '''
"""A tool during which the process is killed."""

import os
import signal

from opentelemetry import trace

import planwarden


@planwarden.tool(risk="read", effect="effect")
def send(to: str) -> str:
    """Send a letter."""
    trace.get_tracer_provider().force_flush()
    os.kill(os.getpid(), signal.SIGKILL)
    return to


@planwarden.tool(risk="read", effect="read")
def process() -> int:
    """Returns the process that runs it."""
    trace.get_tracer_provider().force_flush()
    return os.getpid()
'''
PROGRAM = """
import asyncio, sys, planwarden
async def main(home, thread_id, suspension_id):
    async with planwarden.Warden(home=home) as warden:
        decision = planwarden.Decision(approved=True, content={"happened": True})
        print((await warden.resume_execution(thread_id, suspension_id, decision)).status)
asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Told:
    """What a collector received, by the process that sent it."""

    spans: list[Span] = field(default_factory=list[Span])
    errors: str = ""
    """What the servers wrote to stderr."""

    @property
    def trace(self) -> list[Span]:
        """The spans of the execution's trace."""
        return [span for span in self.spans if span.trace_id.hex() == TRACE]


async def killed_twice(home: Path) -> Told:
    """One execution: killed while a question is open, killed during a call, taken over, and finished by a program."""
    place = Place(home, settings='[tools]\npython = ["tools.py"]\n\n[servers.d]\ntrusted = true\n')
    place.serve(d="good")
    (home / "tools.py").write_text(TOOLS, encoding="utf-8")
    steps = plan(
        tool_step("look", "d_meta"), tool_step("who", "process"), confirm("ask"), tool_step("tell", "send", {"to": "x"})
    )
    with anyio.fail_after(60), (home / "stderr").open("w+", encoding="utf-8") as errors:
        async with serve_receiver(reply_with(200)) as receiver:
            environment = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
                "OTEL_BSP_SCHEDULE_DELAY": "20",
            }
            command = ["-m", "planwarden.server.main", "--home", str(home), "serve"]
            server = StdioServerParameters(command=sys.executable, args=command, env=environment)
            async with Client(stdio_client(server, errlog=errors)) as client:
                meta = RequestParamsMeta(traceparent=f"00-{TRACE}-{PARENT}-01")
                result = await client.call_tool("execute_plan", {"plan": steps}, meta=meta)
                asked = result.structured_content
                assert asked["status"] == "suspended", asked
                while "tools/call execute_plan" not in {span.name for span in spans_of(receiver.received)}:
                    await receiver.wait_for(len(receiver.received) + 1)
                os.kill(asked["steps"][1]["result"], signal.SIGKILL)
            decision = {"approved": True}
            async with Client(stdio_client(server, errlog=errors), elicitation_callback=approving()) as client:
                try:
                    await client.call_tool("resume_execution", {**ids_of(asked), "decision": decision})
                    raise AssertionError("the server outlived the call")
                except MCPError:
                    pass
            async with Client(stdio_client(server, errlog=errors)) as client:
                asked = await ok(client, "get_execution", threadId=asked["threadId"])
                while asked["status"] == "running":
                    asked = await ok(client, "get_execution", threadId=asked["threadId"])
            command = [sys.executable, "-c", PROGRAM, str(home), *ids_of(asked).values()]
            ended = await anyio.run_process(command, env={**os.environ, **environment}, stderr=errors)
            assert ended.stdout.decode().strip() == "completed"
            errors.seek(0)
            return Told(spans_of(receiver.received), errors.read())


def tree(spans: Sequence[Span]) -> str:
    """Returns the spans as lines, children below their parents in the order of their start, without ids and times."""
    known = {span.span_id for span in spans}
    lines: list[str] = []

    def write(above: bytes, depth: int) -> None:
        for span in sorted(
            (span for span in spans if span.parent_span_id == above), key=lambda span: span.start_time_unix_nano
        ):
            lines.append("  " * depth + _line(span, {found.span_id: found.name for found in spans}))
            write(span.span_id, depth + 1)

    for above in dict.fromkeys(
        span.parent_span_id for span in sorted(spans, key=lambda span: span.start_time_unix_nano)
    ):
        if above not in known:
            write(above, 0)
    return "\n".join(lines) + "\n"


def _line(span: Span, names: dict[bytes, str]) -> str:
    attributes = {found.key: found.value for found in span.attributes}
    told = [
        f"{name.rpartition('.')[2]}={attributes[name].string_value or str(attributes[name].bool_value).lower()}"
        for name in SHOWN
        if name in attributes
    ]
    links = [f"-> {names.get(link.span_id, 'request')}" for link in span.links]
    failed = ["ERROR"] if span.status.code == Status.StatusCode.STATUS_CODE_ERROR else []
    return "  ".join([span.name, *told, *failed, *links])


def written(page: str, text: str) -> str:
    """Returns the page with the tree in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{text}{END}{after}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        told = anyio.run(killed_twice, Path(folder))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), tree(told.trace)), encoding="utf-8")
    print(tree(told.trace))
