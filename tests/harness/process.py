"""Forked processes that tests talk to, kill and stop.

A `Worker` answers lines with lines. A `Process` has a log, pipes or a terminal, and is watched without blocking; a
`Launcher` starts those of a stage. Both run `tests/harness/worker.py`.
"""

import base64
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
from pydantic import JsonValue

from tests.harness.ledger import Ledger, is_running
from tests.support.forking import fork_server, forked_command_line
from tests.support.paths import ROOT

MODULE = "tests.harness.worker"
STAGE, PLANT, PATIENCE = "CAMPAIGN_STAGE", "CAMPAIGN_PLANT", "CAMPAIGN_PATIENCE"
"""Variables that tell a process of a stage which stage it is, with which planted bug, and how long it waits."""
CONNECTION_NAME = "planwarden {pid}"
"""What the connections of a process of the campaign to PostgreSQL call themselves."""
Patience = Literal["hasty", "usual", "product"]
"""Nobody waits until the calls of a silent process are over; they do, for seconds; or all times are the product's own,
so that in a round a silent process is never replaced, and a dead one is."""
Found = TypeVar("Found")
POLL_S = 0.02
START_S = 30.0
ANSWER_S = 60.0
NEVER = float("inf")


async def poll(look: Callable[[], Found]) -> Found:
    """Return what `look` finds, once it finds something; for what no process tells this one, so there is no event."""
    while not (found := look()):  # noqa: ASYNC110
        await anyio.sleep(POLL_S)
    return found


def say(value: JsonValue) -> None:
    """Print one line in one write: a killed process leaves whole lines, and what it printed was acknowledged."""
    os.write(1, f"{json.dumps(value)}\n".encode())


class Worker:
    """A program of the worker that answers each line with a line; what it prints was acknowledged."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed at its end
        self.process = subprocess.Popen(
            forked_command_line("-m", MODULE, program, *arguments),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def send(self, question: JsonValue) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(question)}\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        """Return the next line. Raises with the program's errors when it ends instead."""
        assert self.process.stdout is not None
        patience = threading.Timer(ANSWER_S, self.process.kill)
        patience.start()
        line = self.process.stdout.readline()
        patience.cancel()
        if not line:
            raise AssertionError(f"it ended: {self.kill()}")
        return json.loads(line)

    def ask(self, question: JsonValue) -> Any:
        self.send(question)
        return self.read()

    def kill(self) -> str:
        """Send SIGKILL, and return the program's errors when it is gone."""
        self.process.kill()
        return self._end()

    def close(self) -> None:
        """End the program by closing its standard input. Raises with its errors when it fails."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(ANSWER_S)
        errors = self._end()
        assert self.process.returncode == 0, errors

    def _end(self) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        if self.process.stdout.closed:
            return ""
        # Its output ends when the forked process is gone, which may be later than the one that forked it.
        self.process.stdout.read()
        self.process.stdout.close()
        self.process.wait()
        with self._errors as file:
            file.seek(0)
            return file.read()


class Lost(Exception):
    """The process ended or did not answer in time; whether it did what was asked is unknown."""


@dataclass
class Process:
    """One forked process and the ends of its streams. Its standard error goes to a file."""

    pid: int
    log: Path
    connection: socket.socket
    """Of the fork server, which says how the process ended, and kills it when this process ends."""
    inlet: int = -1
    outlet: int = -1
    hurts: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When it was stopped or told to end, and until when, by the clock that never jumps."""
    _exit_code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal; None while it runs."""
        if self._exit_code is None:
            with suppress(BlockingIOError):
                self._exit_code = int(self.connection.recv(64, socket.MSG_DONTWAIT) or b"1")
                self.connection.close()
        return self._exit_code

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None

    def end(self, number: signal.Signals) -> None:
        """Kill it, or tell it to end."""
        self.hurts.append((time.monotonic(), NEVER))
        self.send_signal(number)

    def send_signal(self, number: signal.Signals) -> None:
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def pause(self, seconds: float, *others: int) -> None:
        began = (time.monotonic(), NEVER)
        self.hurts.append(began)
        try:
            self._signal_all(signal.SIGSTOP, others)
            await anyio.sleep(seconds)
        finally:
            self._signal_all(signal.SIGCONT, others)
            self.hurts[self.hurts.index(began)] = (began[0], time.monotonic())

    def _signal_all(self, number: signal.Signals, others: tuple[int, ...]) -> None:
        self.send_signal(number)
        for other in others:
            with suppress(ProcessLookupError):
                os.kill(other, number)

    @property
    def was_ended(self) -> bool:
        return any(until == NEVER for _, until in self.hurts)

    def was_hurt(self, at: float, margin_s: float) -> bool:
        """Return whether it was stopped or ended at that moment, or within `margin_s` before."""
        return any(since <= at <= until + margin_s for since, until in self.hurts)

    def read_log(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    async def wait_for_log(self, pattern: str) -> str:
        """Return the first group of the pattern in its log. Raises `Lost` when it ends or says nothing."""
        with anyio.move_on_after(START_S):
            while not self.has_ended:
                if found := re.search(pattern, self.read_log()):
                    return found.group(1)
                await anyio.sleep(POLL_S)
        raise Lost(f"process {self.pid} did not say {pattern}: {self.read_log()[-400:]}")

    async def wait(self, seconds: float) -> int:
        """Return its exit code. Raises `Lost` after that many seconds, and kills it."""
        with anyio.move_on_after(seconds):
            await poll(lambda: self.has_ended)
            assert self.exit_code is not None
            return self.exit_code
        self.end(signal.SIGKILL)
        raise Lost(f"process {self.pid} did not end")

    async def read_lines(self, on_line: Callable[[Any], Awaitable[None]]) -> None:
        """Call `on_line` with every JSON line that the process prints, until its output ends."""
        rest = b""
        while self.outlet >= 0:
            await anyio.wait_readable(self.outlet)
            try:
                part = os.read(self.outlet, 1 << 16) if self.outlet >= 0 else b""  # `close` may have come first
            except BlockingIOError:
                continue
            if not part:
                return
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith((b"{", b"[")):
                    await on_line(json.loads(line))

    def read_output(self) -> str:
        """Return what it printed or its terminal shows, and nobody has read yet."""
        output = b""
        with suppress(OSError):
            while part := os.read(self.outlet, 1 << 16):
                output += part
        return output.decode(errors="replace")

    def close(self) -> None:
        for end in {self.inlet, self.outlet} - {-1}:
            os.close(end)
        self.inlet = self.outlet = -1
        self.connection.close()


@dataclass
class Launcher:
    stage: Path
    plant: str | None = None
    patience: Patience | None = "usual"
    """None: the processes are the product without any seam."""
    store: str = ""
    """The URL of the store, where it is not in the home."""
    secret: str = field(default_factory=lambda: base64.b64encode(os.urandom(32)).decode())
    """What all processes on one database have in common."""
    python_path: str = ""
    """Where the processes that start from now on find another planwarden."""
    started: dict[int, Process] = field(default_factory=dict[int, Process])
    """Every process that was ever started, by its id."""

    def with_pipes(self, program: str, *arguments: str) -> Process:
        theirs_in, inlet = os.pipe()
        outlet, theirs_out = os.pipe()
        return self._spawn(program, arguments, (theirs_in, theirs_out), inlet, outlet)

    def with_terminal(self, *arguments: str) -> Process:
        mine, theirs = pty.openpty()
        return self._spawn("planwarden", arguments, (theirs,), mine, mine)

    def without_input(self, *arguments: str) -> Process:
        """Start a command or server that reads nothing; its output goes to a pipe."""
        outlet, theirs_out = os.pipe()
        return self._spawn("planwarden", arguments, (os.open(os.devnull, os.O_RDONLY), theirs_out), -1, outlet)

    def _spawn(
        self, program: str, arguments: tuple[str, ...], streams: tuple[int, ...], inlet: int, outlet: int
    ) -> Process:
        os.set_blocking(outlet, False)
        log = self.stage / "logs" / f"{len(self.started)}-{program.rpartition(':')[2]}"
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        stage = {STAGE: str(self.stage), PATIENCE: self.patience, PLANT: self.plant, "TERM": "dumb", "COLUMNS": "200"}
        environment = {**os.environ, **{name: value for name, value in stage.items() if value is not None}}
        home, shared = self.stage / "home", tuple[str, ...]()
        if self.store:
            # Each process is a machine of its own.
            home, shared = self.stage / "homes" / str(len(self.started)), ("--store", self.store)
            shutil.copytree(self.stage / "home", home)
            environment["PLANWARDEN_SECRET_KEY"] = self.secret
        words = ["-m", MODULE, program, *(["--home"] if program == "planwarden" else []), str(home)]
        order = json.dumps([[*words, *arguments, *shared], environment, str(ROOT)]).encode()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(fork_server(self.python_path))
        try:
            socket.send_fds(connection, [order], [streams[0], streams[-1], streams[0] if len(streams) == 1 else errors])
            pid = int(connection.recv(64))
        finally:
            for stream in {*streams, errors}:
                os.close(stream)
        process = Process(pid, log, connection, inlet, outlet)
        self.started[pid] = process
        return process

    def desks_of(self, parent: int) -> list[int]:
        """Return the living downstream servers that this process started."""
        lines = Ledger.of(self.stage).lines("desk")
        return [line.pid for line in lines if line.facts["parent"] == parent and is_running(line.pid)]
