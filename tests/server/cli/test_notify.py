"""`notify test`, the channels in `doctor`, and commands that tell without delivering."""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import pytest
from anyio.from_thread import start_blocking_portal
from standardwebhooks.webhooks import Webhook

from planwarden.storage.sqlite.store import SqliteStore
from tests.server.cli.support import ERASE, Cli
from tests.support.receiver import Manner, Receiver, answers, receiving

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def cli(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    return cli


@contextmanager
def receiver_for(cli: Cli, *manners: Manner) -> Generator[Receiver]:
    """A receiver in an event loop of its own, with two channels to it in the home's settings."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(receiving(*manners)) as receiver:
        file = cli.home / "planwarden.toml"
        text = file.read_text() if file.exists() else ""
        address = f"http://127.0.0.1:{receiver.port}"
        text += (
            f'\n[[notify]]\nkind = "webhook"\nname = "hook"\nurl = "{address}/t0psecret"\nsecret_env = "HOOK_SECRET"\n'
        )
        text += f'[[notify]]\nkind = "ntfy"\nname = "phone"\nurl = "{address}/t0psecret"\nevents = ["decided"]\n'
        file.write_text(text)
        yield receiver


def waiting(cli: Cli) -> Mapping[str, int]:
    async def look() -> Mapping[str, int]:
        store = SqliteStore.open(cli.home / "planwarden.db")
        try:
            return await store.notifications.waiting()
        finally:
            await store.close()

    return asyncio.run(look())


def test_notify_test_sends_to_every_channel_and_says_what_came_back(cli: Cli) -> None:
    """spec: sends a test notification and says what came back"""
    with receiver_for(cli) as receiver:
        said, listed = cli.main("notify", "test"), cli.main("notify", "test", "--json")
    assert said.code == listed.code == 0
    assert "hook" in said.out and said.out.count(f"127.0.0.1:{receiver.port} answered 204") == 2
    assert [entry["name"] for entry in listed.json["channels"]] == ["hook", "phone"]
    assert listed.json["channels"][0] == {
        "name": "hook",
        "kind": "webhook",
        "host": f"127.0.0.1:{receiver.port}",
        "delivered": True,
        "said": "answered 204",
    }
    web, push, *_ = receiver.received
    verified = Webhook(SECRET).verify(web.body, web.headers)
    assert verified["type"] == "planwarden.test" and verified["data"] == {"inboxUrl": None}
    assert push.document["title"] == "planwarden can reach you" and "click" not in push.document
    assert "t0psecret" not in said.out + said.err
    assert not (cli.home / "planwarden.db").exists()


def test_notify_test_fails_with_what_the_receiver_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """ours"""
    with receiver_for(cli, answers(401)) as receiver:
        failed = cli.main("notify", "test", "--channel", "phone")
        assert failed.code == 1 and "answered 401" in failed.out and len(receiver.received) == 1
        monkeypatch.delenv("HOOK_SECRET")
        lacking = cli.main("notify", "test", "--channel", "hook")
        assert lacking.code == 1 and "the environment variable HOOK_SECRET is not set" in lacking.out
        unknown = cli.main("notify", "test", "--channel", "pager")
        assert unknown.code == 2 and "known are 'hook', 'phone'" in unknown.err
        assert len(receiver.received) == 1


def test_notify_test_without_channels_says_where_to_write_one(cli: Cli) -> None:
    """ours"""
    said = cli.main("notify", "test")
    assert said.code == 2 and "has no [[notify]] channel; docs/notifications.md" in said.err


def test_a_command_writes_down_what_it_decided_and_leaves_the_delivery_to_a_server(cli: Cli) -> None:
    """spec: delivered by long-living processes, not by short-lived commands"""
    suspension_id = cli.suspended(ERASE)
    with receiver_for(cli) as receiver:
        assert cli.main("reject", suspension_id).code == 0
        assert receiver.received == [] and waiting(cli) == {"hook": 1, "phone": 1}
        said, report = cli.main("doctor"), cli.main("doctor", "--json")
    assert "hook (everything), phone (decided); waiting: 2" in said.out
    [check] = [found for found in report.json["checks"] if found["name"] == "notify"]
    assert (check["status"], report.code) == ("ok", 0)
    assert check["facts"]["channels"][1] == {
        "name": "phone",
        "kind": "ntfy",
        "host": f"127.0.0.1:{receiver.port}",
        "events": ["decided"],
        "waiting": 1,
        "problem": None,
    }
    assert "t0psecret" not in said.out + report.out


def test_doctor_says_which_channel_this_environment_cannot_use(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """ours"""
    assert "nobody is told of questions" in cli.main("doctor").out
    monkeypatch.delenv("HOOK_SECRET")
    with receiver_for(cli):
        said = cli.main("doctor")
    assert said.code == 0 and "hook: the environment variable HOOK_SECRET is not set" in said.out
