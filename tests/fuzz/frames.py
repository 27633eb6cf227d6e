"""Whole MCP messages: over HTTP without a socket, over real sockets, and as lines for a process over stdio."""

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import TaskGroup

from planwarden.server.auth.admission import AllowedNames
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.tables import ApprovalsTable, SettingsTables
from planwarden.server.transports.http import build_http_app
from planwarden.storage.clock import SystemClock
from tests.fuzz import inputs
from tests.fuzz.entrance import Opener, Wrong, check_result, check_rpc
from tests.fuzz.inputs import OPTIONS
from tests.harness.clients import StdioHost, build_headers, build_meta, read_answer
from tests.harness.process import Launcher, Process
from tests.server.mcp.http_support import serving
from tests.server.mcp.support import Served, sender, served
from tests.support.wardens import Ledger, plan, tool_step

HOST = "127.0.0.1:80"
FEW, MANY = 8, 30
"""Open questions: when there are fewer, more are asked, and never more than the second."""


@dataclass
class Office:
    found: Served
    http: httpx2.AsyncClient
    ledger: Ledger
    threads: list[str] = field(default_factory=lambda: ["none"])
    questions: list[inputs.Document] = field(default_factory=list[inputs.Document])
    """Open questions as their view shows them."""

    async def post(self, body: bytes, headers: Mapping[bytes, bytes]) -> httpx2.Response:
        return await self.http.post("/mcp", content=body, headers=headers)

    async def call(self, tool: str, arguments: inputs.Document, **params: Any) -> inputs.Document:
        meta = build_meta({"elicitation": {"form": {}}})
        request = {"name": tool, "arguments": arguments, **params, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": request}
        answer = await self.post(json.dumps(body).encode(), build_headers("tools/call", tool))
        found = read_answer(answer)
        assert found is not None
        return found

    async def fill(self) -> None:
        """Asks questions until there are enough; forgets those that are decided."""
        page = (await self.call("list_suspensions", {"limit": 100}))["result"]["structuredContent"]
        self.questions = page.get("suspensions", [])
        for number in range(FEW if len(self.questions) < FEW else 0):
            view = (await self.call("execute_plan", {"plan": inputs.PLANS[number % len(inputs.PLANS)]}))["result"]
            if check_result(view) != "ok":
                raise Wrong(f"plan {number} of the corpus: {str(view)[:500]}")
            thread = view["structuredContent"]["threadId"]
            self.threads.append(thread)
            asked = view["structuredContent"].get("suspensions", [])
            self.questions.extend({"threadId": thread, **question} for question in asked)
        for question in self.questions[MANY:]:
            await self.call("cancel_execution", {"threadId": question["threadId"]})
        self.questions = self.questions[:MANY]
        self.threads = self.threads[-MANY:]

    async def check_alive(self) -> None:
        """Runs an ordinary plan, and looks whether anything dangerous happened, which nobody approved."""
        answer = await self.call("execute_plan", {"plan": inputs.PLANS[0], "options": {"waitSeconds": 20}})
        view = answer["result"]["structuredContent"]
        if view.get("status") != "completed":
            raise Wrong(f"an ordinary plan came to {str(view)[:500]}")
        if any(line.startswith("erase") for line in self.ledger.lines):
            raise Wrong(f"a dangerous call ran: {self.ledger.lines}")
        await self.fill()


@asynccontextmanager
async def office(home: Path) -> AsyncGenerator[Office]:
    ledger = Ledger()
    async with served(home, tools=[*ledger.tools(), sender(ledger)]) as found:
        names = AllowedNames.from_settings(HttpSettings(), "127.0.0.1", 80)
        app = build_http_app(found.server, names, clock=SystemClock())
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=True)
        async with (
            found.server.session_manager.run(),
            httpx2.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers={"Host": HOST}) as http,
        ):
            opened = Office(found, http, ledger)
            await opened.call("execute_plan", {"plan": plan(tool_step("a", "erase", {"ids": [1]}))})
            await opened.check_alive()
            yield opened


ANSWER_S = 60.0
HEADERS = (b"Host", b"Mcp-Session-Id", b"Last-Event-ID", b"Origin", b"Authorization", b"Content-Encoding", b"Cookie")


def make_message(mutator: inputs.Mutator, thread_id: str, suspension_id: str) -> tuple[str, str | None, Any]:
    """A message with a few changes; its method and name as they are in its headers."""
    listed = inputs.requests(thread_id, suspension_id)
    method, params = mutator.pick(listed)
    message: inputs.Document = {"jsonrpc": "2.0", "id": mutator.random.randrange(10**6), "method": method}
    version = mutator.pick(inputs.VERSIONS) if mutator.chance(0.2) else inputs.VERSIONS[0]
    message["params"] = {**params, "_meta": build_meta(mutator.pick(inputs.CAPABILITIES), version)}
    if method.startswith("notifications/"):
        del message["id"]
    changed = mutator.mutate(message, [found for _, found in listed])
    if mutator.chance(0.03):
        changed = [changed, message]
    return method, params.get("name") or params.get("uri") or params.get("taskId"), changed


Made = tuple[str, str | None, Any]
"""Method and name, as they are in the headers, and the message."""


def build_call(
    mutator: inputs.Mutator, tool: str, arguments: inputs.Document, meta: inputs.Document | None = None, **more: Any
) -> Made:
    params = {"name": tool, "arguments": arguments, **more}
    params["_meta"] = {**build_meta(mutator.pick(inputs.CAPABILITIES)), **(meta or {})}
    return "tools/call", tool, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


class HttpFrames:
    """Posts what `make` makes; whole messages with some wrong headers, and some with wrong methods of HTTP."""

    def __init__(self, found: Office, make: "Callable[[inputs.Mutator, HttpFrames], Made] | None" = None) -> None:
        self._office, self._make = found, make
        self._states = list[tuple[inputs.Document, str]]()
        """Calls that were answered with a form, with the state that came with it."""

    async def send(self, mutator: inputs.Mutator) -> str:
        question, verb = mutator.pick(self._office.questions), "POST"
        if self._make is None:
            made = make_message(mutator, question["threadId"], question["suspensionId"])
        else:
            made = self._make(mutator, self)
        method, name, message = made
        body, headers = mutator.encode(message), build_headers(method, name)
        if self._make is None:
            if mutator.chance(0.2):
                self._spoil(mutator, headers)
            verb = mutator.pick(("GET", "DELETE", "PUT", "HEAD", "OPTIONS")) if mutator.chance(0.03) else "POST"
        mutator.sent = (verb, headers, body)
        try:
            request = self._office.http.build_request(verb, "/mcp", content=body, headers=headers)
        except (ValueError, TypeError, UnicodeEncodeError):
            return "cannot be sent"
        with anyio.move_on_after(1.0 if self._make is None else ANSWER_S):
            # Only this far: `GET` and `subscriptions/listen` open streams, which do not end by themselves.
            return self._judge(await self._office.http.send(request), message)
        return "stream"

    def _judge(self, answer: httpx2.Response, message: Any) -> str:
        if answer.status_code >= 500:
            raise Wrong(f"status {answer.status_code}: {answer.text[:500]}")
        if answer.headers.get("content-type", "").partition(";")[0] not in ("application/json", "text/event-stream"):
            return f"status {answer.status_code}"
        found = read_answer(answer)
        if found is None or "jsonrpc" not in found:
            return f"status {answer.status_code}"
        result: inputs.Document = found.get("result", {})
        if self._make is not None and "requestState" in result:
            self._states = [*self._states[-20:], (message["params"]["arguments"], result["requestState"])]
        return check_rpc(found) if "method" not in found else "request"

    async def check_alive(self) -> None:
        await self._office.check_alive()

    @staticmethod
    def _spoil(mutator: inputs.Mutator, headers: dict[bytes, bytes]) -> None:
        name: bytes = mutator.pick((*headers, *HEADERS))
        if mutator.chance(0.3):
            headers.pop(name, None)
        else:
            text: str = mutator.pick(
                (*inputs.ODD_TEXTS, *inputs.VERSIONS, "tools/list", "tools/call", "gzip", "text/html", "*/*")
            )
            headers[name] = text.encode("utf-8", "surrogatepass")[:5_000]

    def pick_ids(self, mutator: inputs.Mutator) -> inputs.Document:
        """Return the ids of an open question, now and then of different ones or of none."""
        questions = self._office.questions or [{"threadId": "none", "suspensionId": "none"}]
        first, second = mutator.pick(questions), mutator.pick(questions)
        other = second if mutator.chance(0.05) else first
        return {"threadId": first["threadId"], "suspensionId": other["suspensionId"]}

    def pick_question(self, mutator: inputs.Mutator) -> inputs.Document:
        return mutator.pick(self._office.questions)

    def pick_state(self, mutator: inputs.Mutator) -> tuple[inputs.Document, str] | None:
        return mutator.pick(self._states) if self._states and mutator.chance(0.4) else None


def make_plan(mutator: inputs.Mutator, frames: HttpFrames) -> Made:
    arguments: inputs.Document = {"plan": mutator.mutate(mutator.pick(inputs.PLANS), inputs.PLANS)}
    if mutator.chance(0.2):
        arguments["options"] = mutator.mutate(OPTIONS)
    return build_call(mutator, "execute_plan", arguments)


def make_arguments(mutator: inputs.Mutator, frames: HttpFrames) -> Made:
    ids = frames.pick_ids(mutator)
    listed = inputs.tool_calls(ids["threadId"], ids["suspensionId"])
    tool, arguments = mutator.pick(listed)
    changed = mutator.mutate(arguments, [given for _, given in listed])
    meta = {"planwarden/chain": mutator.odd_value()} if mutator.chance(0.05) else {}
    return build_call(mutator, mutator.odd_text() if mutator.chance(0.02) else tool, changed, meta)


def make_answer(mutator: inputs.Mutator, frames: HttpFrames) -> Made:
    if (waiting := frames.pick_state(mutator)) is not None:
        arguments, state = waiting
        if mutator.chance(0.1):
            state = mutator.damage(state.encode()).decode("utf-8", "replace")
        responses = mutator.mutate(mutator.pick(inputs.FORM_ANSWERS), inputs.FORM_ANSWERS)
        return build_call(mutator, "resume_execution", arguments, inputResponses=responses, requestState=state)
    question = frames.pick_question(mutator)
    ids = {"threadId": question["threadId"], "suspensionId": question["suspensionId"], "waitSeconds": 0.1}
    if mutator.chance(0.05):
        ids |= frames.pick_ids(mutator)
    usual = "submit_answer" if question["addressee"] == "caller" else "resume_execution"
    tool = mutator.pick(("submit_answer", "resume_execution", "app_decide")) if mutator.chance(0.1) else usual
    if tool == "resume_execution":
        decision = mutator.mutate(mutator.pick(inputs.DECISIONS), inputs.DECISIONS)
        return build_call(mutator, tool, {**ids, "decision": decision})
    content = mutator.mutate(mutator.pick(inputs.CONTENTS), [*inputs.CONTENTS, *inputs.PLANS])
    nonce = {"nonce": mutator.odd_text()} if tool == "app_decide" else {}
    return build_call(mutator, tool, {**ids, "content": content, **nonce})


def opening(make: Callable[[inputs.Mutator, HttpFrames], Made] | None = None) -> Opener:
    @asynccontextmanager
    async def opened(home: Path) -> AsyncGenerator[HttpFrames]:
        async with office(home) as found:
            yield HttpFrames(found, make)

    return opened


async def decline(params: inputs.Document) -> inputs.Document:
    return {"action": "decline"}


class StdioFrames:
    """Lines for `planwarden serve`; its error output may hold no traceback."""

    def __init__(self, process: Process, tasks: TaskGroup) -> None:
        self._process, self._read = process, 0
        self._host = StdioHost(process, decline)
        tasks.start_soon(self._host.run, tasks)

    async def send(self, mutator: inputs.Mutator) -> str:
        _, _, message = make_message(mutator, "t", "s")
        mutator.sent = body = mutator.encode(message)
        self._host.unasked.clear()
        self._host.write(body)
        await self._host.send("tools/list", {})
        log, self._read = self._process.read_log()[self._read :], len(self._process.read_log())
        if "Traceback" in log or "stood still" in log:
            raise Wrong(f"log: {log[-3_000:]}")
        return check_rpc(self._host.unasked[-1]) if self._host.unasked else "silence"

    async def check_alive(self) -> None:
        done = await self._host.call("execute_plan", {"plan": inputs.PLANS[0], "options": {"waitSeconds": 20}})
        if done.get("status") != "completed":
            raise Wrong(f"an ordinary plan came to {str(done)[:500]}")

    async def open(self) -> None:
        await self._host.open()
        await self.check_alive()


@asynccontextmanager
async def open_stdio(folder: Path) -> AsyncGenerator[StdioFrames]:
    for name in ("home", "logs"):
        (folder / name).mkdir(mode=0o700)
    (folder / "home" / "planwarden.toml").write_text('[approvals]\nopen_inbox = "never"\n')
    process = Launcher(folder, patience=None).with_pipes("planwarden", "serve")
    async with anyio.create_task_group() as tasks:
        try:
            frames = StdioFrames(process, tasks)
            await frames.open()
            yield frames
        finally:
            tasks.cancel_scope.cancel()
            process.end(signal.SIGKILL)
            process.close()


HTTP_TOKENS = (
    *(b"\r\n", b"\n", b"\0", b"\xff", b" ", b":", b"HTTP/9.9", b"Transfer-Encoding: chunked\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Expect: 100-continue\r\n"),
    *(b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"A: " + b"b" * 70_000 + b"\r\n", b"/../", b"%00"),
    *(b"GET /inbox HTTP/1.1\r\n\r\n",),
)
HTTP_PATHS = (b"/mcp", b"/mcp", b"/mcp", b"/inbox", b"/inbox/pair", b"/")
SOCKET_S = 0.5


class Sockets:
    """Sends one damaged request a connection; half of them end in the middle."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._host, self._port = parts.hostname, parts.port

    async def send(self, mutator: inputs.Mutator) -> str:
        method, name, message = make_message(mutator, "t", "s")
        data = self._build(mutator.encode(message), build_headers(method, name), mutator.pick(HTTP_PATHS))
        mutator.sent = data = mutator.damage(data, HTTP_TOKENS) if mutator.chance(0.8) else data
        return self._judge(await self._exchange(data, ends=mutator.chance(0.5)))

    async def check_alive(self) -> None:
        params: inputs.Document = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": inputs.CLIENT}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
        head = {b"Accept": b"application/json, text/event-stream", b"Content-Type": b"application/json"}
        answer = await self._exchange(self._build(body, head, HTTP_PATHS[0]), ends=False)
        if b" 200 " not in answer[:20]:
            raise Wrong(f"`initialize` was answered {answer[:500]!r}")

    def _build(self, body: bytes, headers: dict[bytes, bytes], path: bytes) -> bytes:
        lines = [b"%s: %s" % (name, value) for name, value in headers.items()]
        first = b"POST %s HTTP/1.1\r\nHost: %s:%d" % (path, self._host.encode(), self._port)
        length = b"Content-Length: %d" % len(body)
        return b"\r\n".join([first, *lines, length, b"", body])

    async def _exchange(self, data: bytes, *, ends: bool) -> bytes:
        """What comes back in a short time, or until the server closes."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        found = b""
        try:
            writer.write(data)
            if ends:
                writer.write_eof()
            with anyio.move_on_after(SOCKET_S):
                await writer.drain()
                while chunk := await reader.read(65_536):
                    found += chunk
                    if b"\r\n\r\n" in found:
                        break
        except ConnectionError:
            return found or b"reset"
        finally:
            writer.close()
        return found

    @staticmethod
    def _judge(answer: bytes) -> str:
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "no answer"
        if status.startswith("5") and status != "501":
            raise Wrong(f"status {status}: {answer[:500]!r}")
        return status


@asynccontextmanager
async def open_sockets(home: Path) -> AsyncGenerator[Sockets]:
    async with serving(Settings(home=home, tables=SettingsTables(approvals=ApprovalsTable(open_inbox="never")))) as url:
        sockets = Sockets(url)
        await sockets.check_alive()
        yield sockets
