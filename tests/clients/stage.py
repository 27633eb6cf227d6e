"""Where a client plays: a home with a ledger, a launcher of the real command behind the tap, and what went over the wire.

Facts come from the wire and from the ledger, never from what a client says about itself.
"""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.clients.tap import KEEP
from tests.server.cli.support import Cli, clean_environment, on_terminal
from tests.support.wardens import confirm, plan, tool_step

TOOLS = '''
"""A tool with an append-only ledger on disk."""

from pathlib import Path

import planwarden

LEDGER = Path(__file__).with_name("ledger.txt")


@planwarden.tool(risk="read")
def note(text: str) -> str:
    """Write a line."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{text}\\n")
    return "written"
'''
PLAN = plan(
    tool_step("before", "note", {"text": "first"}),
    confirm("ask"),
    tool_step("after", "note", {"text": "second"}),
)
META_VERSION = "io.modelcontextprotocol/protocolVersion"
LIMIT_S = 120
"""For one run of a client; the slowest hosts take some twenty seconds."""

Message = dict[str, Any]
Call = tuple[str, dict[str, Any]]
"""Tool and arguments."""


class Failed(Exception):
    """A client could not be run to its end; the message has the end of its output."""


@dataclass(frozen=True)
class Stage:
    """One client's folder; `home` below it is planwarden's."""

    folder: Path
    tools: str = TOOLS
    kills: bool = True
    """The server is lost when it says `suspended` for the first time."""

    @cached_property
    def home(self) -> Path:
        """Made when it is first asked for."""
        home = self.folder / "home"
        home.mkdir(mode=0o700)
        (home / "tools.py").write_text(self.tools, encoding="utf-8")
        (home / "planwarden.toml").write_text('[tools]\npython = ["tools.py"]\n', encoding="utf-8")
        return home

    @cached_property
    def launcher(self) -> Path:
        """A program without arguments that serves this home over standard input and output."""
        script = self.folder / "planwarden"
        tap = Path(__file__).with_name("tap.py")
        words = [sys.executable, str(tap), str(self.folder), *([] if self.kills else [KEEP])]
        command = [*words, str(installed_command()), "--home", str(self.home)]
        script.write_text(f"#!/bin/sh\nexec {shlex.join(command)} serve\n", encoding="utf-8")
        script.chmod(0o755)
        return script

    def config(self, client: str) -> str:
        """What `planwarden config print` says to paste, with the launcher in the place of the command."""
        said = Cli(self.home).spawn("config", "print", client)
        assert said.code == 0, said.err
        assert str(installed_command()) in said.out, said.out
        return said.out.replace(str(installed_command()), str(self.launcher))

    def run(self, command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
        """The output of a client. Raises `Failed` when it ends with an error or not at all."""
        place = cwd or self.folder
        try:
            done = subprocess.run(
                command,
                cwd=place,
                # opencode takes the project from PWD, not from where it was started.
                env=clean_environment({"PWD": str(place), **(env or {})}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"did not end within {LIMIT_S} s: {(error.stdout or b'').decode()[-1500:]}") from error
        output = done.stdout.decode(errors="replace")
        if done.returncode != 0:
            raise Failed(f"ended with {done.returncode}: {output[-1500:]}")
        return output

    @property
    def ledger(self) -> list[str]:
        path = self.home / "ledger.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def is_killed(self) -> bool:
        """The tap killed the server."""
        return (self.folder / "killed").exists()

    @property
    def wire(self) -> list[tuple[str, Message]]:
        """Speaker and message, in the order in which they passed."""
        log = self.folder / "wire.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [(line["from"], line["message"]) for line in map(json.loads, lines)]

    @property
    def versions(self) -> list[str]:
        """Protocol versions that were agreed on, each once."""
        found = [version for speaker, message in self.wire for version in _versions(speaker, message)]
        return list(dict.fromkeys(found))

    @property
    def tools_listed(self) -> int:
        """Tools in the longest answer to `tools/list`."""
        lists = [message["result"]["tools"] for _, message in self.wire if "tools" in message.get("result", {})]
        return max(map(len, lists), default=0)

    @property
    def forms(self) -> int:
        """Questions that were put to the client."""
        pushed = [m for who, m in self.wire if who == "server" and m.get("method") == "elicitation/create"]
        returned = [m for _, m in self.wire if m.get("result", {}).get("inputRequests")]
        return len(pushed) + len(returned)

    @property
    def linked(self) -> list[str]:
        """Questions whose pages tasks asked the client to open, each once."""
        found: list[str] = []
        for _, message in self.wire:
            requests: Message = message.get("result", {}).get("inputRequests") or {}
            found += [key.partition(".")[0] for key, asked in requests.items() if asked["params"].get("mode") == "url"]
        return list(dict.fromkeys(found))

    @property
    def updates(self) -> int:
        """Answers that the client gave to what tasks asked."""
        return sum(message.get("method") == "tasks/update" for _, message in self.wire)

    def called(self, tool: str) -> list[Message]:
        """Structured answers to a tool's calls, in order."""
        return [content for name, content in self._answers() if name == tool]

    def _answers(self) -> Iterator[tuple[str, Message]]:
        """Also those that came in the end of a task."""
        asked: dict[Any, str] = {}
        tasks: dict[str, str] = {}
        for speaker, message in self.wire:
            if speaker == "client" and message.get("method") == "tools/call":
                asked[message["id"]] = message["params"]["name"]
            elif speaker == "client" and message.get("method") == "tasks/get":
                asked[message["id"]] = tasks[message["params"]["taskId"]]
            elif speaker == "server" and message.get("id") in asked and "method" not in message:
                result = message.get("result", {})
                if result.get("resultType") == "task":
                    tasks[result["taskId"]] = asked[message["id"]]
                content = result.get("result", result).get("structuredContent")
                if content is not None:
                    yield asked[message["id"]], content

    def approve(self, suspension_id: str) -> None:
        """A person types yes at a terminal."""
        terminal = on_terminal(Cli(self.home), "approve", suspension_id)
        try:
            terminal.expect("Enter leaves it open]")
            terminal.type("y")
            assert terminal.finish() == 0, terminal.plain
        finally:
            terminal.close()

    def status(self, thread_id: str) -> str:
        """What the store says, through a process of its own."""
        return str(Cli(self.home).spawn("show", thread_id, "--json").json["status"])


def installed_command() -> Path:
    """The command of this environment, as `config print` names it."""
    return Path(sysconfig.get_path("scripts")) / ("planwarden.exe" if os.name == "nt" else "planwarden")


def _versions(speaker: str, message: Message) -> Iterator[str]:
    if speaker == "server" and "protocolVersion" in message.get("result", {}):
        yield message["result"]["protocolVersion"]
    meta: Message = message.get("params", {}).get("_meta", {}) if speaker == "client" else {}
    if META_VERSION in meta and message.get("method") == "tools/call":
        yield meta[META_VERSION]
