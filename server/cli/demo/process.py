"""The process that the demo kills: it starts the plan, says where, and lives until then."""

import sys
from pathlib import Path

import anyio

from planwarden.server.auth.settings import LOCAL
from planwarden.server.cli.commands.run import read_plan
from planwarden.server.cli.home import CliHome


async def work(folder: Path) -> None:
    home = CliHome.load(folder, None)
    async with home.acting() as service:
        plan = read_plan(str(folder / "plan.json"))
        execution = await service.execute_plan(plan, wait_seconds=0, principal=LOCAL)
        print(execution.execution_id, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(work, Path(sys.argv[1]))
