"""How the tools of a stage behave now: slow, quick, or about to die; and whether a process stops before a call.

The driver writes it, every tool and every process reads it.
"""

import json
import os
import random
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tests.campaign.ledger import Ledger

FILE = "manner.json"
STAND_STILL = "stand-still"
Moment = Literal["before", "after"]


@dataclass(frozen=True)
class Manner:
    list_s: float = 0.0
    """How long the downstream server takes to list its tools."""
    call_s: float = 0.02
    """How long a call takes at most, half of it before its effect."""

    def write(self, stage: Path) -> None:
        part = stage / f"{FILE}.part"
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        part.replace(stage / FILE)

    @staticmethod
    def read(stage: Path) -> "Manner":
        try:
            return Manner(**json.loads((stage / FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Manner()

    def pause(self) -> None:
        """Half a call."""
        time.sleep(random.random() * self.call_s / 2)


def plan_death(stage: Path, moment: Moment) -> None:
    """The next call that has an effect kills its downstream server before or after the effect."""
    (stage / f"die-{moment}").touch()


def plan_standstill(stage: Path) -> None:
    """The next process that has stored that it will call a tool with an effect stops before the call."""
    (stage / STAND_STILL).touch()


def drop_standstill(stage: Path) -> bool:
    """False when a process has found the plan, and stops."""
    return _take(stage / STAND_STILL)


def stand_still_if_planned(stage: Path, ledger: Ledger, key: str) -> None:
    """Of all who find the plan, one removes it and stops, until the driver lets it go on."""
    if _take(stage / STAND_STILL):
        ledger.write("stands", key=key)
        os.kill(os.getpid(), signal.SIGSTOP)


def forgive(stage: Path) -> None:
    for moment in ("before", "after"):
        (stage / f"die-{moment}").unlink(missing_ok=True)


def die_if_planned(stage: Path, moment: Moment) -> None:
    """Of all who find the plan, one removes it and dies."""
    if _take(stage / f"die-{moment}"):
        os._exit(3)


def _take(plan: Path) -> bool:
    """False when there is no such plan, or another process was quicker."""
    try:
        plan.unlink()
    except FileNotFoundError:
        return False
    return True
