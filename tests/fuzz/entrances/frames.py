"""Whole MCP messages: over HTTP with their headers and without a socket, and as lines for a process over stdio."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.fuzz.corpus import (
    CAPABILITIES,
    CLIENT,
    CONTENTS,
    DECISIONS,
    FORM_ANSWERS,
    OPTIONS,
    PLANS,
    VERSIONS,
    Document,
    requests,
    tool_calls,
)
from tests.fuzz.entrance import Opener, Wrong, check_rpc
from tests.fuzz.mutation import ODD_TEXTS, Mutator
from tests.fuzz.office import Office, build_headers, build_meta, office, read_answer
from tests.support.forking.command import forked_command_line

ANSWER_S, PROCESS_S = 60.0, 30.0
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


Made = tuple[str, str | None, Any]
"""Method and name, as they are in the headers, and the message."""


def build_call(mutator: Mutator, tool: str, arguments: Document, meta: Document | None = None, **more: Any) -> Made:
    """Return a call of a tool by a client with some capabilities."""
    params = {"name": tool, "arguments": arguments, **more}
    params["_meta"] = {**build_meta(mutator.pick(CAPABILITIES)), **(meta or {})}
    return "tools/call", tool, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


class HttpFrames:
    """Posts what `make` makes; whole messages with some wrong headers, and some with wrong methods of HTTP."""

    def __init__(self, found: Office, make: "Callable[[Mutator, HttpFrames], Made] | None" = None) -> None:
        self._office, self._make = found, make
        self._states = list[tuple[Document, str]]()
        """Calls that were answered with a form, with the state that came with it."""

    async def send(self, mutator: Mutator) -> str:
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
        result: Document = found.get("result", {})
        if self._make is not None and "requestState" in result:
            self._states = [*self._states[-20:], (message["params"]["arguments"], result["requestState"])]
        return check_rpc(found) if "method" not in found else "request"

    async def check_alive(self) -> None:
        await self._office.check_alive()

    @staticmethod
    def _spoil(mutator: Mutator, headers: dict[bytes, bytes]) -> None:
        name: bytes = mutator.pick((*headers, *HEADERS))
        if mutator.chance(0.3):
            headers.pop(name, None)
        else:
            text: str = mutator.pick((*ODD_TEXTS, *VERSIONS, "tools/list", "tools/call", "gzip", "text/html", "*/*"))
            headers[name] = text.encode("utf-8", "surrogatepass")[:5_000]

    def pick_ids(self, mutator: Mutator) -> Document:
        """Return the ids of an open question, now and then of different ones or of none."""
        questions = self._office.questions or [{"threadId": "none", "suspensionId": "none"}]
        first, second = mutator.pick(questions), mutator.pick(questions)
        other = second if mutator.chance(0.05) else first
        return {"threadId": first["threadId"], "suspensionId": other["suspensionId"]}

    def pick_question(self, mutator: Mutator) -> Document:
        return mutator.pick(self._office.questions)

    def pick_state(self, mutator: Mutator) -> tuple[Document, str] | None:
        return mutator.pick(self._states) if self._states and mutator.chance(0.4) else None


def make_plan(mutator: Mutator, frames: HttpFrames) -> Made:
    arguments: Document = {"plan": mutator.mutate(mutator.pick(PLANS), PLANS)}
    if mutator.chance(0.2):
        arguments["options"] = mutator.mutate(OPTIONS)
    return build_call(mutator, "execute_plan", arguments)


def make_arguments(mutator: Mutator, frames: HttpFrames) -> Made:
    ids = frames.pick_ids(mutator)
    listed = tool_calls(ids["threadId"], ids["suspensionId"])
    tool, arguments = mutator.pick(listed)
    changed = mutator.mutate(arguments, [given for _, given in listed])
    meta = {"planwarden/chain": mutator.odd_value()} if mutator.chance(0.05) else {}
    return build_call(mutator, mutator.odd_text() if mutator.chance(0.02) else tool, changed, meta)


def make_answer(mutator: Mutator, frames: HttpFrames) -> Made:
    if (waiting := frames.pick_state(mutator)) is not None:
        arguments, state = waiting
        if mutator.chance(0.1):
            state = mutator.damage(state.encode()).decode("utf-8", "replace")
        responses = mutator.mutate(mutator.pick(FORM_ANSWERS), FORM_ANSWERS)
        return build_call(mutator, "resume_execution", arguments, inputResponses=responses, requestState=state)
    question = frames.pick_question(mutator)
    ids = {"threadId": question["threadId"], "suspensionId": question["suspensionId"], "waitSeconds": 0.1}
    if mutator.chance(0.05):
        ids |= frames.pick_ids(mutator)
    usual = "submit_answer" if question["addressee"] == "caller" else "resume_execution"
    tool = mutator.pick(("submit_answer", "resume_execution", "app_decide")) if mutator.chance(0.1) else usual
    if tool == "resume_execution":
        decision = mutator.mutate(mutator.pick(DECISIONS), DECISIONS)
        return build_call(mutator, tool, {**ids, "decision": decision})
    content = mutator.mutate(mutator.pick(CONTENTS), [*CONTENTS, *PLANS])
    nonce = {"nonce": mutator.odd_text()} if tool == "app_decide" else {}
    return build_call(mutator, tool, {**ids, "content": content, **nonce})


def opening(make: Callable[[Mutator, HttpFrames], Made] | None = None) -> Opener:
    @asynccontextmanager
    async def opened(home: Path) -> AsyncGenerator[HttpFrames]:
        async with office(home) as found:
            yield HttpFrames(found, make)

    return opened


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
