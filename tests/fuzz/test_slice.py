"""A small part of the fuzzing, the same inputs each time; `make fuzz` sends more."""

import math
from collections.abc import Mapping

import pytest

from tests.fuzz.jail import is_possible
from tests.fuzz.part import ENTRANCES, run_part
from tests.requirements import requirement

INPUTS = 10
MORE: Mapping[str, int] = {"shell": 150}
"""Where an input takes little time, and few of them show anything."""
LEFT_OUT = frozenset({"sockets", "downstream", "rows", *([] if is_possible() else ["shell"])})
"""Those with sockets and files, which `make fuzz` alone sends to; and that of shells without a jail."""


@requirement("fuzz:entrances")
@pytest.mark.parametrize("name", [name for name in ENTRANCES if name not in LEFT_OUT])
async def test_broken_input_breaks_no_entrance(name: str) -> None:
    inputs = MORE.get(name, INPUTS)
    part = await run_part(name, inputs=inputs, seed=1, until=math.inf)
    assert part.examples == [] and part.inputs == inputs
