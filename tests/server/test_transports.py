"""Requests that outlast the server or break off, and sessions of the older protocol: each caller has only so many."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from starlette.types import Message, Receive, Scope, Send

from planwarden.server.transports.middleware import MAX_SESSIONS, CutOffMiddleware, SessionCapMiddleware
from tests.harness.clients import build_headers, build_meta
from tests.kit import Settings, requirement
from tests.server.mcp.http_support import HEADERS, LIST, bearing, serving, token_for


async def _cut_off(*answered: Message) -> list[Message]:
    """What a request receives whose handler sends `answered`, and is cancelled while it waits."""
    sent: list[Message] = []
    waiting = asyncio.Event()

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        for message in answered:
            await send(message)
        waiting.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        raise AssertionError("nobody asks for more")

    async def send(message: Message) -> None:
        sent.append(message)

    task = asyncio.create_task(CutOffMiddleware(handle)({"type": "http"}, receive, send))
    await waiting.wait()
    task.cancel()
    await task
    return sent


async def test_a_request_that_is_cut_off_is_told_that_the_server_ends_unless_its_answer_has_begun() -> None:
    start, body = await _cut_off()
    assert start["status"] == 503 and b"the server is shutting down" in body["body"]
    begun: Message = {"type": "http.response.start", "status": 200, "headers": []}
    assert await _cut_off(begun) == [begun]


async def test_a_body_that_is_not_http_gets_400_and_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with anyio.fail_after(60):
        async with serving(Settings(home=tmp_path)) as url:
            place = urlsplit(url)
            async with await anyio.connect_tcp("127.0.0.1", place.port or 0) as connection:
                head = f"POST / HTTP/1.1\r\nHost: {place.netloc}\r\nTransfer-Encoding: chunked\r\n\r\n"
                await connection.send(f"{head}not a chunk\r\n".encode())
                answer = await connection.receive()
    assert answer.startswith(b"HTTP/1.1 400") and not [record for record in caplog.records if record.exc_info]


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


@dataclass(frozen=True)
class Caller:
    """Sends requests of the older protocol with a token."""

    client: httpx2.AsyncClient
    token: str

    def headers(self, session: str | None = None) -> dict[str, str]:
        return {**HEADERS, **bearing(self.token), **({} if session is None else {"mcp-session-id": session})}

    async def open(self) -> str:
        answer = await self.client.post("/mcp", json=INITIALIZE, headers=self.headers())
        assert answer.status_code == 200
        return answer.headers["mcp-session-id"]

    async def use(self, session: str) -> int:
        return (await self.client.post("/mcp", json=LIST, headers=self.headers(session))).status_code

    async def miss(self, session: str) -> int:
        """Asks for what does not exist, in a request of the newer protocol, which names a session for nothing."""
        own = {name.encode(): value.encode() for name, value in self.headers(session).items() if name not in HEADERS}
        body = {**LIST, "method": "no/such", "params": {"_meta": build_meta({})}}
        headers = {**own, **build_headers("no/such", None)}
        return (await self.client.post("/mcp", json=body, headers=headers)).status_code

    async def end(self, session: str) -> int:
        return (await self.client.delete("/mcp", headers=self.headers(session))).status_code


@requirement("http:session-cap")
async def test_a_caller_that_opens_too_many_sessions_closes_its_own_oldest_idle_one(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    tokens = [await token_for(settings, name) for name in ("eve", "ann")]
    async with (
        serving(settings) as address,
        httpx2.AsyncClient(base_url=address.removesuffix("/mcp"), timeout=60) as client,
    ):
        eve, ann = (Caller(client, token) for token in tokens)
        hers = await ann.open()
        first = await eve.open()
        # A session that its client ended counts no more.
        for _ in range(3):
            assert await eve.end(await eve.open()) == 200
        sessions = [first, *[await eve.open() for _ in range(MAX_SESSIONS - 1)]]
        assert [await eve.miss(session) for session in sessions] == [404] * MAX_SESSIONS
        assert await eve.use(first) == 200, "it was used last"
        more = [await eve.open() for _ in range(3)]
        assert [await eve.use(session) for session in sessions[1:5]] == [404, 404, 404, 200]
        assert [await eve.use(session) for session in (first, *more)] == [200] * 4
        assert await ann.use(hers) == 200


@requirement("http:session-cap")
async def test_a_session_that_is_one_too_many_is_closed_at_the_gate_that_opened_it() -> None:
    ended, opened = list[tuple[str, str]](), itertools.count()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if scope["method"] == "DELETE":
            ended.append((scope["gate"], headers[b"mcp-session-id"].decode()))
        else:
            headers = {b"mcp-session-id": str(next(opened)).encode()}
        await send({"type": "http.response.start", "status": 200, "headers": list(headers.items())})

    async def receive() -> Message:
        raise AssertionError("nobody asks for a body")

    async def send(message: Message) -> None:
        assert message["status"] == 200

    middleware = SessionCapMiddleware(answer, path="/gate")
    for gate in ["one"] * MAX_SESSIONS + ["two"] * 2:
        scope: Scope = {"type": "http", "method": "POST", "path": "/gate", "gate": gate, "headers": []}
        await middleware(scope, receive, send)
    assert ended == [("one", "0"), ("one", "1")]


@requirement("http:session-cap")
async def test_a_caller_whose_sessions_are_all_in_use_can_still_open_another(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    eve_token = await token_for(settings, "eve")
    limits = httpx2.Limits(max_connections=None)
    async with (
        serving(settings) as address,
        httpx2.AsyncClient(base_url=address.removesuffix("/mcp"), timeout=60, limits=limits) as client,
        AsyncExitStack() as streams,
    ):
        eve = Caller(client, eve_token)
        sessions = [await eve.open() for _ in range(MAX_SESSIONS)]
        for session in sessions:
            await streams.enter_async_context(client.stream("GET", "/mcp", headers=eve.headers(session)))
        newest = await eve.open()
        assert [await eve.use(session) for session in (newest, sessions[0], sessions[1])] == [200, 404, 200]
