"""One part of the fuzzing: so many inputs to one entrance, each judged, and watched for what goes wrong besides:
stalls of the event loop, and log lines that report a defect.

A stall is the time between two ticks of the loop that this process spent computing: the lesser of the wall clock and
of its own processor time, so that other programs on a busy machine do not count, and a thread of ours that keeps the
interpreter's lock does.
"""

import asyncio
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, process_time

import anyio

from tests.fuzz import downstream, frames, inbox, rows, settings, shell
from tests.fuzz.entrance import Entrance, Opener, Wrong
from tests.fuzz.inputs import Mutator

TICK_S = 0.002
STALL_S = 0.1


class LoopWatch:
    """Ticks in the running loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._at = (0.0, 0.0)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts, or starts anew."""
        if self._timer is not None:
            self._timer.cancel()
        self._longest_s = 0.0
        self._at = (monotonic(), process_time())
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> float:
        """Returns the longest stall in seconds, the time of the ticks themselves included."""
        if self._timer is None:
            return 0.0
        self._measure()
        self._timer.cancel()
        return self._longest_s

    def _tick(self) -> None:
        self._measure()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _measure(self) -> None:
        now = (monotonic(), process_time())
        self._longest_s = max(self._longest_s, min(now[0] - self._at[0], now[1] - self._at[1]))
        self._at = now


class LogWatch(logging.Handler):
    """Keeps the records that report a defect: those with a traceback, and those of the event loop."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: list[str] = []
        self._formatter = logging.Formatter("%(levelname)s %(name)s: %(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.stack_info or "Traceback" in record.getMessage() or record.name == "asyncio":
            self._found.append(self._formatter.format(record))

    def take(self) -> list[str]:
        found, self._found = self._found, []
        return found


@contextmanager
def watching_log() -> Generator[LogWatch]:
    """Takes all log lines of this process; nothing reaches the terminal."""
    root, watch = logging.getLogger(), LogWatch()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [watch]
    root.setLevel(logging.WARNING)
    try:
        yield watch
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


logger = logging.getLogger(__name__)

ANSWER_S = 60.0
INPUTS_A_HOME = 400
"""Inputs that one home takes, so that none of them gets slow because thousands came before."""
INPUTS_A_CHECK = 50
"""Inputs between two ordinary requests."""
REPEATS = 2
"""How often an input has to stall again: a collection of garbage happens once."""
SENT_CHARS = 3_000
MAX_FINDINGS = 500
"""After so many a part ends: something is broken, and the rest would say the same."""

ENTRANCES: Mapping[str, Opener] = {
    "plans": frames.opening(frames.make_plan),
    "arguments": frames.opening(frames.make_arguments),
    "answers": frames.opening(frames.make_answer),
    "http": frames.opening(),
    "stdio": frames.open_stdio,
    "sockets": frames.open_sockets,
    "rows": rows.open_rows,
    "downstream": downstream.open_downstream,
    "inbox": inbox.open_inbox,
    "settings": settings.open_files,
    "commands": settings.open_commands,
    "tokens": settings.open_tokens,
    "shell": shell.open_shell,
}


@dataclass
class Part:
    entrance: str
    seed: int
    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    longest_stall_s: float = 0.0
    stalls: int = 0
    slowest: str = ""
    """The input of the longest stall."""
    findings: Counter[str] = field(default_factory=Counter[str])
    """How often each defect was seen, by its kind."""
    examples: list[str] = field(default_factory=list[str])
    """The first input that showed each."""
    seconds: float = 0.0

    def add(self, where: str, what: str, sent: object = None) -> None:
        kind = re.sub(r"[0-9a-f]{16,}|\d+", "N", f"{what[:60]} … {what[-100:]}")
        self.findings[kind] += 1
        if self.findings[kind] == 1:
            self.examples.append(f"{where}: {what}\n    sent {str(sent)[:SENT_CHARS]}")


async def run_part(name: str, *, inputs: int, seed: int, until: float) -> Part:
    """Sends `inputs` inputs, fewer if the monotonic clock reaches `until`."""
    part, began = Part(name, seed), monotonic()
    with watching_log() as log:
        while part.inputs < inputs and monotonic() < until and part.findings.total() < MAX_FINDINGS:
            with tempfile.TemporaryDirectory() as folder:
                await _run_home(
                    part, ENTRANCES[name](Path(folder)), log, min(INPUTS_A_HOME, inputs - part.inputs), until
                )
    part.seconds = monotonic() - began
    return part


async def _run_home(
    part: Part, opening: AbstractAsyncContextManager[Entrance], log: LogWatch, inputs: int, until: float
) -> None:
    first = part.inputs
    try:
        async with opening as entrance:
            while part.inputs < first + inputs and monotonic() < until:
                await _run_input(part, entrance, log)
                if part.inputs % INPUTS_A_CHECK == 0:
                    with anyio.fail_after(ANSWER_S):
                        await entrance.check_alive()
            with anyio.fail_after(ANSWER_S):
                await entrance.check_alive()
    # Whatever ends the server is a finding, and the next home starts a new one.
    except Exception:
        part.inputs = max(part.inputs, first + 1)
        logger.exception("the server ended")
    for line in log.take():
        part.add(f"{part.entrance} up to input {part.inputs}", f"log: {line}")


async def _run_input(part: Part, entrance: Entrance, log: LogWatch) -> None:
    part.inputs += 1
    name, watch = f"{part.seed}:{part.entrance}:{part.inputs}", LoopWatch()
    mutator = Mutator(name, watch.start)
    found: list[str] = []
    try:
        stall_s = await _send(part, entrance, mutator, watch)
        if stall_s > STALL_S:
            again = [await _send(part, entrance, Mutator(name, watch.start), watch) for _ in range(REPEATS)]
            stall_s = min([stall_s, *again])
        if stall_s > part.longest_stall_s:
            part.longest_stall_s, part.slowest = stall_s, str(mutator.sent)[:SENT_CHARS]
        part.stalls += stall_s > STALL_S
    except Wrong as error:
        found.append(f"wrong: {error}")
    # The entrance itself failed, and so would whoever calls it.
    except Exception:
        logger.exception("not handled")
    found.extend(f"log: {line}" for line in log.take())
    for what in found:
        part.add(name, what, mutator.sent)


async def _send(part: Part, entrance: Entrance, mutator: Mutator, watch: LoopWatch) -> float:
    try:
        with anyio.fail_after(ANSWER_S):
            part.outcomes[await entrance.send(mutator)] += 1
    finally:
        stall_s = watch.stop()
    return stall_s
