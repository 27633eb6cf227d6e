"""Crashes come at the same store calls on every machine; and processes on a store without a disk."""

import math
from pathlib import Path

import pytest

from planwarden.agent.runtime import scheduler
from planwarden.storage.sqlite import pace
from tests.harness.team import Team
from tests.storage.suite import Memory


@pytest.fixture
def only_turns_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first turn the scheduler makes none by itself, and no disk is too slow to be waited for, so store calls
    have the same numbers on any machine."""
    monkeypatch.setattr(scheduler, "TICK_S", 3_600.0)
    monkeypatch.setattr(pace, "QUICK_S", math.inf)


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(Memory(tmp_path), tmp_path)
