"""Ids that are drawn many at a time."""

import subprocess
import sys

from planwarden.agent.common.ids import DRAWN, RandomIds

FORK = """
import os
from planwarden.agent.common.ids import RandomIds
ids = RandomIds()
ids.new()
child = os.fork()
if child:
    os.waitpid(child, 0)
print(ids.new(), flush=True)
"""


def test_ids_are_32_hexadecimal_digits_and_never_come_twice() -> None:
    ids = RandomIds()
    made = [ids.new() for _ in range(3 * DRAWN)]
    assert len({*made}) == len(made)
    assert all(len(bytes.fromhex(found)) == 16 and found == found.lower() for found in made)


def test_a_forked_process_gives_other_ids_than_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, timeout=60)
    first, second = done.stdout.split()
    assert first != second
