"""The stage of a client: a home with a ledger, a launcher that runs the real command behind the tap, and the messages.

Facts come from the messages and the ledger, never from what a client says about itself.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tests.server.cli.support import Cli, clean_environment, start_on_terminal
from tests.server.inbox.support import follow_link
from tests.support.wardens import confirm, plan, tool_step

TOOLS = '''
"""A tool with an append-only ledger on disk."""

from pathlib import Path

import planwarden

LEDGER = Path(__file__).with_name("ledger.txt")


@planwarden.tool(risk="read", effect="effect")
def note(text: str) -> str:
    """Write a line."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{text}\\n")
    return "written"
'''
PLAN = plan(
    tool_step("before", "note", {"text": "first"}), confirm("ask"), tool_step("after", "note", {"text": "second"})
)
META_VERSION = "io.modelcontextprotocol/protocolVersion"
LIMIT_S = 300
"""For one run of a client; the slowest hosts take up to a minute on a machine of two cores that does other things."""

Message = dict[str, Any]
Call = tuple[str, dict[str, Any]]
"""Tool and arguments."""


class Failed(Exception):
    """A client did not run to its end; the message has the end of its output."""


@dataclass(frozen=True)
class Stage:
    """One client's folder; `home` below it is planwarden's."""

    folder: Path
    tools: str = TOOLS
    kills: bool = True
    """The tap kills the server when it first answers `suspended`."""
    words: tuple[str, ...] = ("serve",)
    """What the launcher says to planwarden."""

    @cached_property
    def home(self) -> Path:
        """The home of planwarden, which the first access creates."""
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
        words = [sys.executable, str(tap), str(self.folder), "kill" if self.kills else "keep"]
        command = [*words, str(find_installed_command()), "--home", str(self.home)]
        script.write_text(f"#!/bin/sh\nexec {shlex.join([*command, *self.words])}\n", encoding="utf-8")
        script.chmod(0o755)
        return script

    def config(self, client: str) -> str:
        return print_config(Cli(self.home), client, self.launcher)

    def run(self, command: list[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
        """Runs a client and returns its output. Raises `Failed` when it ends with an error or not at all."""
        place = cwd or self.folder
        # opencode finds the project by PWD, not by its working directory.
        return run_client(command, place, clean_environment({"PWD": str(place), **(env or {})}))

    @property
    def ledger(self) -> list[str]:
        path = self.home / "ledger.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def is_killed(self) -> bool:
        return (self.folder / "killed").exists()

    @property
    def wire(self) -> list[tuple[str, Message]]:
        """Sender and message, in the order in which they passed."""
        log = self.folder / "wire.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [(line["from"], line["message"]) for line in map(json.loads, lines)]

    @property
    def versions(self) -> list[str]:
        """Protocol versions that were agreed on, each once."""
        found = [version for speaker, message in self.wire for version in _read_versions(speaker, message)]
        return list(dict.fromkeys(found))

    @property
    def tools_listed(self) -> int:
        """The number of tools in the longest answer to `tools/list`."""
        lists = [message["result"]["tools"] for _, message in self.wire if "tools" in message.get("result", {})]
        return max(map(len, lists), default=0)

    @property
    def form_count(self) -> int:
        """The number of questions that the client received."""
        pushed = [m for who, m in self.wire if who == "server" and m.get("method") == "elicitation/create"]
        returned = [m for _, m in self.wire if m.get("result", {}).get("inputRequests")]
        return len(pushed) + len(returned)

    @property
    def linked_questions(self) -> list[str]:
        """The questions whose pages the client was asked to open, each once."""
        found: list[str] = []
        for _, message in self.wire:
            requests: Message = message.get("result", {}).get("inputRequests") or {}
            found += [
                key.partition(".")[0]
                for key, tool_of_request in requests.items()
                if tool_of_request["params"].get("mode") == "url"
            ]
        return list(dict.fromkeys(found))

    @property
    def update_count(self) -> int:
        """The number of answers that the client gave to questions of tasks."""
        return sum(message.get("method") == "tasks/update" for _, message in self.wire)

    def results_of(self, tool: str) -> list[Message]:
        return [content for name, content in self._answers() if name == tool]

    def _answers(self) -> Iterator[tuple[str, Message]]:
        """Yields the tool and the result of each call, also of calls that ran as tasks."""
        tool_of_request: dict[Any, str] = {}
        tasks: dict[str, str] = {}
        for speaker, message in self.wire:
            if speaker == "client" and message.get("method") == "tools/call":
                tool_of_request[message["id"]] = message["params"]["name"]
            elif speaker == "client" and message.get("method") == "tasks/get":
                tool_of_request[message["id"]] = tasks[message["params"]["taskId"]]
            elif speaker == "server" and message.get("id") in tool_of_request and "method" not in message:
                result = message.get("result", {})
                if result.get("resultType") == "task":
                    tasks[result["taskId"]] = tool_of_request[message["id"]]
                content = result.get("result", result).get("structuredContent")
                if content is not None:
                    yield tool_of_request[message["id"]], content

    def approve(self, suspension_id: str) -> None:
        """Approves as a person who types yes at a terminal."""
        terminal = start_on_terminal(Cli(self.home), "approve", suspension_id)
        try:
            terminal.expect("Enter leaves it open]")
            terminal.type("y")
            assert terminal.finish() == 0, terminal.text
        finally:
            terminal.close()

    def status(self, thread_id: str) -> str:
        return str(Cli(self.home).spawn("show", thread_id, "--json").json["status"])


def find_installed_command() -> Path:
    """Returns the command of this environment, as `config print` names it."""
    return Path(sysconfig.get_path("scripts")) / ("planwarden.exe" if os.name == "nt" else "planwarden")


def _read_versions(speaker: str, message: Message) -> Iterator[str]:
    if speaker == "server" and "protocolVersion" in message.get("result", {}):
        yield message["result"]["protocolVersion"]
    meta: Message = message.get("params", {}).get("_meta", {}) if speaker == "client" else {}
    if META_VERSION in meta and message.get("method") == "tools/call":
        yield meta[META_VERSION]


def run_client(command: list[str], place: Path, env: dict[str, str]) -> str:
    """Runs a client and returns its output. Raises `Failed` when it ends with an error or not at all."""
    try:
        done = subprocess.run(
            command,
            cwd=place,
            env=env,
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


WIDE = 300
"""Columns at which no link is broken into lines."""


def print_config(cli: Cli, host: str, launcher: Path) -> str:
    """Returns the output of `planwarden config print`, with the launcher in place of the command."""
    result = cli.spawn("config", "print", host)
    assert result.code == 0 and str(find_installed_command()) in result.out, result
    return result.out.replace(str(find_installed_command()), str(launcher))


async def decide_on_page(home: Path, suspension_id: str, press: Literal["approve", "reject"] = "approve") -> str:
    """Opens the question as a person of this home, presses the button, and returns the words of the page.

    The inbox is that of a server that runs, or else of the command that prints the link.
    """
    terminal = start_on_terminal(Cli(home), "inbox", "--no-open", columns=WIDE)
    try:
        terminal.expect("code=")
        terminal.expect("\n")
        async with follow_link(terminal.text) as browser:
            page = await browser.open(f"/inbox/suspensions/{suspension_id}")
            answer = await browser.submit(page.form("/decision"), press=press)
            assert answer.status == 303, f"the page answered {answer.status}: {answer.words}"
            return page.words
    finally:
        # As Ctrl-C does; where another process serves the page, the command has ended already.
        terminal.process.send_signal(signal.SIGINT)
        terminal.finish()
        terminal.close()
