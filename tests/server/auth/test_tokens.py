"""Tokens in both stores: what is kept of them, and when they are accepted."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.server.auth.admission import WATCH_S
from planwarden.server.auth.secrets import DAY_S, PREFIX, find_valid_token, hash_token, make_token
from planwarden.server.auth.tokens import TokenCheck
from planwarden.storage.ports.tokens import HasTokens, TokenStore
from tests.kit import ManualClock, requirement
from tests.storage.suite import BackEnd

pytestmark = pytest.mark.anyio


def _tokens(back_end: BackEnd) -> tuple[TokenStore, ManualClock]:
    store = back_end.connect()
    assert isinstance(store, HasTokens)
    return store.tokens, back_end.clock


def _written(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("planwarden.db*"))


@requirement("access:tokens")
async def test_a_token_is_found_by_its_secret_alone_in_another_process_too(back_end: BackEnd, tmp_path: Path) -> None:
    tokens, clock = _tokens(back_end)
    secret, row = await make_token(tokens, clock, "ann@example.org", days=2)
    assert secret.startswith(PREFIX) and len(secret) >= len(PREFIX) + 43
    others, _ = _tokens(back_end)
    assert await others.find(hash_token(secret)) == row == (await others.all())[0]
    assert await find_valid_token(others, clock, secret, role="caller") == row
    for wrong in (secret[:-1], secret + "a", secret.removeprefix(PREFIX), row.token_id, hash_token(secret), ""):
        assert await find_valid_token(others, clock, wrong, role="caller") is None
    assert secret.removeprefix(PREFIX).encode() not in _written(tmp_path)


@requirement("access:tokens")
async def test_every_change_of_the_tokens_is_a_row_of_the_audit_without_a_secret(back_end: BackEnd) -> None:
    store = back_end.connect()
    assert isinstance(store, HasTokens)
    secret, row = await make_token(store.tokens, back_end.clock, "bob", role="approver", days=1)
    await store.tokens.revoke("bob", back_end.clock.now())
    await store.tokens.revoke("bob", back_end.clock.now())
    rows = await store.audit_rows()
    assert [found.entry.kind for found in rows] == ["token_added", "token_revoked"]
    expected = {"tokenId": row.token_id, "principal": "bob", "role": "approver", "expiresAt": row.expires_at}
    assert all(found.entry.facts == expected for found in rows)
    assert secret not in str(rows) and hash_token(secret) not in str(rows)


@requirement("access:tokens")
async def test_an_expired_or_revoked_token_and_one_of_another_role_is_refused(back_end: BackEnd) -> None:
    tokens, clock = _tokens(back_end)
    short, _ = await make_token(tokens, clock, "ann", days=1)
    endless, row = await make_token(tokens, clock, "ann")
    person, _ = await make_token(tokens, clock, "bob", role="approver")
    check = TokenCheck(tokens, clock)
    assert await check.verify_token(short) and await check.verify_token(endless)
    assert await check.verify_token(person) is None
    assert await find_valid_token(tokens, clock, person, role="approver")
    clock.advance(DAY_S)
    assert await check.verify_token(short) is None and await check.verify_token(endless)
    assert await tokens.revoke(row.token_id, clock.now()) == (replace(row, revoked_at=clock.now()),)
    assert await check.verify_token(endless) is None


async def test_revoking_by_name_ends_all_of_them_once(back_end: BackEnd) -> None:
    tokens, clock = _tokens(back_end)
    for name in ("ann", "ann", "bob"):
        await make_token(tokens, clock, name)
    assert [row.principal for row in await tokens.revoke("ann", clock.now())] == ["ann", "ann"]
    assert await tokens.revoke("ann", clock.now()) == () == await tokens.revoke("nobody", clock.now())
    assert [row.revoked_at is None for row in await tokens.all()] == [False, False, True]


async def test_an_id_or_a_secret_is_taken_once(back_end: BackEnd) -> None:
    tokens, clock = _tokens(back_end)
    secret, row = await make_token(tokens, clock, "ann")
    for other, digest in ((row, "0" * 64), (replace(row, token_id="other"), hash_token(secret))):
        with pytest.raises(StoreError, match="already"):
            await tokens.add(other, digest)
    assert await tokens.all() == (row,)


@pytest.mark.parametrize("name", ["", "a b", "a#b", "https://idp#ann", "x" * 65, "-a", "ann\n", "\u202eann"])
async def test_a_name_that_could_be_mistaken_for_another_is_refused(back_end: BackEnd, name: str) -> None:
    tokens, clock = _tokens(back_end)
    with pytest.raises(InvalidArguments, match="name"):
        await make_token(tokens, clock, name)


@pytest.mark.parametrize("days", [0, -1, 10_000])
async def test_days_are_bounded(back_end: BackEnd, days: int) -> None:
    tokens, clock = _tokens(back_end)
    with pytest.raises(InvalidArguments, match="--days"):
        await make_token(tokens, clock, "ann", days=days)


@requirement("access:closes")
async def test_an_open_server_and_its_streams_notice_within_ten_seconds_what_became_of_tokens(
    back_end: BackEnd,
) -> None:
    tokens, clock = _tokens(back_end)
    check = TokenCheck(tokens, clock, is_open=True)
    assert await check.is_open()
    await make_token(tokens, clock, "ann")
    clock.advance(10 - WATCH_S)
    assert not await check.is_open() and await check.has_ended(check.pass_key)
