"""How the tools of a stage behave now: slow, quick, or about to die. The driver writes it, every tool reads it."""

import json
import os
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FILE = "manner.json"
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


def forgive(stage: Path) -> None:
    for moment in ("before", "after"):
        (stage / f"die-{moment}").unlink(missing_ok=True)


def die_if_planned(stage: Path, moment: Moment) -> None:
    """Of all who find the plan, one removes it and dies."""
    try:
        (stage / f"die-{moment}").unlink()
    except FileNotFoundError:
        return
    os._exit(3)
