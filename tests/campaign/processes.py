"""The planwarden processes of a stage: servers, programs with a `Warden`, commands; and how they are hurt."""

import base64
import json
import os
import pty
import re
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from tests.campaign.ledger import Ledger, is_running
from tests.campaign.nursery import Nursery
from tests.campaign.patience import PATIENCE_VARIABLE, Patience
from tests.campaign.shop import STAGE_VARIABLE
from tests.campaign.worker import PLANT_VARIABLE

POLL_S = 0.02
START_S = 30.0


class Lost(Exception):
    """The process ended or did not answer in time; whether it did what was asked is unknown."""


@dataclass
class Process:
    """One forked process and the ends of its streams. Its standard error goes to a file."""

    pid: int
    log: Path
    nursery: Nursery
    inlet: int = -1
    outlet: int = -1
    hurts: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When it was stopped or told to end, and until when, by the clock that never jumps."""

    @property
    def has_ended(self) -> bool:
        return self.nursery.exit_code(self.pid) is not None

    def kill(self) -> None:
        self.hurts.append((time.monotonic(), float("inf")))
        self.signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.hurts.append((time.monotonic(), float("inf")))
        self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def pause(self, seconds: float, others: list[int]) -> None:
        """Stops it and these other processes for some seconds."""
        began = time.monotonic()
        self.hurts.append((began, float("inf")))
        self.signal(signal.SIGSTOP)
        try:
            for other in others:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGSTOP)
            await anyio.sleep(seconds)
        finally:
            for other in others:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGCONT)
            self.signal(signal.SIGCONT)
            self.hurts[self.hurts.index((began, float("inf")))] = (began, time.monotonic())

    @property
    def was_ended(self) -> bool:
        """It was killed or told to end."""
        return any(until == float("inf") for _, until in self.hurts)

    def was_hurt_before(self, at: float) -> bool:
        return any(since <= at for since, _ in self.hurts)

    def was_hurt(self, at: float, margin_s: float) -> bool:
        """Whether it was stopped or ended at that moment, or within `margin_s` before."""
        return any(since <= at <= until + margin_s for since, until in self.hurts)

    async def wait_for_log(self, pattern: str) -> str:
        """The first group of the pattern in its standard error. Raises `Lost` when it ends or says nothing."""
        with anyio.move_on_after(START_S):
            while not self.has_ended:
                found = re.search(pattern, self.log.read_text(encoding="utf-8", errors="replace"))
                if found:
                    return found.group(1)
                await anyio.sleep(POLL_S)
        raise Lost(f"process {self.pid} did not start: {self.log.read_text(errors='replace')[-400:]}")

    async def wait(self, seconds: float) -> int:
        """Its exit code. Raises `Lost` after that many seconds, and kills it."""
        with anyio.move_on_after(seconds):
            while True:
                if (code := self.nursery.exit_code(self.pid)) is not None:
                    return code
                await anyio.sleep(POLL_S)
        self.kill()
        raise Lost(f"process {self.pid} did not end")

    def close(self) -> None:
        for end in {self.inlet, self.outlet} - {-1}:
            os.close(end)
        self.inlet = self.outlet = -1


@dataclass
class Launcher:
    """Starts processes on one home."""

    stage: Path
    nursery: Nursery
    plant: str | None = None
    patience: Patience = "usual"
    store: str = ""
    """The URL of the store, where it is not in the home."""
    secret: str = field(default_factory=lambda: base64.b64encode(os.urandom(32)).decode())
    """What all processes on one database have in common."""
    started: dict[int, Process] = field(default_factory=dict[int, Process])
    """Every process that was ever started, by its id."""

    @property
    def home(self) -> Path:
        return self.stage / "home"

    def with_pipes(self, program: str, *arguments: str) -> Process:
        """A process whose input and output are pipes to the driver."""
        theirs_in, inlet = os.pipe()
        outlet, theirs_out = os.pipe()
        os.set_blocking(outlet, False)
        return self._spawn(program, arguments, (theirs_in, theirs_out), inlet, outlet)

    def with_terminal(self, *arguments: str) -> Process:
        """A command at a terminal on which the driver reads and types."""
        mine, theirs = pty.openpty()
        os.set_blocking(mine, False)
        return self._spawn("planwarden", arguments, (theirs,), mine, mine)

    def without_input(self, *arguments: str) -> Process:
        """A command or server that reads nothing; its output goes to a pipe."""
        outlet, theirs_out = os.pipe()
        os.set_blocking(outlet, False)
        return self._spawn("planwarden", arguments, (os.open(os.devnull, os.O_RDONLY), theirs_out), -1, outlet)

    def _spawn(
        self, program: str, arguments: tuple[str, ...], streams: tuple[int, ...], inlet: int, outlet: int
    ) -> Process:
        log = self.stage / "logs" / f"{len(self.started)}-{program}"
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        environment = {STAGE_VARIABLE: str(self.stage), "TERM": "dumb", "COLUMNS": "200"}
        if self.plant is not None:
            environment[PLANT_VARIABLE] = self.plant
        environment |= {PATIENCE_VARIABLE: self.patience}
        home, shared = self.home, tuple[str, ...]()
        if self.store:
            # Each process is a machine of its own.
            home, shared = self.stage / "homes" / str(len(self.started)), ("--store", self.store)
            shutil.copytree(self.home, home)
            environment["PLANWARDEN_SECRET_KEY"] = self.secret
        given = (*(("--home",) if program == "planwarden" else ()), str(home), *arguments, *shared)
        standard_error = streams[0] if len(streams) == 1 else errors
        try:
            pid = self.nursery.spawn(program, given, environment, (streams[0], streams[-1], standard_error))
        finally:
            for stream in {*streams, errors}:
                os.close(stream)
        process = Process(pid, log, self.nursery, inlet, outlet)
        self.started[pid] = process
        return process

    def desks_of(self, parent: int) -> list[int]:
        """The living downstream servers that this process started."""
        lines = Ledger(self.stage).lines("desk")
        return [line.pid for line in lines if line.facts["parent"] == parent and is_running(line.pid)]


async def read_lines(process: Process, on_line: Any) -> None:
    """Calls `on_line` with every JSON line that the process prints, until its output ends."""
    rest = b""
    while process.outlet >= 0:
        await anyio.wait_readable(process.outlet)
        try:
            part = os.read(process.outlet, 1 << 16)
        except BlockingIOError:
            continue
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith((b"{", b"[")):
                await on_line(json.loads(line))
