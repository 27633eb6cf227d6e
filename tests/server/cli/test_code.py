"""Approving without a terminal: a one-time code says who approves, and a digest says what."""

import anyio
import pytest

from planwarden.server.inbox.sessions import InboxAccess
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import requirement, tool_step
from tests.server.cli.support import TOOLS, Cli


@pytest.fixture
def cli(cli: Cli) -> Cli:
    (cli.home / "tools.py").write_text(TOOLS)
    return cli


def make_code(cli: Cli, name: str) -> str:
    async def work() -> str:
        store = SqliteStore.open(cli.home / "planwarden.db")
        try:
            return (await InboxAccess(store).make_codes(name, "terminal")).typed
        finally:
            await store.close()

    return anyio.run(work)


@requirement("approval:code")
def test_a_code_approves_once_and_only_the_question_that_was_read(cli: Cli) -> None:
    suspension_id = cli.run_to_question(tool_step("a", "erase", {"ids": [1, 2]}))
    [asked] = cli.main("list", "--json").json["suspensions"]
    digest = asked["digest"]
    # The list cuts what is asked, so it holds nothing that an approval could name.
    assert digest[:12] in cli.main("show", asked["threadId"]).out and digest[:12] not in cli.main("list").out
    assert cli.main("approve", suspension_id).code == 2
    code = make_code(cli, "ann")
    approve = ("approve", suspension_id, "--code")
    for words, message in (
        ((code,), "go together"),
        ((code, "--digest", "0" * 64), "not what that digest names"),
        ((code, "--digest", digest[:8]), "at least 12"),
        (("AAAA-AAAA-AAAA", "--digest", digest), "not valid"),
    ):
        result = cli.main(*approve, *words)
        assert result.code in (1, 2) and message in result.err, result
    assert cli.ledger == []
    done = cli.main(*approve, code, "--digest", digest[:12], "--json")
    assert done.code == 0 and done.json["status"] == "completed" and cli.ledger == ["erase [1, 2] none"]
    assert cli.main(*approve, code, "--digest", digest).code == 1
    rows = cli.main("audit", "show", "--json").json["rows"]
    [decided] = [row["facts"] for row in rows if row["kind"] == "decided"]
    assert (decided["channel"], decided["principal"], decided["assurance"]) == ("code", "ann", "human")
    assert cli.ledger == ["erase [1, 2] none"]
