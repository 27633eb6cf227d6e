"""What an operator runs: `token`, what `serve` says first, `notify test`, and commands that leave sending to it."""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import pytest
from anyio.from_thread import start_blocking_portal
from standardwebhooks.webhooks import Webhook

from planwarden.server.cli.commands.serve import describe_addresses
from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.server.cli.support import ERASE, Cli
from tests.support.receiver import Manner, Receiver, reply_with, serve_receiver


def test_the_start_line_names_the_address_that_clients_and_people_use() -> None:
    local = "http://127.0.0.1:8765/mcp"
    alone, public = describe_addresses(local, None), describe_addresses(local, "https://plan.example.com/")
    assert f"listens on {local}; its inbox is http://127.0.0.1:8765/inbox," in alone
    assert f"listens on {local}, for clients https://plan.example.com/mcp; its inbox is https://plan" in public


def test_a_token_is_shown_once_and_listed_without_its_secret(cli: Cli) -> None:
    made = cli.main("token", "add", "ann", "--days", "30")
    secret = made.out.strip()
    assert made.code == 0 and secret.startswith("pwt_") and "ann" in made.err and secret not in made.err
    listed = cli.main("token", "list")
    assert "ann  caller  valid, until " in listed.out and secret not in listed.out + listed.err
    [row] = cli.main("token", "list", "--json").json["tokens"]
    assert set(row) == {"tokenId", "principal", "role", "state", "createdAt", "expiresAt", "revokedAt"}
    assert (row["principal"], row["role"], row["state"], row["revokedAt"]) == ("ann", "caller", "valid", None)


def test_revoking_by_id_or_name_ends_tokens_and_says_which(cli: Cli) -> None:
    approver = cli.main("token", "add", "bob", "--role", "approver", "--json").json
    assert approver["token"].startswith("pwt_") and approver["role"] == "approver" and approver["expiresAt"] is None
    first, second = (cli.main("token", "add", "ann", "--json").json["tokenId"] for _ in range(2))
    other = approver["tokenId"]
    assert cli.main("token", "revoke", other).out.strip() == f"revoked: {other}"
    revoked = cli.main("token", "revoke", "ann", "--json").json["revoked"]
    assert [row["tokenId"] for row in revoked] == [first, second]
    assert {row["state"] for row in cli.main("token", "list", "--json").json["tokens"]} == {"revoked"}
    again = cli.main("token", "revoke", "ann")
    assert again.code == 2 and "token list" in again.err


@requirement("network:trust")
def test_a_banner_says_that_the_caller_may_approve_itself(cli: Cli) -> None:
    everybody = ("serve", "--http", "--host", "0.0.0.0")
    (cli.home / "planwarden.toml").write_text("[approvals]\ntrust_caller = true\n")
    for result in (cli.spawn("serve"), cli.spawn(), cli.main(*everybody)):
        assert "trust_caller is on" in result.err and result.out == ""
    (cli.home / "planwarden.toml").write_text("")
    for result in (cli.spawn("serve"), cli.main(*everybody)):
        assert "trust_caller" not in result.err and result.out == ""


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def cli(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    return cli


@contextmanager
def run_receiver(cli: Cli, *manners: Manner) -> Generator[Receiver]:
    """Runs a receiver in its own event loop, and writes two channels to it into the settings of the home."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve_receiver(*manners)) as receiver:
        file = cli.home / "planwarden.toml"
        text = file.read_text() if file.exists() else ""
        address = f"http://127.0.0.1:{receiver.port}"
        text += (
            f'\n[[notify]]\nkind = "webhook"\nname = "hook"\nurl = "{address}/t0psecret"\nsecret_env = "HOOK_SECRET"\n'
        )
        text += f'[[notify]]\nkind = "ntfy"\nname = "phone"\nurl = "{address}/t0psecret"\nevents = ["decided"]\n'
        file.write_text(text)
        yield receiver


def count_waiting(cli: Cli) -> Mapping[str, int]:
    async def read() -> Mapping[str, int]:
        store = SqliteStore.open(cli.home / "planwarden.db")
        try:
            return await store.notifications.waiting()
        finally:
            await store.close()

    return asyncio.run(read())


def test_notify_test_sends_to_every_channel_and_shows_each_reply(cli: Cli) -> None:
    with run_receiver(cli) as receiver:
        result, listed = cli.main("notify", "test"), cli.main("notify", "test", "--json")
    assert result.code == listed.code == 0
    assert "hook" in result.out and result.out.count(f"127.0.0.1:{receiver.port} answered 204") == 2
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
    assert "t0psecret" not in result.out + result.err
    assert not (cli.home / "planwarden.db").exists()


def test_notify_test_fails_with_the_reply_of_the_receiver(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = cli.main("notify", "test")
    assert nobody.code == 2 and "has no [[notify]] channel; docs/notifications.md" in nobody.err
    assert "nobody is notified of questions" in cli.main("doctor").out
    with run_receiver(cli, reply_with(401)) as receiver:
        failed = cli.main("notify", "test", "--channel", "phone")
        assert failed.code == 1 and "answered 401" in failed.out and len(receiver.received) == 1
        monkeypatch.delenv("HOOK_SECRET")
        lacking = cli.main("notify", "test", "--channel", "hook")
        assert lacking.code == 1 and "the environment variable HOOK_SECRET is not set" in lacking.out
        doctor = cli.main("doctor")
        assert doctor.code == 0 and "hook: the environment variable HOOK_SECRET is not set" in doctor.out
        unknown = cli.main("notify", "test", "--channel", "pager")
        assert unknown.code == 2 and "known are 'hook', 'phone'" in unknown.err
        assert len(receiver.received) == 1


def test_a_command_records_notifications_and_leaves_sending_them_to_a_server(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    with run_receiver(cli) as receiver:
        assert cli.main("reject", suspension_id).code == 0
        assert receiver.received == [] and count_waiting(cli) == {"hook": 1, "phone": 1}
        result, report = cli.main("doctor"), cli.main("doctor", "--json")
    assert "hook (everything), phone (decided); waiting: 2" in result.out
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
    assert "t0psecret" not in result.out + report.out
