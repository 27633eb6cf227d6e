"""What commands and screens printed, as blocks of a page, and what of it differs from run to run."""

import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.server.cli.support import command_line
from tests.support.screen import Screen, run_on_screen

from dev.show.stage import HOME_SHOWN, Place

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
        done = subprocess.run(
            command_line(*words),
            env=self.place.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != code:
            raise WentWrong(f"planwarden {shlex.join(words)} ended with {done.returncode}: {done.stdout}")
        return done.stdout

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
