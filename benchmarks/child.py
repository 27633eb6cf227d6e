"""One side in a process of its own: `python -m benchmarks.child MODULE VARIANT PLACE`, a folder or a database.

It reads commands as lines of JSON, such as `{"do": "sequential", "count": 40}`, and answers each with a line that says
what it took; effects are lines of their own, at any time. Separate processes keep the sides' heaps, garbage collectors
and peaks of memory apart. Between commands a side on SQLite sleeps in a blocking read, event loop included.
"""

import asyncio
import gc
import importlib
import json
import os
import re
import sys
import time
from pathlib import Path

from benchmarks.side import Side, answer, number_orders_from


async def main(module: str, variant: str, place: str) -> None:
    """Serve commands until standard input ends."""
    number_orders_from(os.getpid() * 1_000_000)
    open_side = importlib.import_module(f"benchmarks.{module}").open_side
    async with open_side(variant, place) as side:
        answer(ready=True)
        while line := await asyncio.to_thread(sys.stdin.readline) if "dbname=" in place else sys.stdin.readline():
            await _perform(side, **json.loads(line))


async def _perform(side: Side, do: str, **arguments: object) -> None:
    gc.collect()
    cpu, start = time.process_time(), time.monotonic()
    value = await getattr(side, do)(**arguments) if do != "look" else None
    end = time.monotonic()
    answer(
        value=value,
        start=start,
        end=end,
        seconds=end - start,
        cpu=time.process_time() - cpu,
        total_cpu=time.process_time(),
        peak_bytes=read_memory("self", "VmHWM"),
    )


def read_memory(process: int | str, key: str) -> int:
    """Return bytes of memory of a process on Linux: held now (`VmRSS`) or at most (`VmHWM`)."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(rf"{key}:\s+(\d+) kB", status)[0]) * 1024


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
