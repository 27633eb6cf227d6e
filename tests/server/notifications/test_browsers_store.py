"""The laws of the `BrowserStore` port, over every store there is."""

import anyio
import pytest
from msgspec.structs import replace

from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.notifications import Notification
from planwarden.agent.ports.store import Store
from planwarden.storage.ports.browsers import MAX_ALL_BROWSERS, MAX_BROWSERS, BrowserStore, NotifiedBrowser, browsers_of
from planwarden.storage.ports.notifications import HasNotifications
from planwarden.storage.ports.sessions import InboxSession, PairingCode, sessions_of
from tests.requirements import requirement
from tests.storage.suite import BackEnd, Scribe, question

pytestmark = pytest.mark.anyio

ADDED, REMOVED = AuditEntry(kind="browser_added", facts={}), AuditEntry(kind="browser_removed", facts={})
ENDED = AuditEntry(kind="session_ended", facts={})


def browser(name: str = "b1", principal: str = "ann", session: str = "s1", at: float = 1.0) -> NotifiedBrowser:
    return NotifiedBrowser(
        browser_id=name,
        principal=principal,
        session=session,
        endpoint="https://push.example/" + "x" * 2_000,
        p256dh="key",
        auth="secret",
        label="Firefox on Linux",
        created_at=at,
        expires_at=at + 1_000,
    )


async def open_session(store: Store, name: str = "s1", principal: str = "ann", at: float = 0.0) -> None:
    """A session that is open until 100 seconds later."""
    code = PairingCode(
        hash=f"code {name}", pairing=name, principal=principal, is_typed=False, created_at=at, expires_at=at + 10
    )
    await sessions_of(store).add_codes([code], ENDED)
    session = InboxSession(hash=name, principal=principal, created_at=at, expires_at=at + 100)
    assert await sessions_of(store).redeem(code.hash, session, ENDED)


async def list_names(browsers: BrowserStore, now: float = 2.0) -> list[str]:
    return [found.browser_id for found in await browsers.all(now)]


async def count_kinds(store: Store, *kinds: str) -> list[int]:
    rows = [row.entry.kind for row in await store.audit_rows(limit=1_000)]
    return [rows.count(kind) for kind in kinds]


@requirement("push:laws")
async def test_browsers_come_back_as_they_were_added_also_through_another_connection(back_end: BackEnd) -> None:
    store, other = back_end.connect(), back_end.connect()
    await open_session(store)
    assert await browsers_of(store).add(browser(), ADDED)
    assert await browsers_of(store).add(browser("b0"), ADDED)
    assert await browsers_of(other).all(2.0) == (browser(), browser("b0"))
    again = replace(browser(at=5.0), p256dh="new", auth="newer", label="Chrome", endpoint=browser().endpoint)
    assert await browsers_of(other).add(again, ADDED)
    assert await browsers_of(store).all(6.0) == (again, browser("b0"))
    assert await count_kinds(store, "browser_added") == [3]


@requirement("push:laws", "push:own")
async def test_a_browser_belongs_to_an_open_session_of_its_person(back_end: BackEnd) -> None:
    store = back_end.connect()
    browsers = browsers_of(store)
    await open_session(store)
    await open_session(store, "s2", "bob")
    assert not await browsers.add(browser(session="unknown"), ADDED)
    assert not await browsers.add(browser(session="s2"), ADDED)
    assert not await browsers.add(browser(at=200.0), ADDED)
    assert await browsers.add(browser(), ADDED)
    assert not await browsers.renew("b1", "s2", 3.0, 9_000.0)
    assert not await browsers.renew("unknown", "s1", 3.0, 9_000.0)
    assert not await browsers.renew("b1", "s1", 300.0, 9_000.0)
    assert await browsers.all(2.0) == (browser(),) and await count_kinds(store, "browser_added") == [1]
    await open_session(store, "s3")
    assert await browsers.renew("b1", "s3", 3.0, 9_000.0)
    assert await browsers.all(8_999.0) == (replace(browser(), session="s3", expires_at=9_000.0),)
    assert not await browsers.remove("b1", "bob", 3.0, REMOVED)
    assert await browsers.remove("b1", "ann", 3.0, REMOVED) and not await browsers.remove("b1", "ann", 3.0, REMOVED)
    assert await browsers.all(2.0) == () and await count_kinds(store, "browser_removed") == [1]


@requirement("push:laws", "push:own")
async def test_what_ends_a_session_ends_its_browsers_and_what_waits_for_them(back_end: BackEnd) -> None:
    store = back_end.connect()
    browsers, sessions = browsers_of(store), sessions_of(store)
    for name, principal in (("s1", "ann"), ("s2", "ann"), ("s3", "bob")):
        await open_session(store, name, principal)
    added = (browser(), browser("b2"), browser("b3", session="s2"), browser("b4", "bob", "s3"))
    assert all([await browsers.add(found, ADDED) for found in added])
    await store_notifications(store, *added)
    assert isinstance(store, HasNotifications)
    assert not await sessions.end("s1", 500.0, ENDED)
    assert await list_names(browsers) == ["b1", "b2", "b3", "b4"]
    assert await sessions.end("s1", 3.0, ENDED)
    assert await list_names(browsers) == ["b3", "b4"]
    assert await store.notifications.waiting() == {"browser:b3": 1, "browser:b4": 1, "phone": 1}
    assert await browsers.remove("b3", "ann", 3.0, REMOVED)
    assert await store.notifications.waiting() == {"browser:b4": 1, "phone": 1}
    assert await sessions.end_all(3.0, ENDED) == 2
    assert await list_names(browsers) == [] and await store.notifications.waiting() == {"phone": 1}


async def store_notifications(store: Store, *browsers: NotifiedBrowser) -> None:
    """One for each browser, and one for a phone."""
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    append = scribe.append(ev.Suspended(question=question("q1")), ev.ExecutionSuspended())
    channels = [*(found.channel for found in browsers), "phone"]
    notifications = [
        Notification(
            notification_id=f"ntc_{channel}",
            channel=channel,
            kind="asked",
            execution_id="e1",
            suspension_id="q1",
            facts={},
            created_at=store.clock.now(),
        )
        for channel in channels
    ]
    await store.append(replace(append, notifications=notifications))


@requirement("push:laws")
async def test_the_number_of_browsers_is_bounded_for_a_person_and_for_all(back_end: BackEnd) -> None:
    store = back_end.connect()
    browsers = browsers_of(store)
    people = [f"person {number}" for number in range(MAX_ALL_BROWSERS // MAX_BROWSERS)]
    for person in (*people, "late"):
        await open_session(store, person, person)
        await open_session(store, f"{person} again", person, at=2_000.0)
    for number in range(MAX_BROWSERS):
        assert await browsers.add(browser(f"0 {number}", people[0], people[0]), ADDED)
    assert not await browsers.add(browser("one more", people[0], people[0]), ADDED)
    assert await browsers.add(browser("0 0", people[0], people[0]), ADDED)
    for person in people[1:]:
        for number in range(MAX_BROWSERS):
            assert await browsers.add(browser(f"{person} {number}", person, person), ADDED)
    assert not await browsers.add(browser("of another", "late", "late"), ADDED)
    assert len(await browsers.all(2.0)) == MAX_ALL_BROWSERS
    assert await browsers.add(browser("of another", "late", "late again", at=2_050.0), ADDED)
    assert await list_names(browsers) == ["of another"]


@requirement("push:laws")
async def test_a_browser_that_is_never_reached_is_forgotten(back_end: BackEnd) -> None:
    store = back_end.connect()
    browsers = browsers_of(store)
    await open_session(store)
    assert await browsers.add(browser(), ADDED)
    assert not await browsers.count_failure("b1", 3) and not await browsers.count_failure("b1", 3)
    assert [found.failures for found in await browsers.all(2.0)] == [2]
    await browsers.clear_failures("b1")
    await browsers.clear_failures("unknown")
    assert not await browsers.count_failure("b1", 2) and not await browsers.count_failure("unknown", 1)
    assert await browsers.count_failure("b1", 2) and await browsers.all(2.0) == ()


@requirement("push:laws", "push:own")
async def test_a_session_that_ends_while_a_browser_is_added_leaves_none(back_end: BackEnd) -> None:
    first, second = back_end.connect(), back_end.connect()
    for number in range(10):
        session = f"s{number}"
        await open_session(first, session)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(browsers_of(first).add, browser(f"b{number}", session=session), ADDED)
            tasks.start_soon(sessions_of(second).end, session, 2.0, ENDED)
    assert await list_names(browsers_of(first)) == []
