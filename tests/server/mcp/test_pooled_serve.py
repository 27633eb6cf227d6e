"""`serve` on PostgreSQL behind PgBouncer, with a real process and a real client."""

from collections.abc import Generator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.server.cli.support import Cli, clean_environment, command_line, make_home
from tests.server.mcp.support import approving, ids_of, ok, question_of
from tests.support.pooler import shared_pooler
from tests.support.postgres import shared_server
from tests.support.wardens import confirm, plan, tool_step

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
def environment() -> Generator[dict[str, str]]:
    """Names an empty database through a pooler, and past it."""
    server = shared_server()
    database = server.make_database()
    name = database.split("dbname=")[1].split()[0]
    yield {
        "PLANWARDEN_STORE": f"postgresql://postgres@127.0.0.1:{shared_pooler().port}/{name}",
        "PLANWARDEN_STORE_CONTROL": f"postgresql://postgres@/{name}?host={server.folder}",
        "PLANWARDEN_SECRET_KEY": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    }
    server.empty_database(database)


async def test_a_plan_asks_through_a_pooler_is_decided_elsewhere_and_goes_on(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    cli = Cli(make_home(tmp_path / "home"))
    command, *arguments = command_line("--home", str(cli.home), "serve")
    started = StdioServerParameters(command=command, args=arguments, env=clean_environment(environment))
    with anyio.fail_after(120):
        async with Client(started, elicitation_callback=approving()) as client:
            steps = plan(confirm("here"), tool_step("there", "erase", {"ids": [1]}))
            asked = await ok(client, "execute_plan", plan=steps)
            waiting = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})
            suspension = question_of(waiting)["suspensionId"]

            def reject() -> int:
                return cli.spawn("reject", suspension, "--json", env=environment).code

            assert await anyio.to_thread.run_sync(reject) == 0
            while (seen := await ok(client, "get_execution", threadId=asked["threadId"]))["status"] != "rejected":
                assert seen["status"] in ("running", "suspended")
    assert cli.ledger == []
