"""Whole MCP messages: over HTTP with their headers, and over standard input as lines, both without a process."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
from mcp.server.stdio import stdio_server

from tests.fuzz.corpus import CAPABILITIES, CLIENT, PLANS, VERSIONS, Document, requests
from tests.fuzz.entrance import Wrong, check_rpc
from tests.fuzz.mutation import ODD_TEXTS, Mutator
from tests.fuzz.office import Office, build_headers, build_meta, office, read_answer
from tests.server.mcp.support import served
from tests.support.wardens import Ledger

ANSWER_S = 20.0
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


class Pipe:
    """Both ends of standard input and output, as the SDK's transport reads and writes them: lines of text."""

    def __init__(self) -> None:
        self._to_server, self._lines = anyio.create_memory_object_stream[str](1)
        self._answers, self._from_server = anyio.create_memory_object_stream[str](10_000)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._lines.__aiter__()

    async def write(self, text: str) -> None:
        self._answers.send_nowait(text)

    async def flush(self) -> None:
        """Nothing is kept back."""

    async def put(self, data: bytes) -> None:
        """Sends bytes and the end of the line, as the transport decodes them."""
        for line in f"{data.decode('utf-8', 'replace')}\n".splitlines(keepends=True):
            await self._to_server.send(line)

    async def take(self, request_id: object) -> list[Document]:
        """Every message up to the answer to this request."""
        found: list[Document] = []
        with anyio.fail_after(ANSWER_S):
            while True:
                message = json.loads(await self._from_server.receive())
                found.append(message)
                if message.get("id") == request_id and "method" not in message:
                    return found

    def close(self) -> None:
        for stream in (self._to_server, self._lines, self._answers, self._from_server):
            stream.close()


class StdioFrames:
    """Writes lines, each followed by a request that shows that the server has read it and still answers."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._pings = 0

    async def send(self, mutator: Mutator) -> str:
        _, _, message = make_message(mutator, "t", "s")
        body = mutator.encode(message)
        mutator.sent = body
        await self._pipe.put(body)
        outcome = "silence"
        for answer in (await self._ask("tools/list"))[:-1]:
            outcome = "request" if "method" in answer else check_rpc(answer)
        return outcome

    async def check_alive(self) -> None:
        call: Document = {"name": "execute_plan", "arguments": {"plan": PLANS[0], "options": {"waitSeconds": 20}}}
        answer = (await self._ask("tools/call", **call))[-1]
        if answer.get("result", {}).get("structuredContent", {}).get("status") != "completed":
            raise Wrong(f"an ordinary plan came to {str(answer)[:500]}")

    async def start(self) -> None:
        params: Document = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES[1], "clientInfo": CLIENT}
        await self._ask("initialize", **params)
        await self._pipe.put(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

    async def _ask(self, method: str, **params: Any) -> list[Document]:
        self._pings += 1
        request_id = f"ping-{self._pings}"
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        await self._pipe.put(json.dumps(message).encode())
        return await self._pipe.take(request_id)


@asynccontextmanager
async def open_stdio(home: Path) -> AsyncGenerator[StdioFrames]:
    pipe = Pipe()
    file = cast("anyio.AsyncFile[str]", pipe)
    async with served(home, tools=Ledger().tools()) as found, anyio.create_task_group() as tasks:

        async def serve() -> None:
            # The SDK serves on streams that are not the process's own only here.
            server = found.server._lowlevel_server  # pyright: ignore[reportPrivateUsage]
            async with stdio_server(file, file) as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())

        tasks.start_soon(serve)
        frames = StdioFrames(pipe)
        await frames.start()
        await frames.check_alive()
        yield frames
        tasks.cancel_scope.cancel()
    pipe.close()
