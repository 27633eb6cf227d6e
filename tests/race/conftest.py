"""Engines on each kind of store, and a clockwork that turns only when a test turns it."""

from pathlib import Path

import pytest

from planwarden.agent.runtime import scheduler
from tests.harness.team import Team
from tests.storage.suite import BackEnd


@pytest.fixture
def team(back_end: BackEnd, tmp_path: Path) -> Team:
    return Team(back_end, tmp_path)


@pytest.fixture
def no_own_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first turn, an engine takes only those that the test asks for."""
    monkeypatch.setattr(scheduler, "TICK_S", 3600.0)
