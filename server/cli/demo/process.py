"""The process that the demo kills: it starts the plan, prints the id of the execution and runs until it is killed."""

import sys
from pathlib import Path

import anyio

from planwarden.agent.common.canonical import read_json
from planwarden.agent.core.execution.requester import LOCAL, Requester
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service


def run_plan_until_killed(home: Path) -> None:
    plan = read_json((home / "plan.json").read_bytes())

    async def run(service: Service) -> None:
        execution = await service.execute_plan(plan, StartOptions(requester=Requester(LOCAL)))
        print(execution.execution_id, flush=True)
        await anyio.sleep_forever()

    Home.load(home).run(run)


if __name__ == "__main__":
    run_plan_until_killed(Path(sys.argv[1]))
