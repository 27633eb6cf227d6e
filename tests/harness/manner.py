"""How the tools of a stage behave now: slow, quick, or about to die; and how they carry out one effect.

The driver writes it, every tool and every process reads it. It needs the standard library only, as the desk does.
"""

import json
import os
import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.harness.ledger import Ledger

FILE = "manner.json"
DIE_BEFORE, DIE_AFTER, STAND_STILL = "die-before", "die-after", "stand-still"
"""Plans, of which one process finds each: the next call with an effect kills its downstream server, before or after
the effect; or the next process that has stored that it will call a tool with an effect stops before the call."""


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
        """Wait for half a call."""
        time.sleep(random.random() * self.call_s / 2)


def plan(stage: Path, mishap: str) -> None:
    (stage / mishap).touch()


def take(stage: Path, mishap: str) -> bool:
    """Remove the plan. Return False when there is none, or another process was quicker."""
    try:
        (stage / mishap).unlink()
    except FileNotFoundError:
        return False
    return True


def carry_out(
    stage: Path, key: str, tool: str, arguments: Mapping[str, Any], *, is_effect: bool = True, may_die: bool = False
) -> dict[str, Any]:
    """Carry out a call that the ledger knows as begun, as slow as the stage wants it now, and return its result."""
    ledger, manner = Ledger.of(stage), Manner.read(stage)
    manner.pause()
    if is_effect:
        if may_die and take(stage, DIE_BEFORE):
            os._exit(3)
        ledger.write("done", key=key, tool=tool, arguments=arguments)
        if may_die and take(stage, DIE_AFTER):
            os._exit(3)
    manner.pause()
    ledger.write("ended", key=key)
    return {"receipt": key, "code": "c7"}
