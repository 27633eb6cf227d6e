"""The laws of the `KeyStore` port, over every store there is."""

import anyio
import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.store import Store
from planwarden.storage.ports.keys import OPEN_NONCES, KeyStore, KeyUse, SigningKey, SigningNonce, keys_of
from tests.requirements import requirement
from tests.storage.suite import BackEnd

pytestmark = pytest.mark.anyio
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


@pytest.fixture
def keys(back_end: BackEnd) -> KeyStore:
    return keys_of(back_end.connect())


async def kinds(store: Store) -> list[str]:
    return [row.entry.kind for row in await store.audit_rows()]


@requirement("keys:laws")
async def test_keys_come_back_as_they_were_added_also_through_another_connection(back_end: BackEnd) -> None:
    store = back_end.connect()
    assert await keys_of(store).add_key(key(), None, ADDED)
    assert await keys_of(store).add_key(key("b", "bob"), None, ADDED)
    other = keys_of(back_end.connect())
    assert await other.keys() == (key(), key("b", "bob")) and await other.keys("bob") == (key("b", "bob"),)
    assert await kinds(store) == ["key_added", "key_added"]


@requirement("keys:laws")
async def test_the_second_key_of_somebody_needs_a_use_of_the_first(back_end: BackEnd) -> None:
    store = back_end.connect()
    found = keys_of(store)
    assert await found.add_key(key(), None, ADDED)
    refused = [None, use("b"), use(principal="bob"), use(count=-1), use("nobody")]
    for by in refused:
        assert not await found.add_key(key("b"), by, ADDED)
    assert not await found.add_key(key("a"), use(), ADDED), "it is known already"
    assert await found.keys() == (key(),) and await kinds(store) == ["key_added"]
    assert await found.add_key(key("b"), use(count=5), ADDED)
    assert [k.sign_count for k in await found.keys("ann")] == [5, 0]


@requirement("keys:laws")
async def test_of_two_first_keys_that_race_one_is_added(back_end: BackEnd) -> None:
    one, other = keys_of(back_end.connect()), keys_of(back_end.connect())
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
    found = keys_of(store)
    assert await found.add_key(key(), None, ADDED)
    told = [await found.use_key(use(count=count, at=3.0), SIGNED) for count in (0, 0, 7, 7, 6, 0, 8)]
    assert told == [True, True, True, False, False, False, True]
    assert not await found.use_key(use(principal="bob", count=9), SIGNED)
    assert await found.keys() == (replace(key(), sign_count=8, used_at=3.0),)
    assert await found.revoke_key("a", 4.0, REMOVED)
    assert not await found.use_key(use(count=9), SIGNED) and not await found.revoke_key("a", 5.0, REMOVED)
    assert await found.keys() == (replace(key(), sign_count=8, used_at=3.0, revoked_at=4.0),)
    assert await kinds(store) == ["key_added", *["signature"] * 4, "key_removed"]


@requirement("keys:laws")
async def test_the_last_key_is_spared_where_it_should_be_and_a_revoked_one_hinders_nobody(keys: KeyStore) -> None:
    assert await keys.add_key(key(), None, ADDED) and await keys.add_key(key("b"), use(), ADDED)
    assert await keys.revoke_key("a", 3.0, REMOVED, spares_last=True)
    assert not await keys.revoke_key("b", 3.0, REMOVED, spares_last=True)
    assert not await keys.revoke_key("nobody", 3.0, REMOVED)
    assert await keys.revoke_key("b", 3.0, REMOVED)
    assert not await keys.add_key(key("a"), None, ADDED), "a revoked key does not come back"
    assert await keys.add_key(key("c"), None, ADDED)
    with pytest.raises(UsageError, match="object keeps no keys"):
        # A store of somebody else's that does without.
        keys_of(object())  # pyright: ignore[reportArgumentType]


@requirement("signed:nonce")
async def test_a_nonce_is_given_out_once_and_not_after_its_time(back_end: BackEnd) -> None:
    one, other = keys_of(back_end.connect()), keys_of(back_end.connect())
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
async def test_a_session_keeps_few_open_nonces_and_expired_ones_go(keys: KeyStore) -> None:
    await keys.add_nonce(nonce("other", "t"), 1.0)
    for number in range(OPEN_NONCES + 3):
        await keys.add_nonce(nonce(f"n{number}"), 1.0)
    gone = [await keys.take_nonce(f"n{number}", 2.0) is None for number in range(OPEN_NONCES + 3)]
    assert gone == [True] * 3 + [False] * OPEN_NONCES
    assert await keys.take_nonce("other", 2.0) is not None
