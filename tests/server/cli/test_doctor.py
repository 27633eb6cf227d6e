"""`doctor` is right about what is missing, broken or open to others, and tells of nothing that it cannot know."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.agent.core.execution import events as ev
from planwarden.server.api.stalls import STALLS_FILE
from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.server.cli.support import ERASE, Cli, needs_terminal, step
from tests.server.cli.test_downstream import server, servers
from tests.storage.suite import Scribe

MODE = "others can read {home}/planwarden.db (mode 0644): chmod 600 {home}/planwarden.db"


def statuses_of(document: dict[str, JsonValue]) -> dict[str, str]:
    listed = document["checks"]
    assert isinstance(listed, list)
    return {str(check["name"]): str(check["status"]) for check in listed if isinstance(check, dict)}


def find_broken(document: dict[str, JsonValue]) -> list[str]:
    return [name for name, status in statuses_of(document).items() if status == "broken"]


def writing(name: str, text: str | bytes) -> Callable[[Path], object]:
    return lambda home: (home / name).write_bytes(text.encode() if isinstance(text, str) else text)


def writing_servers(text: str) -> Callable[[Path], object]:
    """Returns what breaks the list of servers while the settings name a tool of one of them."""

    def write(home: Path) -> None:
        settings = (home / "planwarden.toml").read_text()
        writing("planwarden.toml", f'{settings}\n[tools."d_echo"]\nrisk = "read"\n')(home)
        writing("planwarden.json", text)(home)

    return write


def open_database(home: Path) -> None:
    (home / "planwarden.db").chmod(0o644)


def open_home(home: Path) -> None:
    (home / "planwarden.db").unlink()
    home.chmod(0o755)


def install_broken_guard(home: Path) -> None:
    """The hook of a host starts a program that is not there."""
    hook = {"type": "command", "command": f"{home}/gone guard hook claude-code", "timeout": 600}
    place = home.parent / ".claude" / "settings.json"
    place.parent.mkdir()
    place.write_text(json.dumps({"hooks": {"PreToolUse": [{"matcher": "*", "hooks": [hook]}]}}))


NTFY = '[[notify]]\nkind = "ntfy"\nname = "phone"\nurl = "https://ntfy.sh/x"\nevents = ["decided"]\n'
PYTHON = '[tools]\npython = ["tools.py"]\n'
BROKEN_TOOLS = (
    ("x = 1\n", "defines no tool; decorate a function with @planwarden.tool"),
    ("import planwarden\n@planwarden.tool\ndef f(*a: int) -> int:\n    'F.'\n    return 1\n", "passed by name"),
    (
        "import planwarden as p\n@p.tool(name='wait')\ndef f() -> int:\n    'F.'\n    return 1\n",
        "'wait', from builtin and python",
    ),
)
FAULTS = [
    pytest.param(writing("planwarden.toml", "[tools\n"), {"settings": "broken", "store": "ok"}, "Broken: settings."),
    pytest.param(writing("tools.py", "raise RuntimeError('no')\n"), {"tools": "broken"}, "RuntimeError: no (line 1)"),
    *(pytest.param(writing("tools.py", text), {"tools": "broken"}, said) for text, said in BROKEN_TOOLS),
    pytest.param(
        writing("planwarden.toml", f'[[rules]]\ntool = "find"\nthen = "ask"\n{PYTHON}[tools.ersae]\nrisk = "read"\n'),
        {"tools": "broken", "rules": "off", "downstream": "off"},
        "not checked, because the tools are broken",
    ),
    pytest.param(
        writing("planwarden.db", b"something else" * 100),
        {"store": "broken", "schedules": "broken", "grants": "broken"},
        "Broken: store, schedules, grants.",
    ),
    pytest.param(
        writing("planwarden.json", '{"mcpServers": {"planwarden": {"command": "uvx", "args": ["planwarden"]}}}'),
        {"server planwarden": "off"},
        "is planwarden itself and is left out",
    ),
    *(
        pytest.param(writing_servers(text), {"downstream": "broken", "settings": "ok"}, "planwarden.json")
        for text in ('{"mcpServers": ', "[]", '{"mcpServers": {"d": {"command": 3}}}')
    ),
    pytest.param(
        writing(STALLS_FILE, json.dumps([1, 2, 3.5, 3.4, 1_700_000_000.0]) + "\n"),
        {"stalls": "warning"},
        "stood still 2 times, at most 3.50 s",
    ),
    pytest.param(
        writing("planwarden.toml", "[approvals]\ntrust_caller = true\n"),
        {"settings": "warning"},
        "approvals.trust_caller is on: the calling model's word counts as an approval",
    ),
    pytest.param(
        writing("planwarden.toml", f'{NTFY}[[rules]]\ntool = "find"\nthen = "ask"\n{PYTHON}'),
        {"notify": "ok", "rules": "ok"},
        "phone (decided); waiting: 0",
    ),
    pytest.param(writing("plans/bad.yaml", "x: ["), {"plans": "warning"}, "bad.yaml"),
    *(
        pytest.param(writing("planwarden.toml", f'[inbox]\npassphrase_file = "{name}"\n'), {"inbox": "broken"}, said)
        for name, said in (
            ("none", "none' does not exist; `planwarden inbox --set-passphrase` writes it"),
            ("plans", "cannot read"),
            ("planwarden.toml", "does not hold the hash of a passphrase"),
        )
    ),
    pytest.param(install_broken_guard, {"guard": "warning"}, "Claude Code: "),
    pytest.param(open_database, {"privacy": "broken"}, MODE, marks=needs_terminal),
    pytest.param(open_home, {"privacy": "warning"}, "chmod 700 {home}", marks=needs_terminal),
]


@pytest.mark.parametrize(("break_it", "expected", "said"), FAULTS)
def test_a_fault_is_named_by_its_own_check_and_the_others_go_on(
    cli: Cli, break_it: Callable[[Path], object], expected: dict[str, str], said: str
) -> None:
    cli.run_to_question(ERASE)
    (cli.home / "plans").mkdir()
    break_it(cli.home)
    report, shown = cli.main("doctor", "--json"), cli.main("doctor")
    statuses, broken = statuses_of(report.json), "broken" in expected.values()
    assert {name: statuses[name] for name in expected} == expected
    assert find_broken(report.json) == [name for name, status in expected.items() if status == "broken"]
    assert (report.code, shown.code, report.json["healthy"]) == (broken, broken, not broken)
    assert said.format(home=cli.home) in shown.out, shown.out


@needs_terminal
def test_a_command_that_it_prints_can_be_pasted_although_the_home_has_a_blank_in_its_name(cli: Cli) -> None:
    cli.home = cli.home.rename(cli.home.parent / "my home")
    cli.home.chmod(0o755)
    assert f": chmod 700 '{cli.home}'" in cli.main("doctor").out


def test_a_healthy_home_is_healthy(cli: Cli) -> None:
    cli.run_to_question(ERASE)
    result, report = cli.main("doctor"), cli.main("doctor", "--json")
    assert (result.code, report.code, report.json["healthy"]) == (0, 0, True)
    statuses = statuses_of(report.json)
    assert {statuses[name] for name in ("settings", "privacy", "store", "sqlite", "model", "tools")} == {"ok"}
    [facts] = [check["facts"] for check in report.json["checks"] if check["name"] == "store"]
    assert (facts["integrity"], facts["executions"], facts["pendingSuspensions"], facts["running"]) == ("ok", 1, 1, 0)
    assert "Everything that planwarden needs is there." in result.out


def test_a_wrong_model_and_a_wrong_search_service_are_broken(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANWARDEN_SEARCH", "nowhere")
    report = cli.main("--model", "scripted:missing.json", "doctor", "--json")
    # A tool may need the model.
    assert (report.code, {*find_broken(report.json)}) == (1, {"model", "search", "tools"})
    monkeypatch.setenv("PLANWARDEN_SEARCH", "searxng:https://search.example")
    assert "searxng at https://search.example" in cli.main("doctor").out


def test_a_missing_home_is_named_with_the_way_out_and_nothing_is_made(cli: Cli, tmp_path: Path) -> None:
    assert cli.capture is not None
    place = tmp_path / "typo"
    config = cli.write("servers.json", servers(d=server(cli, "good")))
    for words in (("doctor",), ("doctor", "--mcp-config", config)):
        result = Cli(place, cli.capture).main(*words)
        assert result.code == 1 and "Broken: home." in result.out
        assert f"planwarden --home {place} init" in result.out and not place.exists()
    result = Cli(Path(config), cli.capture).main("doctor")
    assert result.code == 1 and f"{config} is not a folder" in result.out
    # A name that is too long stands for a folder that may not be reached, which would not stop root.
    unreachable = Cli(tmp_path / ("x" * 300), cli.capture)
    assert {*find_broken(unreachable.main("doctor", "--json").json)} >= {"home", "settings"}
    refused = unreachable.main("list")
    assert refused.code == 2 and "cannot be reached: File name too long; name another home" in refused.err


def test_servers_that_ask_for_every_call_are_named_with_how_to_trust_them(cli: Cli) -> None:
    cli.write("planwarden.json", servers(d=server(cli, "good"), asks=server(cli, "asking")))
    command = f"planwarden --home {cli.home} trust d"
    before = cli.main("doctor")
    assert before.code == 0 and before.out.count("asks a person before every call") == 2
    assert command in before.out and "trust asks" not in before.out
    assert cli.main("trust", "d", "--yes").code == 0
    assert "calls of 2 ask a person" in cli.main("doctor").out


async def _write_unproven(store: SqliteStore) -> None:
    """An execution with a step that is complete although nothing proves it, and that goes on."""
    scribe = Scribe.on(store, "unproven", thread_id="t9")
    await scribe.start()
    await scribe.write(ev.StepCompleted(step_id="a", validation="passed"), ev.CancelRequested())


@requirement("replay:store")
def test_replay_checks_every_log_and_names_the_first_event_that_does_not_replay(cli: Cli) -> None:
    assert statuses_of(cli.main("doctor", "--replay", "--json").json)["replay"] == "off"
    cli.main("run", cli.write("plan.json", {"todoList": [step("find", "find", {"topic": "x"})]}))
    cli.run_to_question(ERASE)
    whole = cli.main("doctor", "--replay", "--all")
    assert whole.code == 0 and "2 executions replay under" in whole.out
    assert "1 unfinished execution replay under" in cli.main("doctor", "--replay").out
    cli.with_store(_write_unproven)
    broken = cli.main("doctor", "--replay")
    assert broken.code == 1 and "Broken: replay." in broken.out
    assert "1 of 2 unfinished executions do not replay: execution unproven from event 4 (StepCompleted)" in broken.out
    assert cli.main("doctor", "--all").code == 2
