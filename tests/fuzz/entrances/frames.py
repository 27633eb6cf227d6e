"""Whole MCP messages: over HTTP with their headers and without a socket, and as lines for a process over stdio."""

import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.abc import TaskGroup

from tests.fuzz.corpus import (
    CAPABILITIES,
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
from tests.fuzz.office import Office, office
from tests.harness.clients import StdioHost, build_headers, build_meta, read_answer
from tests.harness.process import Launcher, Process

ANSWER_S = 60.0
HEADERS = (b"Host", b"Mcp-Session-Id", b"Last-Event-ID", b"Origin", b"Authorization", b"Content-Encoding", b"Cookie")


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


class StdioFrames:
    """Lines for `planwarden serve`; its error output may hold no traceback."""

    def __init__(self, process: Process, tasks: TaskGroup) -> None:
        self._process, self._read = process, 0
        self._host = StdioHost(process, self._decline)
        tasks.start_soon(self._host.run, tasks)

    async def send(self, mutator: Mutator) -> str:
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
        done = await self._host.call("execute_plan", {"plan": PLANS[0], "options": {"waitSeconds": 20}})
        if done.get("status") != "completed":
            raise Wrong(f"an ordinary plan came to {str(done)[:500]}")

    async def open(self) -> None:
        await self._host.open()
        await self.check_alive()

    @staticmethod
    async def _decline(params: Document) -> Document:
        return {"action": "decline"}


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
