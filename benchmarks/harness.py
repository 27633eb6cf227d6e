"""What every benchmark does: start processes of sides, write results with where they were measured, and sum up."""

import importlib.metadata
import json
import os
import platform
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Self

from platformdirs import user_cache_path

HERE = Path(__file__).parent
README = HERE / "README.md"
IMAGES = HERE.parent / "docs" / "images"
TIMEOUT_S = 300.0
"""Seconds after which a process that does not answer is taken for stuck."""

Effects = SimpleQueue[tuple[str, float]]
Row = tuple[str, ...]


class Child:
    """A side in a process of its own, see `benchmarks.child`. `effects` are those that it reports: name and time."""

    def __init__(
        self, module: str, variant: str, place: object, effects: Effects | None = None, tree: Path | None = None
    ) -> None:
        """`tree` is another checkout of planwarden, to be run with its own Python; None for this one."""
        python = sys.executable if tree is None else str(tree / ".venv/bin/python")
        self.effects: Effects = effects or SimpleQueue()
        self._command = [python, "-m", "benchmarks.child", module, variant, str(place)]
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._process = subprocess.Popen(
            self._command, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        self.read()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()

    def send(self, do: str, **arguments: object) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """Return the answer to the oldest command that has none yet."""
        answer = self._answers.get(timeout=TIMEOUT_S)
        if answer is None:
            raise RuntimeError(f"{self._command} ended with code {self._process.wait()}; its error is above")
        return answer

    def call(self, do: str, **arguments: object) -> dict[str, Any]:
        """Send a command and return the answer."""
        self.send(do, **arguments)
        return self.read()

    def stop(self) -> None:
        """Freeze it, as a machine that pauses does."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            facts: dict[str, Any] = json.loads(line)
            if "effect" in facts:
                self.effects.put((facts["effect"], facts["at"]))
            else:
                self._answers.put(facts)
        self._answers.put(None)


@contextmanager
def make_folder() -> Generator[Path]:
    """Make a folder on the disk where planwarden keeps its data by default: in memory, every commit would be free."""
    cache = user_cache_path("planwarden")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="bench-") as folder:
        yield Path(folder)


def read_result(name: str) -> dict[str, Any]:
    """Return what `write_result` wrote."""
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def write_result(name: str, result: dict[str, Any]) -> None:
    """Write the raw figures of a benchmark."""
    (HERE / "results" / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def describe_machine(folder: Path, *libraries: str) -> dict[str, Any]:
    """Return where and with what the figures are measured."""
    processor = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _run("git", "rev-parse", "--short", "HEAD"),
        "modified": bool(_run("git", "status", "--porcelain", "--untracked-files=no")),
        "processor": processor[1] if processor else platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _run("stat", "-f", "-c", "%T", str(folder)),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "libraries": {name: importlib.metadata.version(name) for name in libraries},
    }


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE).stdout.strip()


def write_machine(facts: dict[str, Any]) -> str:
    """Return the sentence above tables."""
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    database = f"PostgreSQL {facts['postgresql']}" if "postgresql" in facts else f"SQLite {facts['sqlite']}"
    return (
        f"{facts['date']}, commit {facts['commit']}{' with local changes' if facts['modified'] else ''}; "
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']} at the start; {facts['system']}, "
        f"{facts['file_system']}; Python {facts['python']}, {database}; {libraries}."
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median and extremes."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "samples": len(values)}


def write_spread(values: dict[str, float], form: str = "{:.0f}", unit: str = "", times: float = 1) -> str:
    """Return a median with its unit, and the extremes in parentheses."""
    low, middle, high = (form.format(values[key] * times) for key in ("min", "median", "max"))
    return f"{middle}{unit} ({low}-{high})"


def write_target(title: str, value: float, limit: float, form: str = "{:.2f}", *, at_least: bool = False) -> Row:
    """Return the row of a figure that has a limit, and whether it keeps it."""
    met = value >= limit if at_least else value <= limit
    return title, form.format(value), f"{'>=' if at_least else '<='} {limit:g}", "yes" if met else "NO"
