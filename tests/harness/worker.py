"""The one program of all processes that tests start: `python -m tests.harness.worker PROGRAM [ARGUMENT...]`.

PROGRAM is `planwarden`, whose own command line it runs, or `MODULE:FUNCTION`, which gets a folder and the other
arguments. Where a patience is given, the seams are installed first.
"""

import json
import os
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

import planwarden
from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.main import main as run_command
from tests.harness.process import PATIENCE, PLANT, STAGE, say


async def read_commands() -> AsyncIterator[Any]:
    while line := await anyio.to_thread.run_sync(sys.stdin.readline):
        yield json.loads(line)


async def embed(home: Path) -> None:
    """Be the operator in a program of its own: start the plans that it reads, and say their ids."""
    async with planwarden.Warden(home) as warden:
        async for plan in read_commands():
            try:
                started = await warden.execute_plan(plan, wait_seconds=0)
            except PlanwardenError as error:
                say(["refused", error.code, error.message])
            else:
                say(["started", started.execution_id])


def main() -> int:
    program, *arguments = sys.argv[1:]
    if PATIENCE in os.environ:
        os.setsid()
        # What only a stage needs, no other program waits for.
        import_module("tests.harness.seams").install(Path(os.environ[STAGE]), os.environ.get(PLANT))
    if program == "planwarden":
        return run_command(arguments)
    module, _, function = program.partition(":")
    anyio.run(getattr(import_module(module), function), Path(arguments[0]), *arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
