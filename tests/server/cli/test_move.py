"""`move`: what people see when a store goes to another place, and that everything there goes on."""

from collections.abc import Generator
from pathlib import Path

import anyio
import pytest

from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.server.cli.support import Cli, step
from tests.server.signatures.support import WIPE, signing_inbox
from tests.support.full_store import make_url
from tests.support.postgres import shared_server
from tests.support.wardens import Ledger


@pytest.fixture
def url() -> Generator[str]:
    """Of an empty database, with a password."""
    made = make_url()
    yield made
    shared_server().drop_database(made)


async def sign(path: Path) -> None:
    """A critical call that a person signs."""
    store = SqliteStore.open(path)
    async with signing_inbox(Ledger(), store=store) as found:
        ann = await found.person()
        asked = await found.ask(WIPE)
        assert (await ann.sign(asked.suspension_id)).status == 303
    await store.close()


@requirement("move:whole", "move:marked")
def test_plans_questions_signatures_and_the_audit_go_on_at_the_other_place_and_back(
    cli: Cli, url: str, tmp_path: Path
) -> None:
    plan = cli.write("plan.json", {"steps": [step("a", "find", {"topic": "x"}), step("b", "erase", {"ids": [1]})]})
    assert cli.spawn("run", plan, "--json").json["status"] == "suspended"
    assert cli.main("token", "add", "bob").code == 0
    anyio.run(sign, cli.home / "planwarden.db")
    before = cli.main("audit", "verify", "--json").json
    assert before["isWhole"] and before["signatures"] > 0
    shown = cli.main("audit", "show", "--json", "--limit", "500").json

    moved = cli.main("move", "--to", url, "--json")
    assert moved.code == 0, moved.err
    assert moved.json["auditHead"] == before["head"]
    assert moved.json["rows"]["executions"] == 2 and moved.json["rows"]["tokens"] == 1
    assert "hidden" not in moved.out + moved.err

    assert cli.main("--store", url, "audit", "verify", "--head", before["head"], "--json").json == before
    assert cli.main("--store", url, "audit", "show", "--json", "--limit", "500").json == shown
    [waiting] = cli.main("--store", url, "list", "--json").json["suspensions"]
    assert cli.main("--store", url, "reject", waiting["suspensionId"]).code == 0
    for words in (("list",), ("token", "list"), ("run", plan), ("prune", "--yes"), ("audit", "verify")):
        refused = cli.main(*words)
        assert refused.code == 1 and "was moved to postgresql://postgres@/" in refused.err
        assert "hidden" not in refused.err
    assert cli.main("doctor").code == 1

    back = f"sqlite://{tmp_path / 'back.db'}"
    head = cli.main("--store", url, "audit", "verify", "--json").json["head"]
    assert cli.main("--store", url, "move", "--to", f"sqlite://{cli.home / 'planwarden.db'}").code == 1
    said = cli.main("--store", url, "move", "--to", back)
    assert said.code == 0, said.err
    assert f"Set PLANWARDEN_STORE={back}, or [store] url, before you start anything." in said.out
    assert "Logins to servers, the passphrase of the inbox and browsers to notify are not moved" in said.out
    assert "executions: 2, " in said.out and head in said.out and "hidden" not in said.out
    assert cli.main("--store", back, "audit", "verify", "--json").json["head"] == head


@requirement("move:empty-target")
def test_a_wrong_target_is_refused_with_the_exit_code_that_fits(cli: Cli, url: str, tmp_path: Path) -> None:
    assert cli.main("token", "add", "bob").code == 0
    assert cli.main("--store", url, "token", "add", "ann").code == 0
    for target, code, said in (
        (f"sqlite://{cli.home / 'planwarden.db'}", 2, "is at"),
        ("mysql://x", 2, "is no kind of store"),
        ("planwarden.db", 2, "not named by a URL"),
        (url, 1, "is not empty (rows of the audit: 1, tokens: 1); name a new file or an empty database"),
        (f"sqlite://{tmp_path}", 1, "cannot"),
        ("postgresql://ann:secret@127.0.0.1:9/plans", 1, "cannot be reached"),
    ):
        refused = cli.main("move", "--to", target)
        assert (refused.code, said in refused.err) == (code, True), refused.err
        assert "secret" not in refused.err
    assert len(cli.main("token", "list", "--json").json["tokens"]) == 1
