"""What tests of the command line share: a home whose tools keep a ledger, ways to run commands in this process or in
another one, and a terminal that a test reads and types on.
"""

import asyncio
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.main import main
from planwarden.server.views.encoding import to_json
from planwarden.storage.sqlite.store import SqliteStore
from tests.support.forking import forked_command_line

P = ParamSpec("P")
T = TypeVar("T")
needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals and no signals")


def at_terminal(test: Callable[P, None]) -> Callable[P, None]:
    return pytest.mark.slow(needs_terminal(test))


ANSWER_S = 60.0
"""Seconds after which a silent terminal has failed."""

TOOLS = '''
"""Tools that record each effect in a ledger."""

import os
from pathlib import Path

import anyio

import planwarden

HOME = Path(__file__).parent


def _note(text: str) -> None:
    with (HOME / "ledger").open("a") as file:
        file.write(text + "\\n")


@planwarden.tool(risk="read", effect="read")
async def find(topic: str) -> dict[str, object]:
    """Find ids for a topic."""
    _note(f"find {topic}")
    return {"ids": [1, 2, 3]}


@planwarden.tool
async def erase(ids: list[int], note: str = "none") -> dict[str, object]:
    """Delete records."""
    _note(f"erase {ids} {note}")
    return {"erased": len(ids)}


@planwarden.tool(risk="critical")
async def wipe() -> str:
    """Delete everything."""
    _note("wipe")
    return "gone"


@planwarden.tool(risk="read", effect="effect")
async def lost() -> str:
    """Send something; the first time the outcome stays unknown."""
    known = HOME / "ledger"
    if known.exists() and "lost" in known.read_text():
        _note("found")
        return "second"
    _note("lost")
    raise planwarden.OutcomeUnknown("the line went dead")


@planwarden.tool(risk="read", effect="read")
async def hang() -> str:
    """Report through the pipe `started` that it runs; only the second call returns."""
    if (HOME / "hung").exists():
        return "done"
    (HOME / "hung").touch()
    with (HOME / "started").open("w") as pipe:
        pipe.write("running")
    await anyio.sleep_forever()
    return ""
'''


@dataclass
class Cli:
    home: Path
    capture: pytest.CaptureFixture[str] | None = None

    @property
    def ledger(self) -> list[str]:
        path = self.home / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    def write(self, name: str, document: JsonValue) -> str:
        path = self.home / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document), encoding="utf-8")
        return str(path)

    def add_settings(self, text: str) -> None:
        with (self.home / "planwarden.toml").open("a", encoding="utf-8") as file:
            file.write(f"\n{text}\n")

    def set_risk(self, tool: str, risk: str) -> None:
        self.add_settings(f'[tools.{tool}]\nrisk = "{risk}"')

    def main(self, *words: str) -> "CommandResult":
        assert self.capture is not None
        return run_in_process(self.capture, "--home", str(self.home), *words)

    def spawn(self, *words: str, stdin: str = "", env: Mapping[str, str] | None = None) -> "CommandResult":
        done = subprocess.run(
            forked_command_line("--home", str(self.home), *words),
            input=stdin,
            capture_output=True,
            text=True,
            env=clean_environment(env),
            timeout=120,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    @property
    def newest_thread(self) -> str:
        return str(self.main("show", "--json").json["threadId"])

    def with_store(self, work: Callable[[SqliteStore], Awaitable[T]]) -> T:
        """Returns what becomes of the work with the store of the home."""

        async def run() -> T:
            store = SqliteStore.open(self.home / "planwarden.db")
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def ask(self, question: Callable[[planwarden.Warden], Awaitable[Any]]) -> dict[str, JsonValue]:
        """Returns what the warden of the home answers, as MCP sends it."""

        async def work() -> dict[str, JsonValue]:
            async with planwarden.Warden(self.home) as warden:
                return to_json(await question(warden))

        return asyncio.run(work())

    def run_to_question(self, *steps: JsonValue) -> str:
        result = self.main("run", self.write("plan.json", {"todoList": list(steps)}), "--json")
        assert result.code == 3, result
        return str(result.json["suspensions"][0]["suspensionId"])


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one document on standard output."""
        return json.loads(self.out)


def run_in_process(capture: pytest.CaptureFixture[str], *words: str) -> CommandResult:
    capture.readouterr()
    try:
        code: object = main(list(words))
    except SystemExit as stop:
        code = stop.code
    out, err = capture.readouterr()
    assert isinstance(code, int)
    return CommandResult(code, out, err)


@dataclass
class PtyTerminal:
    """A process on its own terminal, which a test reads and types on."""

    process: "subprocess.Popen[bytes]"
    descriptor: int
    seen: str = ""
    _read: int = field(default=0)

    def expect(self, text: str) -> None:
        """Reads until `text` appears after the text that was expected before."""
        deadline = time.monotonic() + ANSWER_S
        while (found := self.text.find(text, self._read)) < 0:
            if (
                not select.select([self.descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]
                or not self._read_more()
            ):
                raise AssertionError(f"{text!r} did not appear; the terminal shows:\n{self.text}")
        self._read = found + len(text)

    def type(self, line: str) -> None:
        os.write(self.descriptor, f"{line}\n".encode())

    def play(self, *script: str) -> int:
        """Types the lines that begin with `> `, waits for each of the others, and returns the exit code."""
        for line in script:
            if line.startswith("> "):
                self.type(line.removeprefix("> "))
            else:
                self.expect(line)
        return self.finish()

    def finish(self) -> int:
        while select.select([self.descriptor], [], [], ANSWER_S)[0] and self._read_more():
            pass
        return self.process.wait(timeout=ANSWER_S)

    def interrupt(self) -> int:
        """Presses Ctrl-C, and returns the exit code.

        Python sees a signal that comes just before it reads a line only when the next one comes: it is pressed again.
        """
        while True:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
                return self.finish()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.descriptor)

    @property
    def text(self) -> str:
        """Everything that appeared, without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen).replace("\r", "")

    def _read_more(self) -> bool:
        try:
            data = os.read(self.descriptor, 65_536)
        except OSError:
            # Linux reports EIO when the last process has closed its side.
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)


class TypedTerminal(Terminal):
    """A terminal on which somebody types these lines, whatever it asks."""

    def __init__(self, *typed: str) -> None:
        self.output = io.StringIO()
        super().__init__(self.output, io.StringIO("".join(f"{line}\n" for line in typed)))

    @property
    def can_ask(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        return self.output.getvalue()


Open = Callable[..., PtyTerminal]
"""Runs a command, given as its words, at a terminal of its own."""


def start_on_terminal(cli: Cli, *words: str, env: Mapping[str, str] | None = None, columns: int = 110) -> PtyTerminal:
    return run_on_terminal(forked_command_line("--home", str(cli.home), *words), env, columns)


def run_on_terminal(command: Sequence[str], env: Mapping[str, str] | None = None, columns: int = 110) -> PtyTerminal:
    """Starts the command on a new terminal. Whoever kills it reads to its end, and then it is gone."""
    return PtyTerminal(
        *open_terminal(command, clean_environment({"TERM": "xterm-256color", **(env or {})}), columns, 60)
    )


def open_terminal(
    command: Sequence[str], env: Mapping[str, str], columns: int, lines: int, cwd: Path | None = None
) -> "tuple[subprocess.Popen[bytes], int]":
    """Start the command on a terminal of its own; return it with our end of the terminal."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    return process, ours


def command_line(*words: str) -> Sequence[str]:
    return [sys.executable, "-m", "planwarden.server.main", *words]


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment without variables that change what a command does or how it looks."""
    unwanted = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "EDITOR", "VISUAL")
    kept = {n: v for n, v in os.environ.items() if not n.startswith("PLANWARDEN_") and n not in unwanted}
    return {**kept, "PYTHONUTF8": "1", **(extra or {})}


def make_home(folder: Path, tools: str = TOOLS) -> Path:
    folder.mkdir(mode=0o700)
    (folder / "tools.py").write_text(tools, encoding="utf-8")
    (folder / "planwarden.toml").write_text('[tools]\npython = ["tools.py"]\n', encoding="utf-8")
    return folder


def step(step_id: str, tool: str, arguments: JsonValue = None, **extra: JsonValue) -> dict[str, JsonValue]:
    call: JsonValue = {"toolName": tool, "arguments": arguments or {}}
    return {"id": step_id, "description": f"use {tool}", "toolCalls": [call], **extra}


ERASE = step("erase", "erase", {"ids": [1, 2]})
FORM: dict[str, JsonValue] = {
    "type": "object",
    "required": ["count", "sure"],
    "properties": {
        "count": {"type": "integer", "minimum": 1, "description": "How many"},
        "sure": {"type": "boolean"},
        "size": {"type": "string", "enum": ["small", "large"], "default": "small"},
        "note": {"type": "string"},
    },
}
ASK_FORM = step("ask", "requestInput", {"message": "Which ones?", "form": FORM})
