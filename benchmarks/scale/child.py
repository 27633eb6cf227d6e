"""One process of a side: `python -m benchmarks.scale.child SIDE URL`.

It reads commands as lines of JSON and answers each with a line; effects are lines of their own, at any time.
"""

import asyncio
import gc
import importlib
import json
import os
import sys
import time
from typing import Any

from benchmarks.scale.side import OpenSide, ScaleSide, answer, read_lines
from benchmarks.workload import number_orders_from


async def main(name: str, url: str) -> None:
    """Serve commands until standard input ends."""
    number_orders_from(os.getpid() * 1_000_000)
    open_side: OpenSide = importlib.import_module(f"benchmarks.scale.{name}_side").open_side
    async with open_side(url) as side:
        answer({"ready": True})
        async for line in read_lines():
            answer(await _perform(side, json.loads(line)))


async def _perform(side: ScaleSide, command: dict[str, Any]) -> dict[str, object]:
    match command["do"]:
        case "run":
            gc.collect()
            cpu, start = time.process_time(), time.monotonic()
            done = await side.run(command["seconds"], command["at_once"])
            return {"done": done, "start": start, "end": time.monotonic(), "cpu": time.process_time() - cpu}
        case "wait":
            return {"waiting": await side.wait(command["name"])}
        case "decide":
            start = time.monotonic()
            await side.decide(command["waiting"])
            return {"start": start}
        case "hold":
            await side.hold(command["name"])
            return {}
        case "cpu":
            return {"cpu": time.process_time()}
        case unknown:
            raise ValueError(f"unknown command {unknown!r}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
