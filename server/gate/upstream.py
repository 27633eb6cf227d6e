"""The wrapped server as a process: started when a message needs it, and started again after it ended.

It gets the environment of the gate, which is the one that the host chose for it, without planwarden's own variables.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from planwarden.agent.common.errors import OutcomeUnknown, ToolError
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.transports.child import (
    READ_BYTES,
    Child,
    LineReader,
    OversizedLine,
    spawn,
)
from planwarden.tools.downstream.transports.log import ServerLog

OWN_VARIABLES = "PLANWARDEN_"
"""What the names of planwarden's own variables begin with."""


def list_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the wrapped server gets."""
    return {name: value for name, value in environment.items() if not name.startswith(OWN_VARIABLES)}


class Upstream:
    """One server. `on_line` gets each of its lines, and `on_lost` why its process is gone."""

    def __init__(
        self,
        config: ServerConfig,
        log: ServerLog,
        on_line: Callable[[bytes | OversizedLine], Awaitable[None]],
        on_lost: Callable[[str], Awaitable[None]],
        *,
        max_bytes: int,
    ) -> None:
        """`max_bytes` is the size of the longest line."""
        self._max_bytes = max_bytes
        self.config = config
        self._log = log
        self._on_line = on_line
        self._on_lost = on_lost
        self._child: Child | None = None
        self._lost_reason = ""
        self._write_lock = anyio.Lock()

    @property
    def is_running(self) -> bool:
        return self._child is not None

    async def start(self, tasks: TaskGroup) -> None:
        """Start the process, whose end `on_lost` reports. Raises `ToolError`: it cannot be started."""
        # No cancellation between the start and the task that ends the child.
        with anyio.CancelScope(shield=True):
            process, transport = await spawn(self.config, list_environment({**os.environ, **self.config.env}))
            self._lost_reason = ""
            self._child = Child(process=process, transport=transport, log=self._log, on_lost=self._note_loss)
            tasks.start_soon(self._attend, self._child)

    async def send(self, line: bytes) -> None:
        """Write a line.

        Raises:
            OutcomeUnknown: the process ends at that moment; the line may have reached it.
            ToolError: there is no process; nothing was sent.
        """
        child = self._child
        if child is None or child.process.stdin is None:
            raise ToolError(f"server {self.config.name!r} is not running")
        async with self._write_lock:
            try:
                child.process.stdin.write(line)
                await child.process.stdin.drain()
            except (OSError, RuntimeError):
                raise OutcomeUnknown(f"server {self.config.name!r} closed its input") from None

    def _note_loss(self, reason: str) -> None:
        self._lost_reason = self._lost_reason or reason

    async def _attend(self, child: Child) -> None:
        """Pass the lines of the process on until it ends, and end it in any case."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child.keep_log)
                tasks.start_soon(self._watch, child, tasks.cancel_scope)
                await self._read(child)
                await child.report_loss("it closed its output")
                tasks.cancel_scope.cancel()
        finally:
            if self._child is child:
                self._child = None
            with anyio.CancelScope(shield=True):
                await child.stop()
            self._log.close()
        await self._on_lost(self._lost_reason)

    async def _watch(self, child: Child, scope: anyio.CancelScope) -> None:
        await child.watch()
        scope.cancel()

    async def _read(self, child: Child) -> None:
        assert child.process.stdout is not None
        lines = LineReader(self._max_bytes)
        with suppress(OSError):
            while chunk := await child.process.stdout.read(READ_BYTES):
                for line in lines.feed(chunk):
                    await self._on_line(line)
