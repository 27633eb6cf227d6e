"""MCP over Streamable HTTP, with a real server on a free port."""

import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx2
import pytest

from planwarden.agent.common.errors import UsageError
from planwarden.server.transports.http import MAX_BODY_BYTES, serve_http
from planwarden.tools.downstream.value_counter import MAX_VALUES
from tests.kit import Client, Settings, confirm, plan, requirement, tool_step
from tests.server.mcp.http_support import HEADERS, serving
from tests.server.mcp.support import ERAS, Era, approving, ids_of, ok, question_of

pytestmark = pytest.mark.anyio

CALCULATED = tool_step("a", "calculator", {"expression": "6*7"})


@pytest.mark.parametrize("era", ERAS)
async def test_a_plan_is_run_asked_about_and_resumed_after_a_restart(tmp_path: Path, era: Era) -> None:
    async with serving(Settings(home=tmp_path)) as url, Client(url, mode=era) as client:
        steps = plan(CALCULATED, confirm("b"))
        result = await client.call_tool("execute_plan", {"plan": steps})
        asked = result.structured_content
        assert asked["steps"][0]["result"] == {"result": 42}
    async with (
        serving(Settings(home=tmp_path)) as url,
        Client(url, mode=era, elicitation_callback=approving()) as client,
    ):
        assert ids_of(await ok(client, "get_execution", threadId=asked["threadId"])) == ids_of(asked)
        done = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})
        assert done["status"] == "completed"
        assert (await client.read_resource(f"planwarden://executions/{done['threadId']}")).contents


async def test_clients_of_both_eras_are_served_at_the_same_time(tmp_path: Path) -> None:
    async with serving(Settings(home=tmp_path)) as url, Client(url, mode="legacy") as old, Client(url) as new:
        assert (old.protocol_version, new.protocol_version) == ("2025-11-25", "2026-07-28")
        asked = await ok(old, "run_goal", goal="x")
        assert question_of(await ok(new, "get_execution", threadId=asked["threadId"]))["kind"] == "plan"


@pytest.mark.parametrize("path", ["/mcp", "/inbox/pair"])
async def test_a_connection_that_ends_in_the_middle_of_a_request_logs_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    async with serving(Settings(home=tmp_path)) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        kind = "application/json" if path == "/mcp" else "application/x-www-form-urlencoded"
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            f"Content-Type: {kind}",
            "Accept: application/json, text/event-stream",
            "MCP-Protocol-Version: 2026-07-28",
            "Mcp-Method: tools/list",
            "Content-Length: 500",
        ]
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send("\r\n".join([*lines, "", "half"]).encode())
        async with Client(url) as client:
            assert (await ok(client, "execute_plan", plan=plan(CALCULATED)))["status"] == "completed"
    assert [record for record in caplog.records if record.exc_info] == []


GATE = """
import anyio
import planwarden

STARTED, OPENED = anyio.Event(), anyio.Event()


@planwarden.tool(risk="read", effect="read")
async def gate() -> str:
    \"\"\"Waits.\"\"\"
    STARTED.set()
    await OPENED.wait()
    return "through"
"""


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_hangs_up_stops_nothing(tmp_path: Path, era: Era) -> None:
    file = tmp_path / f"gate_{era}.py"
    file.write_text(GATE)
    async with serving(Settings(home=tmp_path, python_files=(file,))) as url:
        gate = sys.modules[f"planwarden_tools_gate_{era}"]
        async with Client(url, mode=era) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "execute_plan", {"plan": plan(tool_step("a", "gate"), confirm("b"))})
            with anyio.fail_after(60):
                await gate.STARTED.wait()
            tasks.cancel_scope.cancel()
        gate.OPENED.set()
        async with Client(url, mode=era) as client:
            with anyio.fail_after(60):
                page = await ok(client, "list_suspensions")
                while not page["total"]:
                    page = await ok(client, "list_suspensions")
            execution = await ok(client, "get_execution", threadId=page["suspensions"][0]["threadId"])
            assert execution["steps"][0]["result"] == "through"


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with serving(Settings(home=tmp_path)) as url:
        async with httpx2.AsyncClient() as http:
            response = await http.post(url, content=b"x" * (MAX_BODY_BYTES + 1))
            assert response.status_code == 413
        async with Client(url) as client:
            assert (await ok(client, "execute_plan", plan=plan(CALCULATED)))["status"] == "completed"


@requirement("server:frames")
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_request_with_too_many_values_is_refused_before_it_is_parsed(tmp_path: Path, chunked: bool) -> None:
    many = b"[" + b"[]," * (MAX_VALUES // 2) + b"[]]"
    body = b'{"method":"tools/call","params":{"id":1,"x":' + many + b'},"jsonrpc":"2.0","id":"a7"}'

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with serving(Settings(home=tmp_path)) as url, httpx2.AsyncClient() as http:
        for _ in range(2):
            response = await http.post(url, content=chunks() if chunked else body, headers=HEADERS)
            assert response.status_code == 413
            answer = response.json()
            assert (answer["id"], answer["error"]["code"]) == ("a7", -32600)
            assert "too many values" in answer["error"]["message"]


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(UsageError, match="--port"):
        await serve_http(Settings(home=tmp_path), port=other.getsockname()[1])
