"""From start to exit: `list`, `show` and `approve` as a person runs them, on a home with a hundred open questions.

`approve` gets a terminal of its own, on which `y` is typed as soon as the question appears; it runs the two
remaining steps.
Run as `python -m benchmarks.commands HOME`, it only makes the home, and prints its questions.
"""

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.planwarden_side import suspend_one
from benchmarks.side import together
from benchmarks.startup import ENVIRONMENT
from planwarden import Warden

WAITING = 100
TOOLS = """
import planwarden
from benchmarks.workload import FUNCTIONS

mark = planwarden.tool(risk="read", effect="effect")
globals().update({function.__name__: mark(function) for function in FUNCTIONS})
"""
QUESTION = b"Enter leaves it open]"
COMMAND = (sys.executable, "-m", "planwarden.server.main")


async def suspend_all(home: Path) -> list[tuple[str, str]]:
    """Returns thread and suspension ids of executions that wait."""
    async with Warden(home=home) as opened:
        return await together(lambda: suspend_one(opened), WAITING)


def make_home(home: Path) -> list[tuple[str, str]]:
    """Returns the questions of a new home, whose settings name the tools that they need."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "tools.py").write_text(TOOLS, encoding="utf-8")
    (home / "planwarden.toml").write_text('[tools]\npython = ["tools.py"]\n', encoding="utf-8")
    return asyncio.run(suspend_all(home))


def measure(home: Path, times: int) -> dict[str, list[float]]:
    """Seconds from start to exit of each command, the first of each left out, because it finds no bytecode."""
    made = subprocess.run([sys.executable, "-m", "benchmarks.commands", str(home)], check=True, stdout=subprocess.PIPE)
    waiting: list[tuple[str, str]] = json.loads(made.stdout)
    # The disk still writes what was made.
    os.sync()
    found: dict[str, list[float]] = {"list": [], "show": [], "approve": []}
    for turn, (thread, suspension) in enumerate(waiting[: times + 1]):
        words = {"list": ("list",), "show": ("show", thread), "approve": ("approve", suspension)}
        for name, arguments in words.items():
            seconds = _run(("--home", str(home), *arguments))
            if turn:
                found[name].append(seconds)
    return found


def _run(arguments: Sequence[str]) -> float:
    """Raises `RuntimeError` with what the command wrote when it fails."""
    ours, theirs = pty.openpty()
    begin = time.perf_counter()
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=ENVIRONMENT
    ) as process:
        os.close(theirs)
        shown = bytearray()
        has_answered = False
        while block := _read(ours):
            shown += block
            if not has_answered and QUESTION in shown:
                os.write(ours, b"y\n")
                has_answered = True
        code = process.wait()
    os.close(ours)
    if code:
        raise RuntimeError(f"{arguments[2]} ended with {code}: {shown.decode(errors='replace')[-500:]}")
    return time.perf_counter() - begin


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        # Linux says EIO when the last process has closed its side.
        return b""


if __name__ == "__main__":
    print(json.dumps(make_home(Path(sys.argv[1]))))
