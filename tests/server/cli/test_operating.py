"""What an operator runs: stores, `move`, `backup`, `prune`, `token`, keys, what `serve` says first, `notify test`,
`hook send`; and what a person types at those commands that change something.
"""

import base64
import json
import shlex
import sqlite3
import stat
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from anyio.from_thread import start_blocking_portal
from pydantic import JsonValue

import planwarden
from planwarden.storage.sealing import make_secret_key
from tests.kit import Warden, load_settings, requirement
from tests.server.cli.support import ERASE, Cli, CommandResult, make_home, step
from tests.support.full_store import make_url
from tests.support.postgres import shared_server
from tests.support.receiver import reply_with, serve_receiver


def test_a_token_is_shown_once_listed_without_its_secret_and_revoked_by_id_or_name(cli: Cli) -> None:
    made = cli.main("token", "add", "ann", "--days", "30")
    secret = made.out.strip()
    assert made.code == 0 and secret.startswith("pwt_") and "ann" in made.err and secret not in made.err
    listed = cli.main("token", "list")
    assert "ann  caller  valid, until " in listed.out and secret not in listed.out + listed.err
    [row] = cli.main("token", "list", "--json").json["tokens"]
    assert set(row) == {"tokenId", "principal", "role", "state", "createdAt", "expiresAt", "revokedAt"}
    assert (row["principal"], row["role"], row["state"], row["revokedAt"]) == ("ann", "caller", "valid", None)
    approver = cli.main("token", "add", "bob", "--role", "approver", "--json").json
    assert approver["token"].startswith("pwt_") and approver["role"] == "approver" and approver["expiresAt"] is None
    assert cli.main("token", "revoke", approver["tokenId"]).out.strip() == f"revoked: {approver['tokenId']}"
    second = cli.main("token", "add", "ann", "--json").json
    revoked = cli.main("token", "revoke", "ann", "--json").json["revoked"]
    assert [entry["tokenId"] for entry in revoked] == [row["tokenId"], second["tokenId"]]
    assert {entry["state"] for entry in cli.main("token", "list", "--json").json["tokens"]} == {"revoked"}
    again = cli.main("token", "revoke", "ann")
    assert again.code == 2 and "token list" in again.err


@requirement("network:trust")
def test_a_banner_says_that_the_caller_may_approve_itself(cli: Cli) -> None:
    everybody = ("serve", "--http", "--host", "0.0.0.0")
    (cli.home / "planwarden.toml").write_text("[approvals]\ntrust_caller = true\n")
    for result in (cli.spawn(), cli.main(*everybody)):
        assert "trust_caller is on" in result.err and result.out == ""
    (cli.home / "planwarden.toml").write_text("")
    result = cli.spawn("serve")
    assert "trust_caller" not in result.err and result.out == ""


def test_notify_test_shows_what_each_receiver_answered_and_fails_where_it_is_a_refusal(cli: Cli) -> None:
    nobody = cli.main("notify", "test")
    assert nobody.code == 2 and "has no [[notify]] channel; docs/notifications.md" in nobody.err
    manners = (reply_with(204), reply_with(401))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve_receiver(*manners)) as receiver:
        url = f'url = "http://127.0.0.1:{receiver.port}/t0psecret"'
        cli.add_settings(f'[[notify]]\nkind = "webhook"\nname = "hook"\n{url}\nsecret_env = "HOOK_SECRET"')
        cli.add_settings(f'[[notify]]\nkind = "ntfy"\nname = "phone"\n{url}\nevents = ["decided"]')
        cli.add_settings('[[notify]]\nkind = "ntfy"\nname = "mistyped"\nurl = "https://192.168.1.300/t0psecret"')
        sent = cli.main("notify", "test", "--channel", "phone")
        assert sent.code == 0 and f"127.0.0.1:{receiver.port} answered 204" in sent.out
        failed = cli.main("notify", "test", "--channel", "phone")
        assert failed.code == 1 and "answered 401" in failed.out and "t0psecret" not in failed.out + failed.err
        lacking = cli.main("notify", "test", "--channel", "hook")
        assert lacking.code == 1 and "the environment variable HOOK_SECRET is not set" in lacking.out
        doctor = cli.main("doctor")
        assert doctor.code == 0 and "hook: the environment variable HOOK_SECRET is not set" in doctor.out
        mistyped = cli.main("notify", "test", "--channel", "mistyped")
        assert mistyped.code == 1 and "192.168.1.300 is not an address that can be reached" in mistyped.out
        unknown = cli.main("notify", "test", "--channel", "pager")
        assert unknown.code == 2 and "known are 'hook', 'phone', 'mistyped'" in unknown.err
        assert len(receiver.received) == 2


KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def hidden_url() -> Generator[str]:
    """Of an empty database, with a password."""
    made = make_url()
    yield made
    shared_server().drop_database(made)


def test_a_plan_runs_is_decided_and_audited_on_postgresql(cli: Cli, url: str) -> None:
    plan = cli.write("plan.json", {"steps": [step("a", "find", {"topic": "x"}), step("b", "erase", {"ids": [1]})]})
    asked = cli.main("--store", url, "run", plan, "--json")
    assert asked.json["status"] == "suspended"
    listed = cli.main("--store", url, "list", "--json").json
    suspension = listed["suspensions"][0]["suspensionId"]
    assert cli.main("list", "--json").json["suspensions"] == []
    rejected = cli.main("--store", url, "reject", suspension, "--json")
    assert rejected.code == 0 and cli.ledger == ["find x"], rejected.err
    assert cli.main("--store", url, "audit", "verify", "--json").json["isWhole"]
    assert cli.main("--store", url, "prune", "--days", "0", "--yes", "--json").json["pruned"] == 1
    report = cli.main("--store", url, "doctor", "--json").json
    [store] = [check for check in report["checks"] if check["name"] == "store"]
    assert store["status"] == "ok" and store["facts"]["serverVersion"].split(".")[0].isdigit()
    assert not (cli.home / "planwarden.db").exists()


def test_a_damaged_row_of_the_audit_that_waits_to_be_sealed_is_named(cli: Cli, url: str) -> None:
    assert cli.main("--store", url, "token", "add", "ann").code == 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO audit_unsealed (at, kind, facts, policy) VALUES (1, 'refused', '[1]', '')")
    for words in (("audit", "verify"), ("doctor",)):
        told = cli.main("--store", url, *words)
        assert told.code == 1 and "of the audit is damaged: it is not a JSON object" in told.out + told.err
        assert "Everything intact" not in told.out


def test_the_option_wins_over_the_environment_and_that_over_the_file(
    cli: Cli, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named.db"
    cli.add_settings(f'[store]\nurl = "sqlite://{named}"')
    assert cli.main("token", "add", "ann").code == 0
    with closing(sqlite3.connect(named)) as connection:
        assert connection.execute("SELECT owner FROM records").fetchall() == [("ann",)]
    monkeypatch.setenv("PLANWARDEN_STORE", url)
    assert cli.main("token", "list", "--json").json == {"tokens": []}
    assert len(cli.main("--store", f"sqlite://{named}", "token", "list", "--json").json["tokens"]) == 1


@pytest.mark.parametrize("shown_by", ["command", "server"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_command_that_is_shown_works_on_the_store_that_its_command_line_names(
    cli: Cli, hidden_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shown_by: str
) -> None:
    store = {"sqlite": f"sqlite://{tmp_path / 'named.db'}", "postgres": hidden_url}[kind]
    document: JsonValue = {"steps": [step("a", "erase", {"ids": [1]})]}

    async def ask() -> str:
        async with Warden(settings=load_settings(home=cli.home, store=store)) as warden:
            asked = await warden.execute_plan(document, wait_seconds=30)
        return str(asked.suspensions[0].how_to_answer.command)

    if shown_by == "server":
        monkeypatch.setenv("PLANWARDEN_SECRET_KEY", KEY)
        shown = anyio.run(ask)
    else:
        asked = cli.main("--store", store, "run", cli.write("plan.json", document))
        [shown] = [line[line.index("planwarden ") :] for line in asked.out.splitlines() if " approve " in line]
        assert "hidden" not in asked.out + asked.err
    words = shlex.split(shown)
    assert f"--home {cli.home} --store " in shown and "hidden" not in shown
    assert words[words.index("--store") + 1].endswith(store[-16:])
    suspension = cli.main("--store", store, "list", "--json").json["suspensions"][0]["suspensionId"]
    assert any(word in suspension for word in words if len(word) >= 8)
    rejected = cli.main(*(word.replace("approve", "reject") for word in words[1:]))
    assert (rejected.code, cli.ledger) == (0, []), rejected.err


def test_a_store_that_cannot_be_used_is_named_without_its_password(cli: Cli) -> None:
    for store, code, said in (
        ("mysql://ann:secret@host/x", 2, "use postgresql://USER@HOST/DATABASE or sqlite:///FILE"),
        ("postgresql://ann:secret@127.0.0.1:9/plans", 1, "PostgreSQL at 127.0.0.1:9/plans cannot be reached"),
    ):
        refused = cli.main("--store", store, "list")
        assert refused.code == code and said in refused.err and "secret" not in refused.err


def test_doctor_checks_the_key(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(key: str) -> dict[str, Any]:
        monkeypatch.setenv("PLANWARDEN_SECRET_KEY", key)
        report = cli.main("--store", url, "doctor", "--json").json
        [found] = [check for check in report["checks"] if check["name"] == "secrets"]
        assert not key or key not in json.dumps(report)
        return found

    fresh = check(KEY)
    assert fresh["status"] == "off" and "no key yet" in fresh["message"]
    # Looking made it nobody's key.
    assert check(make_secret_key())["status"] == "off"

    async def serve() -> None:
        settings = load_settings(home=cli.home, store=url, environment={"PLANWARDEN_SECRET_KEY": KEY})
        async with planwarden.Warden(settings=settings):
            pass

    anyio.run(serve)
    assert check(KEY)["status"] == "ok"
    for key, said in (("", "is not set"), (make_secret_key(), "is not the key of this store")):
        broken = check(key)
        assert broken["status"] == "broken" and said in broken["message"]


def test_a_new_key_is_all_that_standard_output_gets(cli: Cli) -> None:
    printed = [cli.main("key", "new-secret") for _ in range(2)]
    keys = {result.out.removesuffix("\n") for result in printed}
    assert [(result.code, result.err) for result in printed] == [(0, "")] * 2
    assert len(keys) == 2 and {len(base64.b64decode(key, validate=True)) for key in keys} == {32}
    assert not (cli.home / "planwarden.db").exists()


@requirement("move:whole", "move:marked")
def test_plans_questions_and_the_audit_go_on_elsewhere_and_back(cli: Cli, hidden_url: str, tmp_path: Path) -> None:
    url = hidden_url
    plan = cli.write("plan.json", {"steps": [step("a", "find", {"topic": "x"}), step("b", "erase", {"ids": [1]})]})
    assert cli.main("run", plan, "--json").json["status"] == "suspended"
    assert cli.main("token", "add", "bob").code == 0
    before = cli.main("audit", "verify", "--json").json
    moved = cli.main("move", "--to", url, "--json")
    assert moved.code == 0 and moved.json["auditHead"] == before["head"], moved.err
    assert moved.json["rows"]["executions"] == 1 and moved.json["rows"]["records"] > 1
    assert "hidden" not in moved.out + moved.err

    assert cli.main("--store", url, "audit", "verify", "--head", before["head"], "--json").json == before
    [waiting] = cli.main("--store", url, "list", "--json").json["suspensions"]
    assert cli.main("--store", url, "reject", waiting["suspensionId"]).code == 0
    for words in (("list",), ("token", "list"), ("run", plan), ("prune", "--yes"), ("audit", "verify")):
        refused = cli.main(*words)
        assert refused.code == 1 and "was moved to postgresql://postgres@/" in refused.err
        assert "hidden" not in refused.err
    assert cli.main("doctor").code == 1

    back = f"sqlite://{tmp_path / 'back.db'}"
    head = cli.main("--store", url, "audit", "verify", "--json").json["head"]
    said = cli.main("--store", url, "move", "--to", back)
    assert said.code == 0, said.err
    assert f"Set PLANWARDEN_STORE={back}, or [store] url, before you start anything." in said.out
    assert "Logins to servers and the passphrase of the inbox are not moved" in said.out
    assert "executions: 1, " in said.out and head in said.out and "hidden" not in said.out
    assert cli.main("--store", back, "audit", "verify", "--json").json["head"] == head


@requirement("move:empty-target")
def test_a_wrong_target_is_refused_with_the_exit_code_that_fits(cli: Cli, url: str, tmp_path: Path) -> None:
    assert cli.main("token", "add", "bob").code == 0
    assert cli.main("--store", url, "token", "add", "ann").code == 0
    for target, code, said in (
        (f"sqlite://{cli.home / 'planwarden.db'}", 2, "is at"),
        ("mysql://x", 2, "is not a kind of store"),
        (url, 1, "(rows of the audit: 2, tokens and other records: 1); name a new file or an empty database"),
        (f"sqlite://{tmp_path}", 1, "cannot"),
    ):
        refused = cli.main("move", "--to", target)
        assert (refused.code, said in refused.err) == (code, True), refused.err


def test_prune_deletes_finished_executions_and_no_waiting_ones(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    finished = cli.main(
        "run", cli.write("plan.json", {"todoList": [step("find", "find", {"topic": "x"})]}), "--json"
    ).json["threadId"]
    kept, refused = cli.main("prune", "--json"), cli.main("prune", "--days", "0")
    assert kept.json == {"pruned": 0, "days": 90}
    assert refused.code == 2 and "This deletes 1 finished execution that has not changed for 0 days" in refused.out
    assert "or with --yes" in refused.err and cli.main("show", finished).code == 0
    pruned = cli.main("prune", "--days", "0", "--yes", "--json")
    assert (pruned.code, pruned.json) == (0, {"pruned": 1, "days": 0}) and "the oldest is from 20" in pruned.err
    assert cli.main("show", finished).code == 2
    assert suspension_id[:8] in cli.main("list").out


def test_a_backup_works_as_the_database_of_a_home_and_overwrites_nothing(cli: Cli, tmp_path: Path) -> None:
    assert cli.main("backup", str(tmp_path / "copy.db")).code == 1
    suspension_id = cli.run_to_question(ERASE)
    target = make_home(tmp_path / "restored") / "planwarden.db"
    result = cli.main("backup", str(target), "--json")
    assert (result.code, result.json) == (0, {"file": str(target), "sizeBytes": target.stat().st_size})
    assert stat.S_IMODE(target.stat().st_mode) == 0o600 or sys.platform == "win32"
    assert suspension_id[:8] in Cli(target.parent, cli.capture).main("list").out
    (tmp_path / "copy.db").write_text("precious")
    refused = cli.main("backup", str(tmp_path / "copy.db"))
    assert (refused.code, (tmp_path / "copy.db").read_text()) == (1, "precious") and "exists already" in refused.err
    assert cli.main("backup", str(tmp_path / "missing" / "copy.db")).code == 1


Typing = Callable[..., CommandResult]
FIND = step("find", "find", {"topic": "x"})


@requirement("approval:grants")
def test_a_grant_is_made_by_a_typed_yes_and_the_list_says_why_one_is_of_no_use(cli: Cli, typing: Typing) -> None:
    assert cli.main("grant", "list").out == "No standing grants.\n"
    add = ("grant", "add", "erase", "--uses", "2", "--for", "1h", "--any-other")
    refused = typing(*add, typed="no\n")
    assert refused.code == 1 and refused.out.endswith("Nothing was allowed.\n")
    made = typing(*add, "--json", typed="y\n").json
    assert (made["toolName"], made["usesLeft"], made["assurance"]) == ("erase", 2, "human")
    tools = cli.home / "tools.py"
    tools.write_text(tools.read_text().replace("Delete records", "Delete all"))
    assert "stale: the tool changed\n" in cli.main("grant", "list").out
    second = typing(*add, "--json", typed="yes\n").json["grantId"]
    assert cli.main("grant", "revoke", second[:8]).out == "The grant is over.\n"
    assert "Z  over\n" in cli.main("grant", "list").out
    for words, said in (
        ("grant add erase --uses 1 --for 3x", "'3x' is not a duration; write 30m, 2h or 90d"),
        ("grant add erase --uses 1 --for 1h --arg a=1 --arg a=2", "--arg names 'a' twice"),
        ("once forget erase --key a=1 --key a=[", "--key names 'a' twice"),
    ):
        assert cli.main(*words.split()).err == f"planwarden: {said}\n"


@requirement("grants:step")
def test_what_a_step_of_a_saved_plan_calls_is_shown_before_it_is_allowed(cli: Cli, typing: Typing) -> None:
    loop = step("a", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2], retry={"attempts": 3})
    cli.set_risk("hang", "dangerous")
    calls: list[JsonValue] = [{"toolName": "hang", "arguments": {}}]
    steps: list[JsonValue] = [loop, {"id": "w", "description": "w", "toolCalls": calls * 25}]
    cli.write("plans/loop.json", {"title": "t", "todoList": steps})
    add = ("grant", "add", "--plan", "loop", "--uses-per-day", "2", "--for", "90m")
    shown = typing(*add, "erase", "--step", "a", typed="n\n")
    for said in (
        *(
            "Step: a of the saved plan loop",
            'ids = [{"$from": "item"}]: any value of the item of',
            "The step is a loop: ",
        ),
        *("3 times at most; each attempt is a use.", "for the next 90 minutes", "Nothing was allowed."),
    ):
        assert said in shown.out, shown.out
    shown = typing(*add, "hang", "--step", "w", typed="")
    assert "no arguments" in shown.out and "and 5 more calls of hang" in shown.out, shown.out


def test_what_ends_with_a_cursor_says_how_to_go_on_and_no_to_a_change_changes_nothing(cli: Cli, typing: Typing) -> None:
    assert cli.main("inbox", "--forget-passphrase").out == "There was no passphrase.\n"
    for _ in range(2):
        cli.main("run", cli.write("plan.json", {"todoList": [FIND]}))
    cli.main("token", "add", "ann")
    assert cli.main("audit", "show", "--cursor", "99").out == "The audit is empty.\n"
    cli.main("token", "add", "bob")
    kept = typing("prune", "--days", "0", typed="n\n")
    assert kept.code == 1 and kept.out.endswith("Nothing was deleted.\n")
    for words, more in (
        ("list --limit 1 --search find", f"more: planwarden --home {cli.home} list --search find --cursor "),
        ("list --limit 1 --executions", f"more: planwarden --home {cli.home} list --executions --cursor "),
        ("tools --limit 1", "more: --cursor 1\n"),
        ("audit show --limit 1", "more: --cursor 1\n"),
    ):
        assert more in cli.main(*words.split()).out, words
    exported = cli.main("audit", "export", "-")
    assert [json.loads(line)["kind"] for line in exported.out.splitlines()] == ["policy", "token_added", "token_added"]
    assert "✓ 3 rows, whole; head 3:" in exported.err
    taken = cli.main("audit", "export", str(cli.home / "none" / "audit"))
    assert taken.code == 1 and "cannot write" in taken.err
    cli.write("planwarden.json", {"mcpServers": {"d": {"url": "https://127.0.0.1:1/mcp"}}})
    assert cli.main("login", "d", "--forget").out == "There was no login.\n"
    cli.add_settings('[inbox]\npassphrase_file = "p"')
    refused = cli.main("inbox", "--forget-passphrase")
    assert refused.code == 2 and "planwarden.toml wants a passphrase; remove passphrase_file" in refused.err


@requirement("guard:files")
def test_a_guard_is_written_after_a_typed_yes_and_not_before(cli: Cli, typing: Typing) -> None:
    install, place = ("guard", "install", "claude-code"), cli.home.parent / ".claude" / "settings.json"
    piped = cli.main(*install)
    assert piped.code == 2 and '"onFailure": "block"' in piped.out and str(place) in piped.out
    assert typing(*install, typed="n\n").out.endswith("Nothing was written.\n") and not place.parent.exists()
    assert typing(*install, "--json", typed="y\n").json == {"host": "claude-code", "files": [str(place)]}
    place.unlink()
    place.mkdir()
    refused = typing(*install)
    assert refused.code == 2 and "is not a file; nothing was written" in refused.err


def test_the_beginning_of_an_id_that_several_have_is_not_taken_for_any_of_them(cli: Cli, typing: Typing) -> None:
    plan = cli.write("plan.json", {"todoList": [FIND]})
    cli.write("plans/x.json", {"title": "x", "todoList": [FIND]})
    grant = ("grant", "add", "erase", "--uses", "1", "--for", "1h", "--any-other", "--json")
    add = ("schedule", "add", "x", "--cron", "0 0 1 1 *", "--json")
    makers: dict[str, tuple[Callable[[], CommandResult], str, str]] = {
        "schedule": (lambda: cli.main(*add), "scheduleId", "pause"),
        "grant": (lambda: typing(*grant, typed="y\n"), "grantId", "revoke"),
        "id": (lambda: cli.main("run", plan, "--json"), "threadId", ""),
    }
    end = "; write more of the one that you mean"
    for what, (make, key, word) in makers.items():
        ids: list[str] = []
        # Two of seventeen begin with the same digit.
        while not (several := [name for name in ids if sum(one[0] == name[0] for one in ids) > 1]):
            ids.append(str(make().json[key]))
        words = (what, word) if word else ("show",)
        refused = cli.main(*words, several[0][0])
        assert refused.code == 2 and f"several {what}s begin with '{several[0][0]}': " in refused.err
        assert all(name[:8] in refused.err for name in several[:2]) and end in refused.err
