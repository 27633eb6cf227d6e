"""What a signature by a key of a person proves, what is no such signature, and the laws of the store of keys."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import LimitExceeded, UsageError
from planwarden.server.signatures import signature
from planwarden.server.signatures.keyring import MAX_KEYS, Keyring, SignedStatement
from planwarden.storage.keys import OPEN_NONCES, KeyStore, KeyUse, SigningKey, SigningNonce
from planwarden.storage.sessions import InboxSession
from tests.kit import AuditEntry, ManualClock, MemoryStore, Store, requirement
from tests.server.signatures.support import HERE, PRESENT, Authenticator
from tests.storage.suite import BackEnd, kinds

ASKED = SignedStatement(execution_id="e", suspension_id="q", digest="a" * 64)


def session(principal: str = "ann", name: str = "s") -> InboxSession:
    return InboxSession(
        hash=f"{name} of {principal}".ljust(64, "0"), principal=principal, created_at=0.0, expires_at=1e12
    )


@dataclass
class Scene:
    """A keyring, and ann with a key in it."""

    store: Store
    clock: ManualClock
    device: Authenticator = field(default_factory=Authenticator)

    @property
    def ring(self) -> Keyring:
        return Keyring(self.store)

    async def add(
        self, principal: str = "ann", device: Authenticator | None = None, place: signature.RelyingParty = HERE
    ) -> SigningKey:
        device = device or self.device
        asked = await self.ring.request_key(session(principal), place)
        return await self.ring.add_key(
            session(principal),
            place,
            nonce=asked["nonce"],
            label="blue key",
            credential=device.create(asked["create"]),
            text=device.get(asked["get"]) if asked["get"] else "",
        )

    async def sign(self, statement: SignedStatement = ASKED, principal: str = "ann") -> None:
        asked = await self.ring.request_signature(session(principal), HERE, statement)
        await self.ring.record_signature(
            session(principal), HERE, statement, asked["nonce"], self.device.get(asked["get"])
        )

    async def refuse(
        self,
        reason: str,
        *,
        statement: SignedStatement = ASKED,
        change: Callable[[signature.BrowserOptions], signature.BrowserOptions] = dict,
        credential: bytes | None = None,
        by: str = "s",
        late_s: float = 0.0,
    ) -> tuple[str, str]:
        """Sends a signature about `ASKED` for the statement, which is refused; returns its nonce and itself."""
        asked = await self.ring.request_signature(session(), HERE, ASKED)
        text = self.device.get(change(asked["get"]), credential)
        self.clock.advance(late_s)
        with pytest.raises(signature.SignatureRefused, match=reason):
            await self.ring.record_signature(session(name=by), HERE, statement, asked["nonce"], text)
        return asked["nonce"], text

    async def told(self) -> list[tuple[str, Any]]:
        rows = await self.store.audit_rows()
        return [(row.entry.kind, row.entry.facts.get("reason")) for row in rows if row.entry.kind != "key_added"]


@pytest.fixture
async def scene() -> Scene:
    clock = ManualClock(1_700_000_000.0)
    made = Scene(MemoryStore(clock), clock)
    await made.add()
    return made


@requirement("signed:bound")
async def test_the_right_signature_counts_and_is_kept_whole(scene: Scene) -> None:
    await scene.sign()
    await scene.sign()
    rows = [row for row in await scene.store.audit_rows() if row.entry.kind == "signature"]
    [key] = await scene.ring.list_usable_keys("ann")
    assert len(rows) == 2 and key.sign_count == scene.device.count == 2 and key.used_at == scene.clock.now()
    facts = rows[0].entry.facts
    assert (rows[0].entry.execution_id, rows[0].entry.suspension_id) == ("e", "q")
    assert (facts["principal"], facts["key"], facts["digest"]) == ("ann", key.key_id, ASKED.digest)
    assert {"credential", "authenticatorData", "clientDataJSON", "signature", "nonce", "rpId"} <= facts.keys()
    plain = hashlib.sha256(b"approval-signature/v1\0" + b"a" * 64 + b"b" * 64).digest()
    assert (
        plain
        == signature.build_challenge("a" * 64, "b" * 64)
        != signature.build_challenge("a" * 64, "b" * 64, "c" * 64)
    )


def _other_digest(options: signature.BrowserOptions) -> signature.BrowserOptions:
    return {**options, "challenge": signature.to_base64url(signature.build_challenge("f" * 64, "b" * 64))}


@requirement("signed:bound")
@pytest.mark.parametrize(
    ("lie", "options", "reason"),
    [
        ({}, _other_digest, "challenge"),
        ({"origin": "http://localhost:3000"}, dict, "origin"),
        ({"origin": "https://localhost:8765"}, dict, "origin"),
        ({"origin": "http://localhost:8765.evil.example"}, dict, "origin"),
        ({"rp_id": "evil.example"}, dict, "RP ID"),
        ({"flags": PRESENT}, dict, "not verified"),
        ({"flags": 0x04}, dict, "not present"),
        ({"step": 0}, dict, "counts 1 signatures after 1"),
        ({"step": -1}, dict, "counts 0 signatures after 1"),
    ],
)
async def test_what_is_not_about_this_question_here_by_a_person_is_refused(
    scene: Scene,
    lie: dict[str, Any],
    options: Callable[[signature.BrowserOptions], signature.BrowserOptions],
    reason: str,
) -> None:
    await scene.sign()
    for name, value in lie.items():
        setattr(scene.device, name, value)
    await scene.refuse(reason, change=options)
    told = await scene.told()
    assert [kind for kind, _ in told] == ["signature", "refused"] and reason in told[-1][1]


@requirement("signed:bound", "signed:nonce")
async def test_a_signature_counts_once_for_its_statement_in_its_session_within_its_time(scene: Scene) -> None:
    for change in ({"suspension_id": "r"}, {"digest": "b" * 64}, {"content": "c" * 64}):
        nonce, text = await scene.refuse("another question", statement=replace(ASKED, **change))
        with pytest.raises(signature.SignatureRefused, match="used before"):
            await scene.ring.record_signature(session(), HERE, ASKED, nonce, text)
    await scene.refuse("used before", by="t")
    await scene.refuse("has expired", late_s=signature.NONCE_S)
    asked = await scene.ring.request_signature(session(), HERE, ASKED)
    signed = asked["nonce"], scene.device.get(asked["get"])
    await scene.ring.record_signature(session(), HERE, ASKED, *signed)
    adding = await scene.ring.request_key(session(), HERE)
    for nonce, text in (signed, (adding["nonce"], scene.device.get(adding["get"]))):
        with pytest.raises(signature.SignatureRefused, match="used before"):
            await scene.ring.record_signature(session(), HERE, ASKED, nonce, text)


@requirement("signed:keys")
async def test_only_a_living_key_of_the_person_signs(scene: Scene) -> None:
    foreign, own = Authenticator(), scene.device
    await scene.add("bob", foreign)
    [theirs] = foreign.keys
    scene.device = foreign
    await scene.refuse("not yours", credential=theirs)
    scene.device = own
    asked = await scene.ring.request_signature(session(), HERE, ASKED)
    [key] = await scene.ring.list_usable_keys("ann")
    await scene.ring.revoke_key(key.key_id[:6], "operator")
    with pytest.raises(signature.SignatureRefused, match="removed"):
        await scene.ring.record_signature(session(), HERE, ASKED, asked["nonce"], own.get(asked["get"]))
    with pytest.raises(UsageError, match="no key for localhost"):
        await scene.ring.request_signature(session(), HERE, ASKED)


@requirement("signed:keys")
async def test_a_further_key_needs_a_signature_by_a_known_one_and_no_page_removes_the_last(scene: Scene) -> None:
    asked = await scene.ring.request_key(session(), HERE)
    new = Authenticator()
    credential = new.create(asked["create"])
    with pytest.raises(signature.SignatureRefused, match="form"):
        await scene.ring.add_key(session(), HERE, nonce=asked["nonce"], label="x", credential=credential, text="")
    asked = await scene.ring.request_key(session(), HERE)
    credential = new.create(asked["create"])
    # The new key cannot speak for itself.
    [made] = list(new.keys)[1:]
    own = new.get(asked["get"], made)
    with pytest.raises(signature.SignatureRefused, match="not yours"):
        await scene.ring.add_key(session(), HERE, nonce=asked["nonce"], label="x", credential=credential, text=own)
    first, second = (await scene.ring.list_usable_keys("ann"))[0], await scene.add()
    assert [key.key_id for key in await scene.ring.list_usable_keys("ann")] == [first.key_id, second.key_id]
    await scene.ring.remove_own_key(session(), first.key_id)
    for key_id in (first.key_id, second.key_id, "f" * 16):
        with pytest.raises(UsageError, match="not your last"):
            await scene.ring.remove_own_key(session(), key_id)
    with pytest.raises(UsageError, match="not your last"):
        await scene.ring.remove_own_key(session("bob"), second.key_id)


@requirement("signed:keys")
async def test_a_new_key_is_made_here_by_a_verified_person(scene: Scene) -> None:
    for liar, reason in (
        (Authenticator(flags=PRESENT), "not verified"),
        (Authenticator(origin="http://localhost:3000"), "origin"),
        (Authenticator(rp_id="evil.example"), "RP ID"),
    ):
        with pytest.raises(signature.SignatureRefused, match=reason):
            await scene.add("bob", liar)
    assert await scene.ring.list_usable_keys("bob") == ()


@requirement("signed:keys")
async def test_keys_are_bound_to_their_place_named_and_few(scene: Scene) -> None:
    elsewhere = signature.RelyingParty(rp_id="plan.example.com", origin="https://plan.example.com")
    with pytest.raises(UsageError, match="only at localhost"):
        await scene.ring.request_key(session(), elsewhere)
    with pytest.raises(UsageError, match=r"no key for plan\.example\.com"):
        await scene.ring.request_signature(session(), elsewhere, ASKED)
    for label in ("", "   ", "x" * 61, "a\nb", "a\u202eb"):
        with pytest.raises(UsageError, match="name the key"):
            await scene.ring.add_key(session(), HERE, nonce="0" * 64, label=label, credential="", text="")
    for _ in range(MAX_KEYS - 1):
        await scene.add()
    with pytest.raises(LimitExceeded, match="the limit is 20"):
        await scene.add()


@requirement("signed:bound")
@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"id": "=", "response": {"clientDataJSON": "e30", "authenticatorData": "", "signature": ""}}',
        '{"id": "eA", "response": {"clientDataJSON": "e", "authenticatorData": "", "signature": ""}}',
        json.dumps({"id": "eA", "response": {"clientDataJSON": "A" * 9000, "authenticatorData": "", "signature": ""}}),
        "[" * 100_000,
    ],
)
async def test_what_is_no_signature_at_all_is_refused_by_a_sentence(scene: Scene, text: str) -> None:
    asked = await scene.ring.request_signature(session(), HERE, ASKED)
    with pytest.raises(signature.SignatureRefused, match="expected format"):
        await scene.ring.record_signature(session(), HERE, ASKED, asked["nonce"], text)
    asked = await scene.ring.request_key(session("bob"), HERE)
    with pytest.raises(signature.SignatureRefused, match=r"not valid|too large"):
        await scene.ring.add_key(session("bob"), HERE, nonce=asked["nonce"], label="x", credential=text, text="")


@requirement("signed:keys")
async def test_a_new_key_with_a_hostile_attestation_is_refused_by_a_sentence(scene: Scene) -> None:
    for statement in ({"ver": "1", "response": 7}, {"ver": "1", "response": b"W10.W10.x"}):
        hostile = Authenticator(attestation={"fmt": "android-safetynet", "attStmt": statement})
        with pytest.raises(signature.SignatureRefused, match="not valid"):
            await scene.add("bob", hostile)
    assert await scene.ring.list_usable_keys("bob") == ()


@requirement("signed:bound")
async def test_a_signature_with_one_bit_flipped_is_refused(scene: Scene) -> None:
    for part, position in product(("clientDataJSON", "authenticatorData", "signature"), (0, 40, -1)):
        asked = await scene.ring.request_signature(session(), HERE, ASKED)
        sent = json.loads(scene.device.get(asked["get"]))
        data = bytearray(signature.from_base64url(sent["response"][part]))
        data[position % len(data)] ^= 1
        sent["response"][part] = signature.to_base64url(bytes(data))
        with pytest.raises(signature.SignatureRefused):
            await scene.ring.record_signature(session(), HERE, ASKED, asked["nonce"], json.dumps(sent))
    assert {kind for kind, _ in await scene.told()} == {"refused"}


ADDED, REMOVED, SIGNED = (
    AuditEntry(kind="key_added", facts={}),
    AuditEntry(kind="key_removed", facts={}),
    AuditEntry(kind="signature", facts={}),
)


def key(name: str = "a", principal: str = "ann", count: int = 0) -> SigningKey:
    return SigningKey(
        key_id=name,
        credential_id=name.encode(),
        public_key=b"\x00\xff",
        principal=principal,
        rp_id="localhost",
        label="blue",
        sign_count=count,
        created_at=1.0,
    )


def use(name: str = "a", principal: str = "ann", count: int = 1, at: float = 2.0) -> KeyUse:
    return KeyUse(key_id=name, principal=principal, sign_count=count, at=at)


def nonce(text: str, session: str = "s", expires_at: float = 10.0) -> SigningNonce:
    return SigningNonce(
        nonce=text, purpose="sign", session=session, suspension_id="q", digest="d", expires_at=expires_at
    )


@requirement("keys:laws")
async def test_the_second_key_of_somebody_needs_a_use_of_the_first_and_keys_come_back_through_every_connection(
    back_end: BackEnd,
) -> None:
    store, other = back_end.connect(), KeyStore(back_end.connect())
    found = KeyStore(store)
    assert await found.add_key(key(), None, ADDED)
    refused = [None, use("b"), use(principal="bob"), use(count=-1), use("nobody")]
    for by in refused:
        assert not await found.add_key(key("b"), by, ADDED)
    assert not await found.add_key(key("a"), use(), ADDED), "it is known already"
    assert await found.all() == (key(),) and await kinds(store) == ["key_added"]
    assert await found.add_key(key("b"), use(count=5), ADDED)
    assert await found.add_key(key("c", "bob"), None, ADDED)
    assert [k.sign_count for k in await other.all("ann")] == [5, 0]
    assert await other.all("bob") == (key("c", "bob"),)


@requirement("keys:laws")
async def test_of_two_first_keys_that_race_one_is_added(back_end: BackEnd) -> None:
    one, other = KeyStore(back_end.connect()), KeyStore(back_end.connect())
    added: list[bool] = []

    async def add(to: KeyStore, name: str) -> None:
        added.append(await to.add_key(key(name), None, ADDED))

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(add, one if number % 2 else other, f"k{number}")
    assert sorted(added) == [False] * 7 + [True]


@requirement("keys:laws")
async def test_a_signature_counts_only_when_its_count_has_grown_and_its_key_is_alive(back_end: BackEnd) -> None:
    store = back_end.connect()
    found = KeyStore(store)
    assert await found.add_key(key(), None, ADDED)
    told = [await found.use_key(use(count=count, at=3.0), SIGNED) for count in (0, 0, 7, 7, 6, 0, 8)]
    assert told == [True, True, True, False, False, False, True]
    assert not await found.use_key(use(principal="bob", count=9), SIGNED)
    assert await found.all() == (replace(key(), sign_count=8, used_at=3.0, version=5),)
    assert await found.revoke_key("a", 4.0, REMOVED)
    assert not await found.use_key(use(count=9), SIGNED) and not await found.revoke_key("a", 5.0, REMOVED)
    assert await found.all() == (replace(key(), sign_count=8, used_at=3.0, revoked_at=4.0, version=6),)
    assert await kinds(store) == ["key_added", *["signature"] * 4, "key_removed"]


@requirement("keys:laws")
async def test_the_last_key_is_spared_where_it_should_be_and_a_revoked_one_hinders_nobody(back_end: BackEnd) -> None:
    keys = KeyStore(back_end.connect())
    assert await keys.add_key(key(), None, ADDED) and await keys.add_key(key("b"), use(), ADDED)
    assert await keys.revoke_key("a", 3.0, REMOVED, spares_last=True)
    assert not await keys.revoke_key("b", 3.0, REMOVED, spares_last=True)
    assert not await keys.revoke_key("nobody", 3.0, REMOVED)
    assert await keys.revoke_key("b", 3.0, REMOVED)
    assert not await keys.add_key(key("a"), None, ADDED), "a revoked key does not come back"
    assert await keys.add_key(key("c"), None, ADDED)
    with pytest.raises(UsageError, match="object keeps no tokens, sessions, keys"):
        # A store of somebody else's that does without.
        KeyStore(object())


@requirement("signed:nonce")
async def test_a_nonce_is_given_out_once_and_not_after_its_time(back_end: BackEnd) -> None:
    one, other = KeyStore(back_end.connect()), KeyStore(back_end.connect())
    await one.add_nonce(nonce("n"), 1.0)
    taken: list[SigningNonce | None] = []

    async def take(keys: KeyStore) -> None:
        taken.append(await keys.take_nonce("n", 2.0))

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(take, one if number % 2 else other)
    assert [found for found in taken if found is not None] == [nonce("n")]
    await one.add_nonce(nonce("late"), 1.0)
    assert await one.take_nonce("late", 10.0) is None
    assert await one.take_nonce("unknown", 1.0) is None


@requirement("signed:nonce")
async def test_a_session_keeps_few_open_nonces_and_expired_ones_go(back_end: BackEnd) -> None:
    keys = KeyStore(back_end.connect())
    await keys.add_nonce(nonce("other", "t"), 1.0)
    for number in range(OPEN_NONCES + 3):
        await keys.add_nonce(nonce(f"n{number}"), 1.0)
    gone = [await keys.take_nonce(f"n{number}", 2.0) is None for number in range(OPEN_NONCES + 3)]
    assert gone == [True] * 3 + [False] * OPEN_NONCES
    assert await keys.take_nonce("other", 2.0) is not None
