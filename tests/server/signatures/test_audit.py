"""Signatures in the audit: verified again, with the keys of the audit itself, and what was tampered with is named."""

import sqlite3
import sys
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

from planwarden.agent.core.audit import AuditEntry
from planwarden.server.api.audit import AuditReader
from planwarden.server.api.verification import AuditVerdict
from planwarden.server.signatures.signature import EXTRA
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import Cli, Ledger, make_home, requirement
from tests.server.signatures.support import WIPE, signing_inbox

pytestmark = pytest.mark.anyio

Facts = dict[str, JsonValue]


async def signed(path: Path) -> None:
    """A store with one critical call that was signed."""
    store = SqliteStore.open(path)
    try:
        async with signing_inbox(Ledger(), store=store) as found:
            ann = await found.person()
            asked = await found.ask(WIPE)
            assert (await ann.sign(asked.suspension_id)).status == 303
    finally:
        await store.close()


async def verdict(path: Path, *appended: AuditEntry) -> AuditVerdict:
    store = SqliteStore.open(path)
    try:
        await store.audit(appended)
        return await AuditReader(store).verify()
    finally:
        await store.close()


async def row(path: Path, kind: str) -> AuditEntry:
    store = SqliteStore.open(path)
    try:
        return next(row.entry for row in await store.audit_rows() if row.entry.kind == kind)
    finally:
        await store.close()


@requirement("signed:audit")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"digest": "f" * 64}, "challenge"),
        ({"nonce": "f" * 64}, "challenge"),
        ({"content": "f" * 64}, "challenge"),
        ({"principal": "bob"}, "'bob' had no key"),
        ({"key": "f" * 16}, "had no key"),
        ({"credential": "AAAA"}, "does not belong to the key that it names"),
        ({"signature": "AAAA"}, "Could not verify"),
        ({"signature": "*"}, "not base64url"),
        ({"clientDataJSON": "e30"}, "does not name its origin"),
        ({"authenticatorData": "AAAA"}, "malformed"),
        ({"signature": 7}, "does not have the fields"),
    ],
)
async def test_a_row_that_is_no_signature_of_what_it_says_is_named(tmp_path: Path, change: Facts, named: str) -> None:
    path = tmp_path / "planwarden.db"
    await signed(path)
    true = await row(path, "signature")
    told = await verdict(path, AuditEntry(kind="signature", facts={**true.facts, **change}))
    [problem] = told.problems
    assert problem.startswith(f"row {told.rows} ") and named in problem and told.signatures == 1


@requirement("signed:audit")
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE keys SET public_key = x'00'", "the stored key differs from the one in the audit"),
        ("UPDATE keys SET principal = 'bob'", "the stored key differs from the one in the audit"),
        ("DELETE FROM keys", "is in the audit and no longer stored"),
        ("UPDATE keys SET revoked_at = 1.0", "disagree about its removal"),
        (
            (
                "INSERT INTO keys SELECT NULL, 'new', credential_id, public_key, 'bob', rp_id, label, 0, 1.0, NULL, "
                "NULL FROM keys"
            ),
            "is stored and not in the audit",
        ),
    ],
)
async def test_a_key_that_was_tampered_with_is_named_and_the_signature_still_stands(
    tmp_path: Path, statement: str, named: str
) -> None:
    path = tmp_path / "planwarden.db"
    await signed(path)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    told = await verdict(path)
    [problem] = told.problems
    assert named in problem and told.signatures == 1


@requirement("signed:audit")
async def test_a_signature_after_its_key_was_removed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    await signed(path)
    true = await row(path, "signature")
    removed = AuditEntry(kind="key_removed", facts={"key": true.facts["key"], "principal": "ann"})
    told = await verdict(path, removed, true)
    assert any(f"row {told.rows} is not a valid signature: 'ann' had no key" in problem for problem in told.problems)


@requirement("signed:audit")
def test_the_terminal_verifies_says_when_it_cannot_and_ends_a_lost_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(make_home(tmp_path / "home"), capsys)
    assert "No keys" in cli.main("key", "list").out and cli.main("key", "list", "--json").json == {"keys": []}
    anyio.run(signed, cli.home / "planwarden.db")
    assert "1 signature(s) verified" in cli.main("audit", "verify").out
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "webauthn", None)
        said = cli.main("audit", "verify")
        assert said.code == 0 and "1 signature(s) not verified" in said.out and EXTRA in said.out
        assert cli.main("audit", "verify", "--json").json["unverified"] == 1
    [key] = cli.main("key", "list", "--json").json["keys"]
    assert (key["principal"], key["label"], key["rpId"], key["revokedAt"]) == ("ann", "blue key", "localhost", None)
    listed = cli.main("key", "list").out
    assert key["keyId"] in listed and "usable" in listed and "publicKey" not in listed
    for wrong in ("", "abc", "ffff0000ffff0000"):
        said = cli.main("key", "revoke", wrong)
        assert said.code == 2 and "keys begin with" in said.err
    assert "is revoked" in cli.main("key", "revoke", key["keyId"][:8].upper()).out
    assert "was revoked before" in cli.main("key", "revoke", key["keyId"]).err
    assert "revoked 20" in cli.main("key", "list").out
    assert cli.main("audit", "verify").code == 0
