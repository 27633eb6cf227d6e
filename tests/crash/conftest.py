"""Crashes come at the same store calls on every machine."""

import math

import pytest

from planwarden.agent.runtime import scheduler
from planwarden.storage.sqlite import pace


@pytest.fixture
def only_turns_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first turn the scheduler makes none by itself, and no disk is too slow to be waited for, so store calls
    have the same numbers on any machine."""
    monkeypatch.setattr(scheduler, "TICK_S", 3_600.0)
    monkeypatch.setattr(pace, "QUICK_S", math.inf)
