"""What a forked process of the campaign runs: planwarden's own command line, or a program with a `Warden` inside."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

import planwarden
from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.main import main
from tests.campaign import seams
from tests.campaign.shop import STAGE_VARIABLE

PLANT_VARIABLE = "CAMPAIGN_PLANT"


def run(program: str, arguments: list[str]) -> int:
    """The exit code."""
    seams.install(Path(os.environ[STAGE_VARIABLE]), os.environ.get(PLANT_VARIABLE))
    if program == "planwarden":
        return main(arguments)
    anyio.run(embed, Path(arguments[0]))
    return 0


def say(value: Any) -> None:
    """One line in one write: whatever is printed was acknowledged."""
    os.write(1, f"{json.dumps(value)}\n".encode())


async def embed(home: Path) -> None:
    """A program that is the operator: it starts the plans that it reads, one JSON value a line, and says their ids."""
    async with planwarden.Warden(home) as warden:
        say(["open"])
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            token, plan = json.loads(line)
            try:
                started = await warden.execute_plan(plan, wait_seconds=0)
            except PlanwardenError as error:
                say(["refused", token, error.code, error.message])
            else:
                say(["started", token, started.execution_id])
