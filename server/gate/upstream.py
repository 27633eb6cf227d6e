"""A wrapped server that is a process. It is started when a message needs it, and again after it has ended.

A server on the gate's command line gets the environment that the host gave the gate. A server of planwarden.json gets
the SDK's default variables and those of its entry. No server gets `PLANWARDEN_*`. `address.py` is for servers behind an
address.
"""

import os
from collections.abc import Mapping
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from planwarden.agent.common.errors import OutcomeUnknown, ToolError
from planwarden.server.gate.relay import LargeResult, Relay
from planwarden.tools.downstream.child_process import ENDLESS, READ_BYTES, Child, LineReader, ServerLog, spawn
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.sdk import stdio

OWN_VARIABLES = "PLANWARDEN_"
"""The prefix of the names of planwarden's own variables."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""The largest message of the server that is passed on."""


def list_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the wrapped server gets."""
    return {name: value for name, value in environment.items() if not name.startswith(OWN_VARIABLES)}


class ProcessUpstream:
    """The connection to one server that is a process."""

    receiver: Relay

    def __init__(self, config: ServerConfig, log: ServerLog) -> None:
        self.config = config
        self._log = log
        self._child: Child | None = None
        self._lost_reason = ""
        self._attending = anyio.CancelScope()
        """Cancelling this scope ends the process."""
        self._has_ended = anyio.Event()
        """An event that is set once the receiver knows that the last process has ended."""
        self._has_ended.set()
        self._write_lock = anyio.Lock()

    @property
    def is_running(self) -> bool:
        return self._child is not None

    async def start(self, tasks: TaskGroup) -> None:
        await self._has_ended.wait()
        # A cancellation between the start of the child and the start of `_attend` would leave the child running.
        with anyio.CancelScope(shield=True):
            inherited = os.environ if self.config.is_gated else stdio.get_default_environment()
            process, transport = await spawn(self.config, list_environment({**inherited, **self.config.env}))
            self._lost_reason, self._has_ended = "", anyio.Event()
            self._child = Child(process=process, transport=transport, log=self._log, on_lost=self._note_loss)
            tasks.start_soon(self._attend, self._child)

    async def send(self, line: bytes) -> None:
        child = self._child
        if child is None or child.process.stdin is None:
            raise ToolError(f"server {self.config.name!r} is not running")
        async with self._write_lock:
            try:
                child.process.stdin.write(line)
                await child.process.stdin.drain()
            except (OSError, RuntimeError):
                raise OutcomeUnknown(f"server {self.config.name!r} closed its input") from None

    async def reset(self) -> None:
        self._note_loss("it starts again for the handshake")
        self._attending.cancel()
        await self._has_ended.wait()

    def _note_loss(self, reason: str) -> None:
        self._lost_reason = self._lost_reason or reason

    async def _attend(self, child: Child) -> None:
        """Pass on the lines of the process until it ends; stop the process in any case."""
        try:
            async with anyio.create_task_group() as tasks:
                self._attending = tasks.cancel_scope
                tasks.start_soon(child.keep_log)
                tasks.start_soon(self._watch, child, tasks.cancel_scope)
                await self._read(child)
                await child.report_loss("it closed its output")
                tasks.cancel_scope.cancel()
        finally:
            self._child = None
            with anyio.CancelScope(shield=True):
                await child.stop()
            self._log.close()
        self.receiver.handle_loss(self._lost_reason)
        self._has_ended.set()

    async def _watch(self, child: Child, scope: anyio.CancelScope) -> None:
        await child.watch()
        scope.cancel()

    async def _read(self, child: Child) -> None:
        assert child.process.stdout is not None
        lines = LineReader(MAX_ANSWER_BYTES, ENDLESS * MAX_ANSWER_BYTES)
        with suppress(OSError):
            while chunk := await child.process.stdout.read(READ_BYTES):
                for line in lines.feed(chunk):
                    if isinstance(line, bytes):
                        await self.receiver.handle_line(line)
                    else:
                        what = f"sent more than {MAX_ANSWER_BYTES} bytes in one message"
                        if line.request_id is None:
                            # Nobody knows which request this answers. It would wait forever, so the connection ends.
                            child.on_lost(f"it {what}")
                            return
                        error = LargeResult(f"server {self.config.name!r} {what}", None)
                        self.receiver.settle(line.request_id, error)
