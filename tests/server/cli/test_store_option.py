"""`--store`: which store a command uses, and that every command works on PostgreSQL as on a file."""

import base64
import json
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

import planwarden
from planwarden.server.settings.configuration import load_settings
from planwarden.storage.sealing import make_secret_key
from tests.server.cli.support import Cli, step

KEY = base64.b64encode(bytes(range(32))).decode()


def test_a_plan_runs_is_decided_and_audited_on_postgresql(cli: Cli, url: str) -> None:
    plan = cli.write("plan.json", {"steps": [step("a", "find", {"topic": "x"}), step("b", "erase", {"ids": [1]})]})
    asked = cli.spawn("--store", url, "run", plan, "--json")
    assert asked.json["status"] == "suspended"
    listed = cli.main("--store", url, "list", "--json").json
    suspension = listed["suspensions"][0]["suspensionId"]
    assert cli.main("list", "--json").json["suspensions"] == []
    rejected = cli.main("--store", url, "reject", suspension, "--json")
    assert rejected.code == 0, rejected.err
    assert cli.ledger == ["find x"]
    verdict = cli.main("--store", url, "audit", "verify", "--json").json
    assert verdict["isWhole"]
    assert verdict["rows"] > 0
    assert cli.main("--store", url, "prune", "--days", "0", "--yes", "--json").json["pruned"] == 1
    assert not (cli.home / "planwarden.db").exists()


def test_the_option_wins_over_the_environment_and_that_over_the_file(
    cli: Cli, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named.db"
    with (cli.home / "planwarden.toml").open("a") as file:
        file.write(f'\n[store]\nurl = "sqlite://{named}"\n')
    assert cli.main("token", "add", "ann").code == 0
    with closing(sqlite3.connect(named)) as connection:
        assert connection.execute("SELECT principal FROM tokens").fetchall() == [("ann",)]
    monkeypatch.setenv("PLANWARDEN_STORE", url)
    assert cli.main("token", "list", "--json").json == {"tokens": []}
    assert len(cli.main("--store", f"sqlite://{named}", "token", "list", "--json").json["tokens"]) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_command_that_is_printed_works_on_the_same_store(cli: Cli, url: str, tmp_path: Path, kind: str) -> None:
    user, _, place = url.removeprefix("postgresql://").partition("@")
    hidden = f"postgresql://{user.partition(':')[0]}:hidden@{place}{'&' if '?' in place else '?'}sslmode=disable"
    store = {"sqlite": f"sqlite://{tmp_path / 'named.db'}", "postgres": hidden}[kind]
    plan = cli.write("plan.json", {"steps": [step("a", "erase", {"ids": [1]})]})
    asked = cli.spawn("--store", store, "run", plan)
    [printed] = [line for line in asked.out.splitlines() if " approve " in line]
    words = shlex.split(printed[printed.index("planwarden ") :])
    assert "hidden" not in asked.out + asked.err and words[words.index("--store") + 1].endswith(store[-16:])
    suspension = cli.main("--store", store, "list", "--json").json["suspensions"][0]["suspensionId"]
    assert suspension[:8] in words
    rejected = cli.main(*(word.replace("approve", "reject") for word in words[1:]))
    assert (rejected.code, cli.ledger) == (0, []), rejected.err


def test_an_unknown_kind_of_store_is_a_wrong_use_that_names_the_known_ones(cli: Cli) -> None:
    refused = cli.main("--store", "mysql://ann:secret@host/x", "list")
    assert refused.code == 2
    assert "'mysql' is no kind of store; use postgresql://USER@HOST/DATABASE or sqlite:///FILE" in refused.err
    assert "secret" not in refused.err


def test_a_database_that_is_gone_is_named_without_the_password(cli: Cli) -> None:
    refused = cli.main("--store", "postgresql://ann:secret@127.0.0.1:9/plans", "list")
    assert refused.code == 1
    assert "PostgreSQL at 127.0.0.1:9/plans cannot be reached" in refused.err
    assert "secret" not in refused.err


def test_doctor_tells_the_version_of_the_server(cli: Cli, url: str) -> None:
    report = cli.main("--store", url, "doctor", "--json").json
    [store] = [check for check in report["checks"] if check["name"] == "store"]
    assert store["status"] == "ok"
    assert store["facts"]["serverVersion"].split(".")[0].isdigit()


def test_the_block_for_a_host_names_the_store_unless_that_holds_a_password(cli: Cli) -> None:
    printed = cli.main("--store", "postgresql://ann@db/plans", "config", "print", "claude-code")
    assert "postgresql://ann@db/plans" in printed.out
    printed = cli.main("--store", "postgresql://ann:hidden@db/plans", "config", "print", "claude-code")
    assert "hidden" not in printed.out + printed.err
    assert "PLANWARDEN_STORE" in printed.err


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
    monkeypatch.delenv("PLANWARDEN_SECRET_KEY")
    assert "secrets" not in [check["name"] for check in cli.main("doctor", "--json").json["checks"]]


def test_a_new_key_is_all_that_standard_output_gets(cli: Cli) -> None:
    printed = [cli.main("key", "new-secret") for _ in range(2)]
    keys = {result.out.removesuffix("\n") for result in printed}
    assert [(result.code, result.err) for result in printed] == [(0, "")] * 2
    assert len(keys) == 2 and {len(base64.b64decode(key, validate=True)) for key in keys} == {32}
    assert not (cli.home / "planwarden.db").exists()


def test_the_block_for_a_host_names_the_key_and_does_not_hold_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANWARDEN_SECRET_KEY", KEY)
    printed = cli.main("--store", "postgresql://ann@db/plans", "config", "print", "claude-code")
    assert KEY not in printed.out + printed.err and "PLANWARDEN_SECRET_KEY" in printed.err
    monkeypatch.delenv("PLANWARDEN_SECRET_KEY")
    assert "PLANWARDEN_SECRET_KEY" in cli.main("--store", "postgresql://ann@db/plans", "config", "print", "codex").err
    assert "PLANWARDEN_SECRET_KEY" not in cli.main("config", "print", "codex").err


def test_what_no_process_can_run_says_whom_it_waits_for(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planwarden.server.cli.context.LEFT_S", 0.1)
    plan = cli.write("plan.json", {"todoList": [step("a", "erase", {"ids": [1]})]})
    assert cli.spawn("--store", url, "run", plan, "--json").code == 3
    suspension = cli.main("--store", url, "list", "--json").json["suspensions"][0]["suspensionId"]
    tools = cli.home / "tools.py"
    tools.write_text(tools.read_text().replace("def erase", "def rub_out"))
    assert cli.main("--store", url, "reject", suspension).code == 0
    text = "waits for a process that runs executions"
    assert text in cli.main("--store", url, "show", "--json").json["waitsFor"]
    report = cli.main("--store", url, "doctor", "--json").json
    [processes] = [check for check in report["checks"] if check["name"] == "processes"]
    assert processes["status"] == "warning"
    assert text in processes["facts"]["waiting"][0]["waitsFor"]
