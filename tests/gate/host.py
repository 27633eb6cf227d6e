"""A host in raw JSON, its home with a gate over the peer, and a person who decides in another process's place."""

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from types import MappingProxyType
from typing import Any

import anyio
from anyio.abc import Process, TaskGroup

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import StaleDefinition
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.settings.configuration import load_settings
from tests.support.forking import forked_command_line

PEER = Path(__file__).with_name("peer.py")
SETTINGS = """
[gate]
hold_s = {hold_s}
[approvals]
open_inbox = "never"
[tools."peer_look"]
risk = "read"
effect = "read"
[[rules]]
tool = "peer_write"
when = {{ text = {{ in = ["free"] }} }}
then = "allow"
[[rules]]
tool = "peer_write"
when = {{ text = {{ in = ["bad"] }} }}
then = "deny"
because = "bad is never written"
"""
HANDSHAKE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw host", "version": "1"}}
APPROVE = Decision(approved=True)
NEWER = "io.modelcontextprotocol/"
"""Begins the keys with which each request of newer revisions says who sends it."""


class Host:
    """One host with one gate."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.notes: list[dict[str, Any]] = []
        """Notifications and requests of the server."""
        self.lines: list[bytes] = []
        self.capabilities: dict[str, Any] | None = None
        """Of a host of the newer revision, which makes no handshake."""
        self._answers: dict[Any, dict[str, Any]] = {}
        self._arrived = anyio.Event()
        self._last = 0
        self.has_ended = anyio.Event()
        """The gate has closed its output."""
        self.goes_deaf: anyio.Event | None = None
        """Given, the host reads nothing more, and sets it when there is something to read."""

    async def read(self) -> None:
        assert self.process.stdout is not None
        buffer = b""
        try:
            async for chunk in self.process.stdout:
                if self.goes_deaf is not None:
                    self.goes_deaf.set()
                    return
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    self.lines.append(line)
                    message = json.loads(line)
                    if "method" in message:
                        self.notes.append(message)
                    else:
                        self._answers[message["id"]] = message
                    self._arrived.set()
                    self._arrived = anyio.Event()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        self.has_ended.set()

    async def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def begin(self, method: str, params: dict[str, Any]) -> int:
        self._last += 1
        if self.capabilities is not None:
            about = {"protocolVersion": "2026-07-28", "clientInfo": {"name": "raw host", "version": "1"}}
            about["clientCapabilities"] = self.capabilities
            params = {**params, "_meta": {f"{NEWER}{key}": value for key, value in about.items()}}
        await self.send({"id": self._last, "method": method, "params": params})
        return self._last

    async def wait(self, request_id: int) -> dict[str, Any]:
        while request_id not in self._answers:
            await self._arrived.wait()
        return self._answers.pop(request_id)

    async def wait_for_note(self, method: str) -> dict[str, Any]:
        while not (found := [note for note in self.notes if note["method"] == method]):
            await self._arrived.wait()
        return found[-1]

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self.wait(await self.begin(method, params))

    async def begin_call(self, name: str, arguments: dict[str, Any], **more: Any) -> int:
        return await self.begin("tools/call", {"name": name, "arguments": arguments, **more})

    async def call(self, name: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        answer = await self.wait(await self.begin_call(name, arguments, **more))
        return answer["result"]

    async def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        await self.process.wait()


class Home:
    """A home, the folder of the peer, and the ledger of what the peer really did."""

    def __init__(self, folder: Path, *, hold_s: float = 120.0, more: str = "") -> None:
        self.folder = folder / "home"
        self.peer = folder / "peer"
        self.folder.mkdir(parents=True)
        self.peer.mkdir()
        (self.folder / "planwarden.toml").write_text(SETTINGS.format(hold_s=hold_s) + more, encoding="utf-8")

    @property
    def ledger(self) -> list[Any]:
        path = self.peer / "ledger"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def words(self) -> list[str]:
        gate = ["gate", "--home", str(self.folder), "--name", "peer"]
        return [*gate, "--", sys.executable, str(PEER), str(self.peer)]

    @asynccontextmanager
    async def host(
        self,
        tasks: TaskGroup,
        *,
        greets: bool = True,
        capabilities: dict[str, Any] | None = None,
        newer: dict[str, Any] | None = None,
        dies: tuple[int, str] = (0, ""),
        ahead_s: float = 0,
        serves_all: bool = False,
        others: Mapping[str, Any] = MappingProxyType({}),
    ) -> AsyncGenerator[Host]:
        """Run a gate with a host; `newer` are the capabilities of one that makes no handshake.

        See `tests.gate.mortal` for how it dies and for its clock. With `serves_all` the peer is a server of
        planwarden.json, after `others`.
        """
        words = self.words
        if serves_all:
            words, peer = words[:3], words[6:]
            document = {"mcpServers": {**others, "peer": {"command": peer[0], "args": peer[1:]}}}
            (self.folder / "planwarden.json").write_text(json.dumps(document))
        environment = {**os.environ, "PLANWARDEN_SECRET": "no"}
        command = forked_command_line("-m", "tests.gate.mortal", *map(str, dies), str(ahead_s), *words)
        async with await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None, env=environment) as run:
            host = Host(run)
            tasks.start_soon(host.read)
            host.capabilities = newer
            if greets and newer is None:
                await host.ask("initialize", {**HANDSHAKE, "capabilities": capabilities or {}})
                await host.send({"method": "notifications/initialized"})
            try:
                yield host
            finally:
                with anyio.CancelScope(shield=True):
                    if run.returncode is None:
                        assert run.stdin is not None
                        await run.stdin.aclose()
                        with anyio.move_on_after(10):
                            await run.wait()
                    if run.returncode is None:
                        run.kill()

    def open(self) -> planwarden.Warden:
        return planwarden.Warden(settings=load_settings(home=self.folder, environment={}))

    async def decide(self, count: int = 1, decision: Decision = APPROVE) -> list[planwarden.Execution]:
        """Decide about so many questions, which may still have to be asked, as a program of the operator."""
        # Another process writes it.
        while not (list((self.folder / "gate").glob("*.json")) or (self.folder / "planwarden.json").exists()):  # noqa: ASYNC110
            await anyio.sleep(0.05)
        ends: list[planwarden.Execution] = []
        async with self.open() as warden:
            while len(ends) < count:
                for question in (await warden.list_suspensions()).suspensions:
                    where = question.thread_id, question.suspension_id
                    try:
                        end = await warden.resume_execution(*where, decision, wait_seconds=10)
                        # A definition that this process did not know yet is asked about again.
                        ends += [end] * all(again.kind != question.kind for again in end.suspensions)
                    except StaleDefinition:
                        # What a gate listed in this moment is known here a second later.
                        await anyio.sleep(2)
                await anyio.sleep(0.05)
        return ends

    def kill_peer(self) -> None:
        for process in find_processes(self.peer):
            if b"--home" not in process.read_bytes():
                os.kill(int(process.parent.name), signal.SIGKILL)

    async def decide_as_model(self, decision: Decision) -> None:
        """Send the decision about the open question as a model can send it to planwarden's own tools."""
        claimed = Authority(assurance="claimed", channel="mcp", principal=LOCAL)
        async with self.open() as warden:
            [question] = (await warden.list_suspensions()).suspensions
            where = question.thread_id, question.suspension_id
            await warden.service.answer(*where, decision, claimed, principal=LOCAL)


def read_text(result: dict[str, Any]) -> str:
    return "\n".join(block.get("text", "") for block in result["content"])


def find_processes(folder: Path) -> list[Path]:
    running: list[Path] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            running += [path] if str(folder).encode() in path.read_bytes() else []
    return running
