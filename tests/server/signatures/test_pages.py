"""Approving with a key on the pages of the inbox, and what the audit proves of signatures and keys."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.core.execution.audit import DIGEST_CHARS, AuditEntry
from planwarden.server.api.audit import AuditVerdict, read_audit_page, verify_audit
from planwarden.server.signatures.signature import EXTRA
from planwarden.storage.keys import KeyStore
from planwarden.storage.location import StoreLocation
from planwarden.storage.opening import open_store
from tests.kit import Authority, Cli, Decision, Ledger, SqliteStore, decide, make_home, requirement, tool_step
from tests.server.signatures.support import ORIGIN, WIPE, signing_inbox


@requirement("signed:page")
async def test_a_critical_call_runs_once_after_its_owner_signed(tmp_path: Path) -> None:
    ledger = Ledger()
    store = SqliteStore.open(tmp_path / "planwarden.db")
    async with signing_inbox(ledger, store=store) as found:
        ann = await found.person()
        asked = await found.ask(WIPE)
        form = (await ann.open(f"/inbox/suspensions/{asked.suspension_id}")).form("/decision")
        plain = await ann.send(form.action, {**form.fields, "decision": ["approve"]})
        assert plain.status == 409 and ledger.lines == []
        done = await ann.sign(asked.suspension_id, reason="checked")
        assert done.status == 303 and ledger.lines == ["wipe old 1"]
        rows = (await read_audit_page(found.warden.service.store, thread_id=asked.thread_id)).rows
        assert [row.kind for row in rows] == ["asked", "signature", "decided"]
        decided = rows[-1].facts
        assert (decided["assurance"], decided["channel"], decided["principal"]) == ("signed", "inbox", "ann")
        assert rows[1].facts["digest"] == asked.digest and decided["rendered"]
        assert decided["digest"] == asked.digest[:DIGEST_CHARS]
        verdict = await verify_audit(found.warden.service.store)
        assert verdict.is_whole and (verdict.signatures, verdict.unverified) == (1, 0), verdict.problems
        shown = await ann.open(f"/inbox/suspensions/{asked.suspension_id}")
        assert "(a person with a key, in the inbox)" in shown.words
    await store.close()


@requirement("signed:page")
async def test_edited_arguments_are_kept_first_and_signed_as_the_new_revision() -> None:
    ledger = Ledger()
    async with signing_inbox(ledger) as found:
        ann = await found.person()
        asked = await found.ask(WIPE)
        page = await ann.open(f"/inbox/suspensions/{asked.suspension_id}")
        form = page.form("/decision")
        old = await ann.prepare(form)
        [field] = [name for name, value in form.fields.items() if value == ["old"]]
        edited = {**form.fields, field: ["older"]}
        straight = await ann.send(form.action, {**edited, "decision": ["sign"]}, accept="application/json")
        assert straight.headers["content-type"].startswith("text/html") and "You changed 1 argument" in straight.words
        table = straight.form("/decision")
        assert "On the next page you sign" in straight.words
        kept = await ann.submit(table, press="approve")
        assert kept.status == 200 and "This is revision 2, with your changes" in kept.words and ledger.lines == []
        refused = await ann.send(form.action, {**old, **kept.form("/decision").fields})
        assert refused.status == 422 and "another revision" in refused.words and ledger.lines == []
        stale = await ann.send(form.action, old)
        assert stale.status == 409 and "revised" in stale.words
        assert (await ann.sign(asked.suspension_id)).status == 303
        assert ledger.lines == ["wipe older 1"]
        kinds = {row.kind: row.facts for row in (await read_audit_page(found.warden.service.store)).rows}
        signed = str(kinds["signature"]["digest"])[:DIGEST_CHARS]
        assert signed == kinds["revised"]["digest"] == kinds["decided"]["digest"] != asked.digest[:DIGEST_CHARS]
        assert (await verify_audit(found.warden.service.store)).is_whole


@requirement("signed:page")
async def test_a_signature_about_an_answer_counts_for_that_answer_only() -> None:
    ledger = Ledger()
    form: dict[str, JsonValue] = {"type": "object", "required": ["sure"], "properties": {"sure": {"type": "string"}}}

    @planwarden.tool(name="ask_for_it", risk="critical", execution_mode="blocking")
    async def ask_for_it() -> object:
        """Ask."""
        return planwarden.Suspend(message="sure?", form=form)

    async with signing_inbox(ledger, tools=[ask_for_it]) as found:
        ann = await found.person()
        asked = await found.ask(tool_step("a", "ask_for_it"))
        while asked.answer_schema is None:
            assert (await ann.sign(asked.suspension_id)).status == 303
            [asked] = (await found.current_execution(asked)).suspensions
        page = (await ann.open(f"/inbox/suspensions/{asked.suspension_id}")).form("/decision")
        [field] = [name for name in page.fields if name.startswith("arg.")]
        swapped = await ann.send(page.action, {**await ann.prepare(page, **{field: ["yes"]}), field: ["no"]})
        assert swapped.status == 422 and "another answer" in swapped.words
        assert (await ann.send(page.action, await ann.prepare(page, **{field: ["yes"]}))).status == 303
        assert (await found.current_execution(asked)).status == "completed"
        verdict = await verify_audit(found.warden.service.store)
        assert verdict.is_whole and verdict.signatures >= 1


@requirement("signed:page", "approval:quorum")
async def test_a_quorum_of_two_is_the_owners_signature_and_a_second_person() -> None:
    ledger = Ledger()
    async with signing_inbox(ledger, quorum=2) as found:
        ann, bob = await found.person(), found.signer()
        await bob.log_in("bob")
        asked = await found.ask(WIPE)
        assert (await ann.sign(asked.suspension_id)).status == 303 and ledger.lines == []
        page = await ann.open(f"/inbox/suspensions/{asked.suspension_id}")
        assert "1 of 2" in page.words and "You have approved this" in page.words
        assert ("decision", "approve", False) in page.form("/decision").buttons
        assert (await bob.decide(asked.suspension_id, "approve")).status == 303
        assert ledger.lines == ["wipe old 1"]
        rows = (await read_audit_page(found.warden.service.store, thread_id=asked.thread_id)).rows
        assert [(row.kind, row.facts.get("assurance")) for row in rows[1:]] == [
            ("signature", None),
            ("endorsed", "signed"),
            ("decided", "second"),
        ]
        assert (await verify_audit(found.warden.service.store)).is_whole


@requirement("signed:page")
async def test_who_cannot_sign_here_is_told_why_and_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    async with signing_inbox(ledger) as found:
        ann = found.signer()
        await ann.log_in("ann")
        asked = await found.ask(WIPE)
        where = f"/inbox/suspensions/{asked.suspension_id}"
        page = await ann.open(where)
        assert "you have none here" in page.words and 'href="/inbox/keys"' in page.text
        assert ("decision", "approve", False) in page.form("/decision").buttons
        form = page.form("/decision")
        assert "no key for localhost" in str(await ann.challenge(form.action, {**form.fields, "decision": ["sign"]}))
        await ann.add_key()
        page = await ann.open(where)
        assert "Signing needs JavaScript" in page.words
        unscripted = await ann.send(form.action, {**form.fields, "decision": ["sign"]})
        assert unscripted.status == 422 and "needs JavaScript" in unscripted.words
        number = found.browser("http://127.0.0.1:8765")
        await number.log_in("ann")
        page = await number.open(where)
        assert f"Browsers can use keys at {ORIGIN} only" in page.words and f'href="{ORIGIN}{where}"' in page.text
        assert "signing.js" not in page.text
        # What is not installed cannot be imported.
        monkeypatch.setitem(sys.modules, "webauthn", None)
        for path in (where, "/inbox/keys"):
            page = await ann.open(path)
            assert page.status == 200 and EXTRA in page.words
        assert ledger.lines == []
        assert (await ann.submit((await ann.open(where)).form("/decision"), press="reject")).status == 303
        assert (await found.current_execution(asked)).status == "rejected"


@requirement("signed:place")
async def test_behind_a_proxy_keys_belong_to_the_public_name() -> None:
    ledger, origin = Ledger(), "https://plan.example.com"
    async with signing_inbox(ledger, origin=origin) as found:
        ann = await found.person()
        asked = await found.ask(WIPE)
        where = f"/inbox/suspensions/{asked.suspension_id}"
        form = (await ann.open(where)).form("/decision")
        for foreign in ("https://plan.example.com.evil.example", "https://localhost", "http://127.0.0.1:8765"):
            assert (await ann.send(form.action, {**form.fields, "decision": ["reject"]}, origin=foreign)).status == 403
        assert (await ann.sign(asked.suspension_id)).status == 303 and ledger.lines == ["wipe old 1"]
        verdict = await verify_audit(found.warden.service.store)
        assert verdict.is_whole and verdict.signatures == 1
        local = found.browser("http://127.0.0.1:8765")
        await local.log_in("ann")
        page = await local.open("/inbox/keys")
        assert f'href="{origin}/inbox/keys"' in page.text and "for plan.example.com" in page.words


@requirement("signed:keys")
async def test_keys_are_listed_added_with_a_known_one_only_and_removed() -> None:
    async with signing_inbox(Ledger()) as found:
        ann, bob = await found.person(), found.signer()
        await bob.log_in("bob")
        page = await ann.open("/inbox/keys")
        assert "blue key" in page.words and "planwarden key revoke" in page.words
        assert not [form for form in page.forms if form.action.endswith("/remove")]
        assert (await ann.add_key("red key")).status == 303
        page = await ann.open("/inbox/keys")
        removals = [form for form in page.forms if form.action.endswith("/remove")]
        assert len(removals) == 2 and "red key" in page.words
        thief = found.signer()
        await thief.log_in("ann")
        form = (await thief.open("/inbox/keys")).form("/add")
        asked = await thief.challenge(form.action, {**form.fields, "label": ["mine"]})
        stolen = {"label": ["mine"], "credential": [thief.key.create(asked["create"])], "nonce": [asked["nonce"]]}
        assert (await thief.send(form.action, {**form.fields, **stolen, "signature": [""]})).status == 422
        theirs = await bob.send(removals[0].action, {**(await bob.open("/inbox/keys")).forms[0].fields})
        assert theirs.status == 422 and "You have no key" in theirs.words
        assert (await ann.submit(removals[0])).status == 303
        page = await ann.open("/inbox/keys")
        assert "Removed" in page.words and not [form for form in page.forms if form.action.endswith("/remove")]
        unscripted = await ann.submit(page.form("/add"), label="green key")
        assert unscripted.status == 422 and "needs JavaScript" in unscripted.words
        rows = [row for row in (await read_audit_page(found.warden.service.store)).rows if row.kind.startswith("key_")]
        assert [row.kind for row in rows] == ["key_added", "key_added", "key_removed"]
        assert rows[1].facts["confirmedBy"] == rows[0].facts["key"] == rows[2].facts["key"]
        assert (await verify_audit(found.warden.service.store)).is_whole


@requirement("signed:audit")
async def test_a_decision_that_only_says_signed_is_found_out() -> None:
    async with signing_inbox(Ledger()) as found:
        asked = await found.ask(WIPE)
        said = Authority(assurance="signed", channel="inbox", principal="ann", digest=asked.digest)
        yes = Decision(approved=True)
        await decide(found.warden, (asked.thread_id, asked.suspension_id), yes, said)
        [problem] = (await verify_audit(found.warden.service.store)).problems
    assert "claims a signature, and no earlier row holds it" in problem


Facts = dict[str, JsonValue]


async def signed(path: Path) -> None:
    """A store with one critical call that was signed."""
    async with open_store(StoreLocation(path=path)) as store, signing_inbox(Ledger(), store=store) as found:
        ann = await found.person()
        asked = await found.ask(WIPE)
        assert (await ann.sign(asked.suspension_id)).status == 303


async def append_and_verify(path: Path, change: Facts | None = None, *before: AuditEntry) -> AuditVerdict:
    """What the audit says, if there is a change after these rows and the row of the signature with it again."""
    async with open_store(StoreLocation(path=path)) as store:
        [true] = [row.entry for row in await store.audit_rows() if row.entry.kind == "signature"]
        again = [] if change is None else [AuditEntry(kind="signature", facts={**true.facts, **change})]
        await store.audit([*before, *again])
        return await verify_audit(store)


@requirement("signed:audit")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        *(({part: "f" * 64}, "challenge") for part in ("digest", "nonce", "content")),
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
    told = await append_and_verify(path, change)
    [problem] = told.problems
    assert problem.startswith(f"row {told.rows} ") and named in problem and told.signatures == 1


@requirement("signed:audit")
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (
            "UPDATE records SET body = json_set(body, '$.public_key', 'AA==')",
            "the stored key differs from the one in the audit",
        ),
        ("UPDATE records SET owner = 'bob'", "the stored key differs from the one in the audit"),
        ("DELETE FROM records", "is in the audit and no longer stored"),
        ("UPDATE records SET body = json_set(body, '$.revoked_at', 1.0)", "disagree about its removal"),
        (
            "INSERT INTO records SELECT NULL, 'key', 'new', 'bob', NULL, 1, body FROM records WHERE kind = 'key'",
            "is stored and not in the audit",
        ),
    ],
)
async def test_a_key_that_was_tampered_with_is_named_and_the_signature_still_stands(
    tmp_path: Path, statement: str, named: str
) -> None:
    path = tmp_path / "planwarden.db"
    await signed(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    told = await append_and_verify(path)
    [problem] = told.problems
    assert named in problem and told.signatures == 1


@requirement("signed:audit")
async def test_a_signature_after_its_key_was_removed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    await signed(path)
    async with open_store(StoreLocation(path=path)) as store:
        [key] = await KeyStore(store).all()
    told = await append_and_verify(
        path, {}, AuditEntry(kind="key_removed", facts={"key": key.key_id, "principal": "ann"})
    )
    assert any(f"row {told.rows} is not a valid signature: 'ann' had no key" in problem for problem in told.problems)


@requirement("signed:audit")
def test_the_terminal_verifies_says_when_it_cannot_and_ends_a_lost_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(make_home(tmp_path / "home"), capsys)
    assert "No keys" in cli.main("key", "list").out and cli.main("key", "list", "--json").json == {"keys": []}
    anyio.run(signed, cli.home / "planwarden.db")
    assert "1 signature verified" in cli.main("audit", "verify").out
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "webauthn", None)
        said = cli.main("audit", "verify")
        assert said.code == 0 and "1 signature not verified" in said.out and EXTRA in said.out
        assert cli.main("audit", "verify", "--json").json["unverified"] == 1
    [key] = cli.main("key", "list", "--json").json["keys"]
    assert (key["principal"], key["label"], key["rpId"], key["revokedAt"]) == ("ann", "blue key", "localhost", None)
    listed = cli.main("key", "list").out
    assert key["keyId"] in listed and "usable" in listed and "publicKey" not in listed
    refusals = {"": "write at least 4", key["keyId"][:3]: "write at least 4", "ffff0000ffff0000": "there is no key"}
    for wrong, text in refusals.items():
        said = cli.main("key", "revoke", wrong)
        assert said.code == 2 and text in said.err
    assert "is revoked" in cli.main("key", "revoke", key["keyId"][:8].upper()).out
    assert "was revoked before" in cli.main("key", "revoke", key["keyId"]).err
    assert "revoked 20" in cli.main("key", "list").out
    assert cli.main("audit", "verify").code == 0
