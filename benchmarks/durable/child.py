"""One process of a system: obeys the methods of `System` named on standard input, and answers each with JSON."""

import asyncio
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from workload import System


async def main(adapter: str, role: str, folder: str, url: str) -> None:
    """Open the system, say so, and obey until standard input ends."""
    system: System = importlib.import_module(adapter).Adapter(Path(folder), url, role == "worker")
    await system.open()
    print(json.dumps({"value": "ready"}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        method, *words = line.split()
        began = time.monotonic_ns()
        try:
            reply: dict[str, Any] = {"value": await getattr(system, method)(*(word == "yes" for word in words))}
        # Whatever a library raises is a result here.
        except Exception as error:  # noqa: BLE001
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({**reply, "began": began}), flush=True)
    await system.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
