"""One side in a process of its own: it reads commands from standard input and answers with what each took.

Separate processes keep the sides' heaps, garbage collectors and peaks of memory apart; the runner lets them take turns,
so that all see the same noise. Between commands a side sleeps in a blocking read, event loop included.

Commands and answers are lines of JSON: `{"do": "sequential" | "concurrent" | "suspend" | "peak", "count": 40}`.
Run as `python -m benchmarks.child MODULE SIDE FOLDER`.
"""

import asyncio
import gc
import importlib
import json
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.side import Side


async def main(module: str, name: str, folder: Path) -> None:
    """Serve commands until standard input ends."""
    open_side = importlib.import_module(f"benchmarks.{module}").open_side
    async with open_side(name, folder) as side:
        _answer({"ready": True})
        for line in sys.stdin:
            _answer(await _perform(side, json.loads(line)))


async def _perform(side: Side, command: dict[str, Any]) -> dict[str, Any]:
    count = int(command.get("count", 0))
    gc.collect()
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    cpu, start = time.process_time(), time.perf_counter()
    waiting: list[tuple[str, str]] = []
    match command["do"]:
        case "sequential":
            await side.run(count, concurrent=False)
        case "concurrent":
            await side.run(count, concurrent=True)
        case "suspend":
            waiting = await side.suspend(count)
        case _:
            return {"bytes": peak_bytes()}
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "cpu": time.process_time() - cpu,
        "switches": resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches,
        "waiting": waiting[-20:],
    }


def peak_bytes() -> int:
    """Returns the most bytes of memory that this process has held; on Linux, without those of its parent."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _answer(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
