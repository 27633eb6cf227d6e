"""What notifications are sent from: the channels of the operator's file, and the queue that each store keeps."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import GuardFailed, InvalidArguments
from planwarden.agent.core.execution.notifications import Notification
from planwarden.storage.sql.notifications import MAX_WAITING, HasNotifications, NotificationQueue
from tests.kit import ManualClock, SqliteStore, Store, ev, load_settings, requirement, verify_audit
from tests.storage.suite import BackEnd, Scribe, decided, guard, question

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
WEBHOOK = '[[notify]]\nkind = "webhook"\nurl = "https://hooks.example/t0psecret?x=1"\nsecret_env = "HOOK_SECRET"\n'
NTFY = '[[notify]]\nkind = "ntfy"\nurl = "https://ntfy.sh/t0psecret"\n'


def test_the_file_names_channels_and_the_environment_holds_their_secrets(tmp_path: Path) -> None:
    text = WEBHOOK + 'events = ["escalated"]\n' + NTFY + 'token_env = "NTFY_TOKEN"\nname = "phone"\n'
    (tmp_path / "planwarden.toml").write_text(text)
    environment = {"HOOK_SECRET": f" {SECRET}\n", "NTFY_TOKEN": "tk_s3cret"}
    settings = load_settings(home=tmp_path, environment=environment)
    web, push = settings.channels
    assert (web.name, web.host) == ("webhook:hooks.example", "hooks.example")
    assert (web.events, web.problem) == ({"escalated"}, None)
    assert (push.name, push.host, push.token, len(push.events)) == ("phone", "ntfy.sh", "tk_s3cret", 5)
    assert len(web.key) == 24
    for hidden in ("t0psecret", "tk_s3cret", SECRET[6:], repr(web.key)):
        assert hidden not in repr(settings)


def test_a_secret_that_is_missing_or_wrong_is_the_channels_problem_and_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "planwarden.toml").write_text(WEBHOOK)

    def find_problem(**environment: str) -> str | None:
        [channel] = load_settings(home=tmp_path, environment=environment).channels
        return channel.problem

    for nothing in ({}, {"HOOK_SECRET": ""}):
        assert find_problem(**nothing) == "the environment variable HOOK_SECRET is not set"
    for wrong in ("whsec_c2hvcnQ=", "correct horse battery staple", "whsec_" + "A" * 120, "whsec_Łódź"):
        problem = find_problem(HOOK_SECRET=wrong) or ""
        assert "is not whsec_ and 24 to 64 bytes in base64" in problem and wrong not in problem
    assert find_problem(HOOK_SECRET=SECRET.removeprefix("whsec_")) is None
    # A token has to be the value of a header.
    (tmp_path / "planwarden.toml").write_text(NTFY + 'token_env = "NTFY_TOKEN"\n')
    for token in ("", "two words", "line\nbreak", "Łódź"):
        assert find_problem(NTFY_TOKEN=token) == "the environment variable NTFY_TOKEN holds no token"
    # Plain HTTP is for this machine.
    for host in ("127.0.0.1:8080", "localhost:1", "[::1]:80", "127.8.8.8"):
        (tmp_path / "planwarden.toml").write_text(WEBHOOK.replace("https://hooks.example", f"http://{host}"))
        assert find_problem(HOOK_SECRET=SECRET) is None


WRONG = (
    (WEBHOOK.replace("https:", "http:"), "plain http is allowed for this machine only"),
    (WEBHOOK.replace("https:", "file:"), "not an address that a notification can be sent to"),
    (WEBHOOK.replace("hooks.example", "ann:pw@hooks.example"), "must not hold a user name or password"),
    (WEBHOOK.replace("hooks.example", ""), "not an address"),
    (WEBHOOK.replace("?x=1", "#x"), "not an address"),
    (WEBHOOK.replace('secret_env = "HOOK_SECRET"', ""), "a webhook is signed"),
    (WEBHOOK.replace('"HOOK_SECRET"', '"whsec_abc/+="'), "secret_env"),
    (NTFY + 'secret_env = "X"', "ntfy uses no secret_env"),
    (NTFY.replace("/t0psecret", "/a/b"), "one topic"),
    (NTFY + "events = []", "events"),
    (NTFY + 'name = "a\\nb"', "name"),
    (NTFY + NTFY, "two .* channels called 'ntfy:ntfy.sh'; give each a different 'name'"),
    ("".join(f'{NTFY}name = "n{number}"\n' for number in range(11)), "the limit is 10"),
)


def test_a_channel_that_cannot_work_is_refused_without_repeating_its_address(tmp_path: Path) -> None:
    for text, said in WRONG:
        (tmp_path / "planwarden.toml").write_text(text)
        with pytest.raises(InvalidArguments, match=said) as refused:
            load_settings(home=tmp_path, environment={"HOOK_SECRET": SECRET})
        assert "t0psecret" not in refused.value.message and "pw" not in refused.value.message


CLAIM_S = 60.0


def notifications_of(store: Store) -> NotificationQueue:
    assert isinstance(store, HasNotifications)
    return store.notifications


def notification(number: int, at: float, channel: str = "phone") -> Notification:
    return Notification(
        notification_id=f"ntc_{number}",
        channel=channel,
        kind="asked",
        execution_id="e1",
        suspension_id=f"s{number}",
        facts={"toolName": "Łódź", "reminder": None},
        created_at=at,
    )


async def written(store: Store, *notifications: Notification) -> Scribe:
    """An execution whose first question was stored together with the notifications."""
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    append = scribe.append(ev.Suspended(question=question("s1")), ev.ExecutionSuspended())
    scribe.lease = await store.append(replace(append, notifications=notifications))
    scribe.execution = append.execution
    return scribe


@requirement("notification:with-its-event")
async def test_a_notification_is_stored_exactly_when_its_event_is(store: Store, clock: ManualClock) -> None:
    notifications = notifications_of(store)
    assert not await notifications.is_due("phone") and await notifications.waiting() == {}
    scribe = await written(store, notification(1, clock.now()), notification(2, clock.now(), "hook"))
    assert await notifications.waiting() == {"hook": 1, "phone": 1}
    refused = replace(
        scribe.append(decided("s1"), guards=[guard("s1", digest="old")]), notifications=[notification(3, 0.0)]
    )
    with pytest.raises(GuardFailed):
        await store.append(refused)
    assert await notifications.waiting() == {"hook": 1, "phone": 1}
    [claimed] = await notifications.claim("phone", limit=10, lease_s=CLAIM_S)
    assert claimed == replace(notification(1, clock.now()), attempts=1)


@requirement("notification:one-claim")
async def test_of_racing_claims_one_gets_a_notification_for_its_time(back_end: BackEnd, clock: ManualClock) -> None:
    first, second = back_end.connect(), back_end.connect()
    await written(first, *(notification(number, clock.now() + number / 10) for number in range(8)))
    clock.advance(1)
    got: list[Notification] = []

    async def claim(store: Store) -> None:
        for _ in range(3):
            got.extend(await notifications_of(store).claim("phone", limit=2, lease_s=CLAIM_S))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(claim, first)
        tasks.start_soon(claim, second)
    assert sorted(found.suspension_id for found in got) == [f"s{number}" for number in range(8)]
    assert not await notifications_of(second).is_due("phone")
    clock.advance(CLAIM_S)
    again = await notifications_of(second).claim("phone", limit=100, lease_s=CLAIM_S)
    assert {found.attempts for found in again} == {2} and len(again) == 8


@requirement("notification:one-claim")
async def test_what_an_outdated_claim_says_changes_nothing(store: Store, clock: ManualClock) -> None:
    notifications = notifications_of(store)
    await written(store, notification(1, clock.now()))
    [old] = await notifications.claim("phone", limit=1, lease_s=CLAIM_S)
    clock.advance(CLAIM_S)
    [new] = await notifications.claim("phone", limit=1, lease_s=CLAIM_S)
    assert not await notifications.postpone(old, clock.now()) and not await notifications.give_up(old, "it is dead")
    assert not await notifications.is_due("phone") and await notifications.waiting() == {"phone": 1}
    assert await notifications.postpone(new, clock.now() + 5)
    clock.advance(5)
    assert await notifications.is_due("phone")
    # A delivery counts whoever made it.
    await notifications.delivered(old.notification_id)
    assert await notifications.waiting() == {} and not await notifications.give_up(new, "it is dead")
    assert [row.entry.kind for row in await store.audit_rows()] == ["asked"]


async def is_whole(store: Store) -> bool:
    """Whether the audit fits together and the log; the digest of the scribe's question is invented."""
    verdict = await verify_audit(store)
    return verdict.problems == ("execution 'e1': revision 1 of suspension 's1' does not fit its digest",)


@requirement("notification:gives-up")
async def test_what_is_given_up_or_for_a_channel_that_is_gone_is_in_the_audit(store: Store, clock: ManualClock) -> None:
    notifications, now = notifications_of(store), clock.now()
    await written(store, notification(1, now), notification(2, now, "gone"), notification(3, now + 50, "gone"))
    [held] = await notifications.claim("gone", limit=1, lease_s=CLAIM_S)
    clock.advance(55)
    assert await notifications.sweep(["phone"], clock.now() - 10) == 0
    clock.advance(CLAIM_S)
    assert await notifications.sweep(["phone"], clock.now() - 100) == 1
    assert await notifications.waiting() == {"gone": 1, "phone": 1} and held.suspension_id == "s2"
    [claimed] = await notifications.claim("phone", limit=1, lease_s=CLAIM_S)
    assert await notifications.give_up(claimed, "answered 500") and await notifications.waiting() == {"gone": 1}
    *_, swept, given_up = [row.entry for row in await store.audit_rows()]
    assert (swept.suspension_id, swept.facts["channel"]) == ("s2", "gone")
    assert (given_up.kind, given_up.execution_id, given_up.suspension_id) == ("notice_failed", "e1", "s1")
    facts = {"channel": "phone", "event": "asked", "notification": "ntc_1", "attempts": 1, "reason": "answered 500"}
    assert given_up.facts == facts and await is_whole(store)


@requirement("notification:gives-up")
async def test_above_the_limit_the_oldest_notifications_go_and_are_audited(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    scribe = await written(store, *(notification(number, now) for number in range(MAX_WAITING)))
    assert [row.entry.kind for row in await store.audit_rows()] == ["asked"]
    more = [notification(MAX_WAITING + number, now) for number in range(3)]
    scribe.lease = await store.append(replace(scribe.append(decided("s1")), notifications=more))
    assert await notifications_of(store).waiting() == {"phone": MAX_WAITING}
    rows = [row.entry for row in await store.audit_rows() if row.entry.kind == "notice_failed"]
    assert [entry.suspension_id for entry in rows] == ["s0", "s1", "s2"]
    assert await is_whole(store)


async def test_a_damaged_notification_does_not_stand_in_the_way_of_the_others(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore.open(tmp_path / "planwarden.db", clock=clock)
    await written(store, *(notification(number, clock.now()) for number in range(3)))
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("UPDATE notifications SET facts = '{\"a\":' WHERE notification_id = 'ntc_0'")
        connection.execute("UPDATE notifications SET kind = 'rumoured' WHERE notification_id = 'ntc_1'")
        connection.commit()
    claimed = await store.notifications.claim("phone", limit=10, lease_s=CLAIM_S)
    rows = [row.entry for row in await store.audit_rows() if row.entry.kind == "notice_failed"]
    waiting = await store.notifications.waiting()
    await store.close()
    assert [found.suspension_id for found in claimed] == ["s2"] and waiting == {"phone": 1}
    said = {(entry.suspension_id, entry.facts["reason"]) for entry in rows}
    assert said == {("s0", "its row is damaged"), ("s1", "its row is damaged")}
