"""The command line with default settings, on its own home."""

from pathlib import Path

import pytest

from tests.server.cli.support import Cli, make_home

UNWANTED = (
    *("PLANWARDEN_HOME", "PLANWARDEN_STORE", "PLANWARDEN_STORE_CONTROL", "PLANWARDEN_SECRET_KEY"),
    *("PLANWARDEN_MODEL", "PLANWARDEN_SEARCH", "PLANWARDEN_SEARCH_KEY", "EDITOR", "VISUAL"),
)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in UNWANTED:
        monkeypatch.delenv(name, raising=False)
    return Cli(make_home(tmp_path / "home"), capsys)
