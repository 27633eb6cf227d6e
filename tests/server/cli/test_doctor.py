"""`doctor` is right about a home that is missing and about broken files, and tells of nothing that it cannot know."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from planwarden.agent.core import events as ev
from planwarden.server.api.stalls import FILE
from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.server.cli.support import ERASE, Cli, run_in_process, step
from tests.server.cli.test_commands import statuses_of
from tests.server.cli.test_downstream import server, servers
from tests.storage.suite import Scribe


def test_a_missing_home_is_named_with_the_way_out_and_nothing_is_made(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "typo"
    config = cli.write("servers.json", servers(d=server(cli, "good")))
    missing = Cli(place, cli.capture)
    for words in (("doctor",), ("doctor", "--mcp-config", config)):
        result = missing.main(*words)
        assert result.code == 1 and "Broken: home." in result.out
        assert str(place) in result.out and f"planwarden --home {place} init" in result.out
        assert not place.exists()


def test_the_default_home_that_is_not_there_yet_breaks_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.capture is not None
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    result = run_in_process(cli.capture, "doctor")
    assert result.code == 0 and "`planwarden init` makes it" in result.out
    assert not (tmp_path / "data").exists()
    monkeypatch.setenv("PLANWARDEN_HOME", str(tmp_path / "named"))
    assert run_in_process(cli.capture, "doctor").code == 1


def test_a_home_that_is_a_file_is_broken(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = Cli(tmp_path / "file", cli.capture).main("doctor", "--json")
    assert result.code == 1 and statuses_of(result.json)["home"] == "broken"


@pytest.mark.skipif(sys.platform != "linux", reason="the folder is one that nobody can write to on Linux")
def test_a_home_that_cannot_be_written_to_is_broken(cli: Cli) -> None:
    report = Cli(Path("/proc/self"), cli.capture).main("doctor")
    assert report.code == 1 and "/proc/self cannot be written to: " in report.out and "Broken: home" in report.out


def test_what_depends_on_broken_settings_is_not_checked(cli: Cli) -> None:
    cli.write("planwarden.json", servers(d=server(cli, "good")))
    (cli.home / "planwarden.toml").write_text("[tools\n")
    report = cli.main("doctor", "--json")
    status = statuses_of(report.json)
    assert report.code == 1 and [name for name in status if status[name] == "broken"] == ["settings"]
    unchecked = {check["name"] for check in report.json["checks"] if "not checked" in check["message"]}
    assert unchecked == {"model", "tools", "rules", "plans", "search", "notify", "downstream"}


@pytest.mark.parametrize("text", ['{"mcpServers": ', "[]", '{"mcpServers": {"d": {"command": 3}}}'])
def test_a_broken_list_of_servers_is_named_and_the_settings_are_not_blamed(cli: Cli, text: str) -> None:
    path = cli.home / "planwarden.toml"
    path.write_text(path.read_text() + '\n[tools."d_echo"]\nrisk = "read"\n')
    (cli.home / "planwarden.json").write_text(text)
    report = cli.main("doctor", "--json")
    status = statuses_of(report.json)
    assert report.code == 1 and [name for name in status if status[name] == "broken"] == ["downstream"]
    assert status["settings"] == status["model"] == "ok"
    assert "planwarden.json" in cli.main("doctor").out


def test_servers_that_ask_for_every_call_are_named_with_how_to_trust_them(cli: Cli) -> None:
    cli.write("planwarden.json", servers(d=server(cli, "good"), asks=server(cli, "asking")))
    command = f"planwarden --home {cli.home} trust d"
    before = cli.main("doctor")
    assert before.code == 0 and before.out.count("asks a person before every call") == 2
    assert command in before.out and "trust asks" not in before.out
    assert cli.main("trust", "d", "--yes").code == 0
    after = cli.main("doctor")
    assert after.out.count("asks a person before every call") == 1 and command not in after.out
    assert "calls of 2 ask a person" in after.out


def test_stalls_of_the_event_loop_are_named(cli: Cli) -> None:
    (cli.home / FILE).write_text(json.dumps([1, 2, 3.5, 3.4, 1_700_000_000.0]) + "\n")
    report = cli.main("doctor", "--json")
    assert (report.code, statuses_of(report.json)["stalls"]) == (0, "warning")
    assert "stood still 2 time(s), at most 3.50 s" in cli.main("doctor").out


async def _write_unproven(path: Path) -> None:
    """An execution with a step that is complete although nothing proves it, and that goes on."""
    store = SqliteStore.open(path)
    scribe = Scribe.on(store, "unproven", thread_id="t9")
    await scribe.start()
    await scribe.write(ev.StepCompleted(step_id="a", validation="passed"), ev.CancelRequested())
    await store.close()


@requirement("replay:store")
def test_replay_checks_every_log_and_names_the_first_event_that_does_not_replay(cli: Cli) -> None:
    assert statuses_of(cli.main("doctor", "--replay", "--json").json)["replay"] == "off"
    cli.main("run", cli.write("plan.json", {"todoList": [step("find", "find", {"topic": "x"})]}))
    cli.run_to_question(ERASE)
    whole = cli.main("doctor", "--replay", "--all")
    assert whole.code == 0 and "2 execution(s) replay under" in whole.out
    assert "1 unfinished execution(s) replay under" in cli.main("doctor", "--replay").out
    assert "replay" not in statuses_of(cli.main("doctor", "--json").json)
    asyncio.run(_write_unproven(cli.home / "planwarden.db"))
    broken = cli.main("doctor", "--replay")
    assert broken.code == 1 and "Broken: replay." in broken.out
    assert "1 of 2 unfinished execution(s) do not replay: execution unproven from event 4 (StepCompleted)" in broken.out
    checks = {check["name"]: check for check in cli.main("doctor", "--replay", "--json").json["checks"]}
    [fault] = checks["replay"]["facts"]["faults"]
    assert (fault["executionId"], fault["threadId"], fault["sequence"], fault["event"]) == (
        "unproven",
        "t9",
        4,
        "StepCompleted",
    )
    assert cli.main("doctor", "--all").code == 2
