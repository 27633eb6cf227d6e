"""The command line with default settings, on its own home."""

import io
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest

from planwarden.server.cli.terminal.terminal import Terminal
from tests.server.cli.support import Cli, CommandResult, Open, PtyTerminal, make_home, start_on_terminal

UNWANTED = (
    *("PLANWARDEN_HOME", "PLANWARDEN_STORE", "PLANWARDEN_STORE_CONTROL", "PLANWARDEN_SECRET_KEY"),
    *("PLANWARDEN_MODEL", "PLANWARDEN_SEARCH", "PLANWARDEN_SEARCH_KEY", "EDITOR", "VISUAL"),
)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in UNWANTED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return Cli(make_home(tmp_path / "home"), capsys)


@pytest.fixture
def terminal(cli: Cli) -> Generator[Open]:
    """Runs commands at terminals, each closed in the end."""
    opened: list[PtyTerminal] = []

    def start(*words: str, env: Mapping[str, str] | None = None) -> PtyTerminal:
        opened.append(start_on_terminal(cli, *words, env=env))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def typing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    """Runs a command in this process at whose terminal somebody types these lines."""

    def run(*words: str, typed: str = "") -> CommandResult:
        monkeypatch.setattr(Terminal, "can_ask", property(lambda _: True))
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        return cli.main(*words)

    return run
