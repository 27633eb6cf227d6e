"""Whole MCP messages: over HTTP with their headers and without a socket, and as lines for a process over stdio."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.fuzz.corpus import CAPABILITIES, CLIENT, PLANS, VERSIONS, Document, requests
from tests.fuzz.entrance import Wrong, check_rpc
from tests.fuzz.mutation import ODD_TEXTS, Mutator
from tests.fuzz.office import Office, build_headers, build_meta, office, read_answer
from tests.support.forking.command import forked_command_line

PROCESS_S = 30.0
FOUND = 8 * 1024 * 1024
HEADERS = (b"Mcp-Session-Id", b"Last-Event-ID", b"Origin", b"Authorization", b"Content-Encoding", b"Cookie")


def make_message(mutator: Mutator, thread_id: str, suspension_id: str) -> tuple[str, str | None, Any]:
    """A message with a few changes; its method and name as they are in its headers."""
    listed = requests(thread_id, suspension_id)
    method, params = mutator.pick(listed)
    message: Document = {"jsonrpc": "2.0", "id": mutator.random.randrange(10**6), "method": method}
    version = mutator.pick(VERSIONS) if mutator.chance(0.2) else VERSIONS[0]
    message["params"] = {**params, "_meta": build_meta(mutator.pick(CAPABILITIES), version)}
    if method.startswith("notifications/"):
        del message["id"]
    changed = mutator.mutate(message, [found for _, found in listed])
    if mutator.chance(0.03):
        changed = [changed, message]
    return method, params.get("name") or params.get("uri") or params.get("taskId"), changed


class HttpFrames:
    """Posts messages, some with wrong headers, some to wrong methods of HTTP."""

    def __init__(self, found: Office) -> None:
        self._office = found

    async def send(self, mutator: Mutator) -> str:
        question = mutator.pick(self._office.questions)
        method, name, message = make_message(mutator, question["threadId"], question["suspensionId"])
        body = mutator.encode(message)
        headers = build_headers(method, name)
        if mutator.chance(0.2):
            self._spoil(mutator, headers)
        verb = mutator.pick(("GET", "DELETE", "PUT", "HEAD", "OPTIONS")) if mutator.chance(0.03) else "POST"
        mutator.sent = (verb, headers, body)
        try:
            request = self._office.http.build_request(verb, "/mcp", content=body, headers=headers)
        except (ValueError, TypeError, UnicodeEncodeError):
            return "cannot be sent"
        with anyio.move_on_after(1.0):
            # Only this far: `GET` and `subscriptions/listen` open streams, which do not end by themselves.
            return self._judge(await self._office.http.send(request))
        return "stream"

    def _judge(self, answer: httpx2.Response) -> str:
        if answer.status_code >= 500:
            raise Wrong(f"status {answer.status_code}: {answer.text[:500]}")
        if answer.headers.get("content-type", "").partition(";")[0] not in ("application/json", "text/event-stream"):
            return f"status {answer.status_code}"
        found = read_answer(answer)
        if found is None or "jsonrpc" not in found:
            return f"status {answer.status_code}"
        return check_rpc(found) if "method" not in found else "request"

    @staticmethod
    def _spoil(mutator: Mutator, headers: dict[bytes, bytes]) -> None:
        name: bytes = mutator.pick((*headers, *HEADERS))
        if mutator.chance(0.3):
            headers.pop(name, None)
        else:
            text: str = mutator.pick((*ODD_TEXTS, *VERSIONS, "tools/list", "tools/call", "gzip", "text/html", "*/*"))
            headers[name] = text.encode("utf-8", "surrogatepass")[:5_000]

    async def check_alive(self) -> None:
        await self._office.check_alive()


@asynccontextmanager
async def open_http(home: Path) -> AsyncGenerator[HttpFrames]:
    async with office(home) as found:
        yield HttpFrames(found)


class StdioProcess:
    """Lines for `planwarden serve`; its error output may hold no traceback."""

    def __init__(self, process: Process) -> None:
        self._process = process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        self._stdin, self._stderr = process.stdin, process.stderr
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._pings = 0
        self._log = b""

    async def send(self, mutator: Mutator) -> str:
        _, _, message = make_message(mutator, "t", "s")
        mutator.sent = body = mutator.encode(message)
        await self._stdin.send(body + b"\n")
        outcome = "silence"
        for answer in (await self._ask("tools/list"))[:-1]:
            outcome = "request" if "method" in answer else check_rpc(answer)
        if b"Traceback" in self._log or b"stood still" in self._log:
            log, self._log = self._log, b""
            raise Wrong(f"log: {log[-3_000:].decode(errors='replace')}")
        return outcome

    async def check_alive(self) -> None:
        call: Document = {"name": "execute_plan", "arguments": {"plan": PLANS[0], "options": {"waitSeconds": 20}}}
        answer = (await self._ask("tools/call", **call))[-1]
        if answer.get("result", {}).get("structuredContent", {}).get("status") != "completed":
            raise Wrong(f"an ordinary plan came to {str(answer)[:500]}")

    async def start(self) -> None:
        params: Document = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES[1], "clientInfo": CLIENT}
        await self._ask("initialize", **params)
        await self._stdin.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')

    async def read_log(self) -> None:
        async for chunk in self._stderr:
            self._log = (self._log + chunk)[-100_000:]

    async def _ask(self, method: str, **params: object) -> list[Document]:
        """Every message up to the answer."""
        self._pings += 1
        request_id, found = f"ping-{self._pings}", list[Document]()
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        await self._stdin.send(json.dumps(message).encode() + b"\n")
        with anyio.fail_after(PROCESS_S):
            while not found or found[-1].get("id") != request_id or "method" in found[-1]:
                found.append(json.loads(await self._lines.receive_until(b"\n", FOUND)))
        return found


@asynccontextmanager
async def open_stdio(home: Path) -> AsyncGenerator[StdioProcess]:
    command = forked_command_line("--home", str(home), "serve")
    (home / "planwarden.toml").write_text('[approvals]\nopen_inbox = "never"\n')
    async with await anyio.open_process(command) as process, anyio.create_task_group() as tasks:
        served = StdioProcess(process)
        tasks.start_soon(served.read_log)
        await served.start()
        await served.check_alive()
        yield served
        process.terminate()
        tasks.cancel_scope.cancel()
