"""The person's folder of notes, planwarden's home with the saved plan of the page, and what is printed there."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.installed import find_node, find_npm, path_with_node
from tests.server.cli.support import clean_environment, command_line
from tests.support.paths import DOCS, ROOT
from tests.support.screen import Screen, run_on_screen
from tests.tools.downstream.test_real_servers import REGISTRY_VARIABLES

PAGE = DOCS / "saved-plans.md"
PLAN_NAME = "archive"
PERSON = "ann"
HOME_SHOWN = "/home/ann"
"""What the page shows instead of the folder in which it all happens."""
NOTES = ("alps.md", "budget.md", "dentist.md")
COLUMNS, LINES = 100, 200
"""Of the person's terminal: wide enough for the page, and so high that nothing scrolls away."""
LIMIT_S = 300
VARIES = (
    (re.compile(r"\b[0-9a-f]{40}\b"), "COMMIT"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\b\d+ (?:s|min) ago\b"), "AGO"),
    (re.compile(r"(?<=(?:retry|ancel|n-now) )[0-9a-f]{6}\b"), "ID"),
    # The beginning of an id; without a digit it could be a word.
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\bCES?T\b"), "ZONE"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[+-]\d\d:\d\d|Z)?"), "TIME"),
    (re.compile(r"\b(?:localhost|127\.0\.0\.1):\d+"), "HOST"),
    (re.compile(r"[\u2800-\u28ff]"), "~"),
    (re.compile(r"! no server or worker runs on this store now.*\n"), ""),  # a killed one counts as gone after a while
)


class WentWrong(Exception):
    """Something was printed that the page does not tell; the message has it."""


def read_block(language: str) -> str:
    """Return the only block of the page in a language: the plan, the settings, the servers or the program."""
    [block] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return block


@dataclass(frozen=True)
class Place:
    """A folder that is the person's home; `notes` in it is under git, and `planwarden` is planwarden's home."""

    folder: Path

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    @property
    def home(self) -> Path:
        return self.folder / "planwarden"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the person's commands."""
        return clean_environment(
            {"PLANWARDEN_HOME": str(self.home), "LOGNAME": PERSON, "HOME": str(self.folder), "COLUMNS": "100"}
        )

    def prepare(self) -> None:
        """Makes the folder with three notes and one commit, and the home with its plan. Raises `Unavailable`."""
        for name in ("inbox", "archive"):
            (self.notes / name).mkdir(parents=True)
        (self.notes / "archive" / ".gitkeep").touch()
        self.write_notes(*NOTES)
        self.run_git("init", "-q", "-b", "main")
        for key, value in (("user.name", PERSON), ("user.email", "ann@example.org"), ("commit.gpgsign", "false")):
            self.run_git("config", key, value)
        self.run_git("add", ".")
        self.run_git("commit", "-q", "-m", "Begin")
        self.home.mkdir(mode=0o700)
        (self.home / "plans").mkdir()
        (self.home / "plans" / f"{PLAN_NAME}.yaml").write_text(read_block("yaml"), encoding="utf-8")
        (self.home / "planwarden.toml").write_text(read_block("toml"), encoding="utf-8")
        entries = {
            name: self._build_entry(entry) for name, entry in json.loads(read_block("json"))["mcpServers"].items()
        }
        (self.home / "planwarden.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")

    def write_notes(self, *names: str) -> None:
        """Writes notes into `inbox`."""
        for name in names:
            (self.notes / "inbox" / name).write_text(f"# {name}\n", encoding="utf-8")

    def list_notes(self, folder: str) -> list[str]:
        return sorted(path.name for path in (self.notes / folder).glob("*.md"))

    def run_git(self, *words: str) -> str:
        command = ["git", "-C", str(self.notes), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def _build_entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The entry with the npx and uvx of this environment, and with what they need to reach their registries."""
        cache = Path.home()
        env = {name: value for name, value in os.environ.items() if name.startswith(REGISTRY_VARIABLES)}
        env |= {"PATH": path_with_node(), "HOME": str(cache), "PLANWARDEN_SHOW": str(self.folder)}
        programs = {
            "npx": [str(find_node()), str(find_npm("npx-cli.js"))],
            "uvx": [str(ROOT / ".venv" / "bin" / "uvx")],
        }
        command, *before = programs[entry["command"]]
        # The host of the show has a home folder of its own, so `${HOME}` would lead elsewhere there.
        return {"command": command, "args": [*before, *entry["args"]], "cwd": str(self.notes), "env": env}


@dataclass
class Transcript:
    """Blocks of the page in the order in which they were printed."""

    place: Place
    blocks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, name: str, text: str) -> None:
        """Appends to the block of that name."""
        shown = text.replace(str(self.place.folder), HOME_SHOWN)
        lines = [line.rstrip() for line in shown.strip("\n").splitlines()]
        self.blocks.setdefault(name, []).append("\n".join(lines))

    def text(self, name: str) -> str:
        return "\n".join(self.blocks[name])

    def run(self, name: str, *words: str, code: int = 0) -> str:
        """Runs a command of planwarden without a terminal, prints it, and returns its output."""
        output = self.read(*words, code=code)
        self.add(name, f"$ planwarden {shlex.join(words)}\n{output}")
        return output

    def read(self, *words: str, code: int = 0) -> str:
        """Runs a command without printing it. Raises `WentWrong` for another exit code than `code`."""
        done = self.run_program(command_line(*words))
        if done.returncode != code:
            raise WentWrong(f"planwarden {shlex.join(words)} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def run_program(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Runs a program in the place; its output holds what it wrote to standard error too."""
        return subprocess.run(
            command,
            env=self.place.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def run_on_terminal(self, name: str, *words: str, person: Callable[[Screen], None]) -> None:
        """Runs a command on a terminal at which the person sits, and prints the screen as it is in the end."""
        command = command_line(*words)
        with run_on_screen(
            command, cwd=self.place.folder, env=self.place.environment, columns=COLUMNS, lines=LINES
        ) as screen:
            person(screen)
            self.add(name, f"$ planwarden {shlex.join(words)}\n{screen.text}")


def mask(page: str) -> str:
    """Returns the page without what every run has of its own: ids, commits, times, ports."""
    for pattern, name in VARIES:
        page = pattern.sub(name, page)
    return page
