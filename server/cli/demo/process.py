"""The process that the demo kills: it starts the plan, prints the id of the execution and runs until it is killed."""

import sys
from pathlib import Path

import anyio

from planwarden.agent.common.canonical import read_json
from planwarden.agent.core.requester import LOCAL, Requester
from planwarden.server.cli.context import CliContext


async def run_plan_until_killed(home: Path) -> None:
    context = CliContext.load(home, None)
    async with context.open_for_writing() as service:
        plan = read_json((home / "plan.json").read_bytes())
        execution = await service.execute_plan(plan, wait_seconds=0, requester=Requester(LOCAL))
        print(execution.execution_id, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(run_plan_until_killed, Path(sys.argv[1]))
