"""A small part of the fuzzing, the same inputs each time; `make fuzz` sends more."""

import math

import pytest

from tests.fuzz.part import ENTRANCES, run_part
from tests.requirements import requirement

INPUTS = 10
SLOW = frozenset({"process", "sockets", "downstream", "rows"})
"""Those with processes, sockets and files, which `make fuzz` alone sends to."""


@requirement("fuzz:entrances")
@pytest.mark.anyio
@pytest.mark.parametrize("name", [name for name in ENTRANCES if name not in SLOW])
async def test_broken_input_breaks_no_entrance(name: str) -> None:
    """spec: a known code and a sentence for each refusal, no traceback in the log, and still at work afterwards."""
    part = await run_part(name, inputs=INPUTS, seed=1, until=math.inf)
    assert part.examples == [] and part.inputs == INPUTS
