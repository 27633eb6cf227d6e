"""Access to the inbox: codes work once, guesses are cut off, sessions end, and the store holds only hashes."""

import sqlite3
import stat
from pathlib import Path

import anyio
import pytest

from planwarden.agent.common.errors import RateLimited, UsageError
from planwarden.server.inbox import sessions
from planwarden.server.inbox.passphrase import InboxPassphrase
from planwarden.server.settings.secrets import find_secrets
from planwarden.storage.sessions import RunningInboxes
from tests.kit import ManualClock, Settings, SqliteStore, Store, read_audit_page, requirement, verify_audit
from tests.storage.suite import mainly


async def _list_kinds(store: Store) -> list[str]:
    return [row.kind for row in (await read_audit_page(store)).rows]


async def _redeem_refused(access: sessions.InboxAccess, code: str, passphrase: str = "") -> type[UsageError]:
    with pytest.raises(UsageError) as refusal:
        await access.redeem(code, passphrase)
    return refusal.type


@requirement("inbox:code-once", "inbox:audited")
@pytest.mark.parametrize("manner", ["link", "lower case", "around"])
async def test_a_code_opens_one_session_once_as_people_type_it_and_the_audit_says_so(store: Store, manner: str) -> None:
    access = sessions.InboxAccess(store)
    codes = await access.make_codes("ann", "terminal")
    typed = codes.typed
    manners = {"lower case": typed.lower(), "around": f"  {typed.replace('-', ' ')}\n"}
    await _redeem_refused(access, "wrong")
    opened = await access.redeem(manners.get(manner, codes.link))
    assert opened.session.principal == "ann" and await access.find_session(opened.token) == opened.session
    for used in (codes.link, codes.typed):
        assert await _redeem_refused(access, used) is sessions.CodeRefused
    for token in (None, "", "x", "y" * 5_000, "\udcff"):
        assert await access.find_session(token) is None
    await access.end_session(opened.token, "ann")
    page = await read_audit_page(store)
    refused = ["code_refused"] * 2
    assert [row.kind for row in page.rows] == ["code_made", "code_refused", "session_opened", *refused, "session_ended"]
    assert page.rows[0].facts == {"principal": "ann", "channel": "terminal"}
    assert (await verify_audit(store)).is_whole
    assert not any(secret in repr(page) for secret in (codes.link, codes.typed, opened.token))


@requirement("inbox:code-once")
async def test_of_racing_uses_of_one_pairing_one_opens_a_session(store: Store) -> None:
    access = sessions.InboxAccess(store)
    codes = await access.make_codes("ann", "terminal")
    opened: list[sessions.OpenedSession] = []

    async def use(code: str) -> None:
        try:
            opened.append(await access.redeem(code))
        except (sessions.CodeRefused, RateLimited):
            return

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(16):
                tasks.start_soon(use, codes.link if number % 2 else codes.typed)
    assert len(opened) == 1


@requirement("inbox:code-expires")
async def test_a_code_is_for_a_readable_name_and_expires_within_minutes(store: Store, clock: ManualClock) -> None:
    access = sessions.InboxAccess(store)
    for name in ("", "  ", "x" * 129, "a\nb", "a\u202eb"):
        with pytest.raises(UsageError, match="printable"):
            await access.make_codes(name, "terminal")
    codes = await access.make_codes("ann", "terminal")
    clock.advance(sessions.CODE_S)
    assert await _redeem_refused(access, codes.link) is sessions.CodeRefused
    assert sessions.CODE_S <= 15 * 60


@requirement("inbox:lockout")
async def test_guessing_locks_typed_codes_out_and_leaves_links_alone(store: Store, clock: ManualClock) -> None:
    access = sessions.InboxAccess(store)
    codes = await access.make_codes("ann", "terminal")
    for number in range(sessions.ATTEMPTS):
        assert await _redeem_refused(access, f"0000-0000-000{number}") is sessions.CodeRefused
    assert await _redeem_refused(access, codes.typed) is RateLimited
    assert await _redeem_refused(access, "no such link") is RateLimited
    assert (await access.redeem(codes.link)).session.principal == "ann"
    for _ in range(sessions.ATTEMPTS * 2):
        await _redeem_refused(access, "guess")
    assert (await _list_kinds(store)).count("code_refused") == sessions.ATTEMPTS
    # Guesses while locked out do not prolong it.
    clock.advance(sessions.ATTEMPTS_S + 1)
    fresh = await access.make_codes("bob", "terminal")
    assert await _redeem_refused(access, "guess") is sessions.CodeRefused
    assert (await access.redeem(fresh.typed)).session.principal == "bob"


@requirement("inbox:session-ends")
async def test_a_session_expires_and_can_be_ended(store: Store, clock: ManualClock) -> None:
    access = sessions.InboxAccess(store)

    async def opened() -> sessions.OpenedSession:
        return await access.redeem((await access.make_codes("ann", "terminal")).link)

    first, second, third = await opened(), await opened(), await opened()
    assert await access.end_session(first.token, "ann") and not await access.end_session(first.token, "ann")
    assert await access.find_session(first.token) is None and await access.find_session(second.token) is not None
    unused = await access.make_codes("ann", "terminal")
    assert await access.end_all_sessions("ann") == 2
    assert await access.find_session(third.token) is None
    assert await _redeem_refused(access, unused.link) is sessions.CodeRefused
    last = await opened()
    clock.advance(sessions.SESSION_S)
    assert await access.find_session(last.token) is None


def build_passphrase(file: Path) -> InboxPassphrase:
    settings = Settings(home=file.parent, passphrase_file=file)
    return InboxPassphrase(settings, find_secrets(settings, None))


@requirement("inbox:passphrase")
@pytest.mark.parametrize("back_end", mainly("postgres"), indirect=True)
async def test_a_code_is_void_after_a_few_wrong_passphrases(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    passphrase = build_passphrase(file)
    with pytest.raises(UsageError, match="8"):
        await passphrase.replace("short")
    assert not file.exists()
    await passphrase.replace("correct horse battery")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and "horse" not in file.read_text()
    access = sessions.InboxAccess(store, await passphrase.read())
    welcome = await access.make_codes("ann", "terminal")
    assert (await access.redeem(welcome.link, "correct horse battery")).session.principal == "ann"
    codes = await access.make_codes("ann", "terminal")
    for number in range(sessions.PASSPHRASE_ATTEMPTS):
        code = codes.link if number % 2 else codes.typed
        assert await _redeem_refused(access, code, "wrong") is sessions.PassphraseRefused
    assert await _redeem_refused(access, codes.link, "correct horse battery") is sessions.CodeRefused
    assert (await _list_kinds(store)).count("code_refused") == sessions.PASSPHRASE_ATTEMPTS + 1


async def test_a_passphrase_file_that_holds_no_hash_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    large = "scrypt:99999999999:8:1:0011223344556677:" + "00" * 32
    for content in (None, "", "secret", "scrypt:1:1:1:00:00", large, "bcrypt:2:1:1:aa:bb"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(UsageError, match="set-passphrase"):
            await build_passphrase(file).read()


@requirement("inbox:hashed")
async def test_the_file_holds_no_code_and_no_cookie(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    store = SqliteStore.open(path)
    access = sessions.InboxAccess(store)
    codes, unused = await access.make_codes("ann", "terminal"), await access.make_codes("ann", "terminal")
    opened = await access.redeem(codes.link)
    await store.close()
    with sqlite3.connect(path) as connection:
        stored = "\n".join(connection.iterdump())
    connection.close()
    plain = unused.typed.replace("-", "")
    assert not any(secret in stored for secret in (codes.link, unused.link, unused.typed, plain, opened.token))


@requirement("inbox:shared")
async def test_processes_of_one_home_share_sessions_and_know_each_others_inboxes(tmp_path: Path) -> None:
    one, other = SqliteStore.open(tmp_path / "planwarden.db"), SqliteStore.open(tmp_path / "planwarden.db")
    opened = await sessions.InboxAccess(one).redeem(
        (await sessions.InboxAccess(other).make_codes("ann", "terminal")).link
    )
    assert await sessions.InboxAccess(other).find_session(opened.token) is not None
    await RunningInboxes(one).open("first", "http://127.0.0.1:1/inbox")
    await RunningInboxes(one).open("second", "http://127.0.0.1:2/inbox")
    assert await RunningInboxes(other).list_urls() == ("http://127.0.0.1:2/inbox", "http://127.0.0.1:1/inbox")
    await RunningInboxes(one).close("second")
    assert await RunningInboxes(other).list_urls() == ("http://127.0.0.1:1/inbox",)
    await one.close()
    assert await RunningInboxes(other).list_urls() == ()
    await other.close()
