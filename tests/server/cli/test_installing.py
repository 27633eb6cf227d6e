"""What a newcomer and an operator run first: `init`, `demo`, and what planwarden prints for hosts and services."""

import base64
import json
import plistlib
import re
import shlex
import stat
import subprocess
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli import hosts
from planwarden.server.cli.commands.service import DEPLOYED, Installation, write_docker, write_launchd, write_systemd
from planwarden.server.cli.program import build_parser
from planwarden.server.settings.configuration import load_settings
from tests.requirements import requirement
from tests.server.cli.support import Cli, Open, at_terminal, clean_environment, needs_terminal, run_in_process
from tests.support.paths import ROOT

SETTING = re.compile(r"^# (?=\[|[a-z_]+ = )", re.MULTILINE)
"""The beginning of a line of settings that does nothing yet."""


@pytest.fixture
def fresh(cli: Cli, tmp_path: Path) -> Cli:
    cli.home = tmp_path / "fresh"
    return cli


@at_terminal
def test_the_three_next_commands_work_as_printed_and_the_plan_ends_in_a_success(fresh: Cli, terminal: Open) -> None:
    made = fresh.spawn("init")
    assert made.code == 0, made
    lines = [line.strip() for line in made.out.split("Next:")[1].splitlines()]
    run, *others = (shlex.split(line) for line in lines if line and "#" not in line)
    assert Path(run[0]).is_file() and run[1:3] == ["--home", str(fresh.home)]
    person = terminal(*run[3:])
    assert person.play("write_note", "Enter leaves it open]", "> y") == 0, person.text
    assert "2 of 2 steps completed" in person.text and "GB are free" in (fresh.home / "notes.txt").read_text()
    block, doctor = (
        subprocess.run(words, capture_output=True, text=True, env=clean_environment(), timeout=120, check=True, cwd="/")
        for words in others
    )
    assert f'"PLANWARDEN_HOME": "{fresh.home}"' in block.stdout
    assert "Everything that planwarden needs is there." in doctor.stdout


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@needs_terminal
def test_everything_that_init_makes_is_private_and_a_second_one_changes_nothing(fresh: Cli) -> None:
    assert fresh.main("init").code == 0
    modes = {path.relative_to(fresh.home).as_posix(): read_mode(path) for path in fresh.home.rglob("*")}
    assert read_mode(fresh.home) == 0o700
    assert modes == {"planwarden.toml": 0o600, "tools.py": 0o600, "plans": 0o700, "plans/first.json": 0o600}
    (fresh.home / "tools.py").write_text("# mine\n")
    before = {path: path.stat().st_mtime_ns for path in fresh.home.rglob("*")}
    again, as_json = fresh.main("init"), fresh.main("init", "--json")
    assert again.code == as_json.code == 1
    assert "planwarden.toml, tools.py, plans" in again.out and "nothing was changed" in again.out
    assert as_json.json["created"] == [] and len(as_json.json["found"]) == 3
    assert len(as_json.json["next"]) == 3 and all(command in again.out for command in as_json.json["next"])
    assert {path: path.stat().st_mtime_ns for path in fresh.home.rglob("*")} == before


@needs_terminal
def test_an_empty_folder_and_a_home_with_only_a_database_get_the_files_and_a_file_is_a_sentence(fresh: Cli) -> None:
    fresh.home.mkdir(mode=0o755)
    assert fresh.main("init").code == 0 and read_mode(fresh.home) == 0o700
    fresh.home = fresh.home.with_name("used")
    fresh.home.mkdir()
    (fresh.home / "planwarden.db").touch()
    assert fresh.main("init").code == 0 and fresh.main("tools", "note").code == 0
    fresh.home = fresh.home.with_name("file")
    fresh.home.write_text("a file")
    result = fresh.main("init")
    assert result.code == 1 and "name another folder with --home" in result.err and result.err.count("\n") == 1


def test_the_settings_that_init_writes_change_only_tools_and_rules_and_every_comment_is_a_setting(fresh: Cli) -> None:
    text = (files("planwarden.server.cli.templates") / "planwarden.toml").read_text()
    written = tomllib.loads(text)
    assert written == {"tools": {"python": ["tools.py"]}, "rules": written["rules"]}
    fresh.main("init")
    assert len(SETTING.findall(text)) >= 12
    (fresh.home / "planwarden.toml").write_text(SETTING.sub("", text))
    settings = load_settings(home=fresh.home, environment={})
    assert settings.tools["write_note"].risk == "dangerous" and settings.tables.retention.days == 90
    assert [channel.kind for channel in settings.channels] == ["ntfy"]


@pytest.mark.slow
def test_the_demo_shows_the_whole_job_on_one_screen_and_leaves_no_temporary_folder(
    fresh: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fresh.spawn("demo", "--yes")
    assert (result.code, result.err) == (0, "")
    shown = [
        "not accepted: nothing called calculator; told once to call it",
        'calculator(expression="18432 + 20480 + 22528") → result: 61440',
        "was killed (kill -9) while the question waits",
        "The same decision also covers 1 call:",
        "deleted: 3 (covered by the confirmation)",
        "5 of 5 steps completed",
    ]
    places = [result.out.index(text) for text in shown]
    assert places == sorted(places) and len(result.out.splitlines()) <= 40
    [first, second] = re.findall(r"Process (\d+) (?:was killed|continues)", result.out)
    assert first != second and [path.name for path in (fresh.home / "reports").iterdir()] == ["2026-q3.txt"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("PLANWARDEN_MODEL", "nonsense")
    assert fresh.capture is not None
    again = run_in_process(fresh.capture, "demo", "--yes", "--json")
    assert again.code == 0 and again.json["status"] == "completed" and list(temporary.iterdir()) == []
    refused = fresh.main("demo", "--yes")
    assert (refused.code, refused.out) == (2, "") and "is not empty" in refused.err


KEY = base64.b64encode(bytes(range(32))).decode()
TABLES = {
    "vscode": "servers",
    "zed": "context_servers",
    "codex": "mcp_servers",
    "goose": "extensions",
    "opencode": "mcp",
}
ENVIRONMENTS = {"goose": "envs", "opencode": "environment"}


@pytest.mark.parametrize("host", hosts.CLIENTS)
def test_every_hosts_configuration_parses_in_its_format(cli: Cli, host: str) -> None:
    result = cli.main("--model", "caller", "config", "print", host)
    assert result.code == 0 and result.err.startswith("into ")
    read: Any = {"codex": tomllib.loads, "goose": yaml.safe_load}.get(host, json.loads)
    server = read(result.out)[TABLES.get(host, "mcpServers")]["planwarden"]
    env = {"PLANWARDEN_HOME": str(cli.home), "PLANWARDEN_MODEL": "caller"}
    assert server[ENVIRONMENTS.get(host, "env")] == env
    assert server["cmd" if host == "goose" else "command"]


def test_the_block_for_a_host_names_the_store_and_its_secrets_and_holds_none(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def print_for(host: str, store: str | None = None) -> tuple[str, str]:
        printed = cli.main(*(("--store", store) if store else ()), "config", "print", host)
        assert "hidden" not in printed.out + printed.err and KEY not in printed.out + printed.err
        return printed.out, printed.err

    assert "PLANWARDEN_SECRET_KEY" not in print_for("codex")[1]
    assert "PLANWARDEN_SECRET_KEY" in print_for("codex", "postgresql://ann@db/plans")[1]
    monkeypatch.setenv("PLANWARDEN_SECRET_KEY", KEY)
    out, err = print_for("claude-code", "postgresql://ann@db/plans")
    assert "postgresql://ann@db/plans" in out and "PLANWARDEN_SECRET_KEY" in err
    assert "PLANWARDEN_STORE" in print_for("claude-code", "postgresql://ann:hidden@db/plans")[1]


@requirement("service:print")
def test_what_is_deployed_is_what_is_printed_for_that_installation() -> None:
    installation = Installation(*DEPLOYED)
    assert (ROOT / "deploy" / "planwarden.service").read_text() == write_systemd(installation)
    assert (ROOT / "deploy" / "compose.yaml").read_text() == write_docker(installation)


def read_unit(text: str) -> dict[str, str]:
    lines = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key: value for key, _, value in lines if key != "Environment"} | {
        f"Environment {value.split('=')[0]}": value for key, _, value in lines if key == "Environment"
    }


@requirement("service:print")
def test_a_unit_of_another_home_may_write_there_and_see_its_program_and_odd_names_stay_one_value() -> None:
    unit = read_unit(write_systemd(Installation(Path("/home/ann/bin/planwarden"), Path("/home/ann/plan"), "ann")))
    assert unit["ExecStart"] == "/home/ann/bin/planwarden serve --http" and unit["User"] == "ann"
    assert (unit["ReadWritePaths"], unit["ProtectHome"]) == ("/home/ann/plan", "read-only")
    assert "StateDirectory" not in unit
    other = read_unit(write_systemd(Installation(DEPLOYED[0], Path('/srv/100% $my "plan"'), "ann")))
    assert other["ProtectHome"] == "yes"
    assert other["ReadWritePaths"] == '"/srv/100%% $my \\"plan\\""'
    with pytest.raises(UsageError, match="cannot be written into a unit"):
        write_systemd(Installation(DEPLOYED[0], Path("/srv/a\nExecStartPre=/bin/evil"), "ann"))
    home = Path("/srv/<&>'\"\n")
    document = plistlib.loads(write_launchd(Installation(DEPLOYED[0], home, "ann")).encode())
    assert document["EnvironmentVariables"]["PLANWARDEN_HOME"] == str(home)


@requirement("service:print")
@pytest.mark.parametrize("kind", ["systemd", "launchd", "docker"])
def test_what_is_printed_starts_a_server_of_this_home(cli: Cli, kind: str) -> None:
    result = cli.main("service", "print", kind, "--store", "sqlite:////srv/a b$c.db")
    assert result.code == 0 and result.err == ""
    if kind == "launchd":
        document = plistlib.loads(result.out.encode())
        words, environment = document["ProgramArguments"], document["EnvironmentVariables"]
        assert environment["PLANWARDEN_HOME"] == str(cli.home) and document["RunAtLoad"]
    elif kind == "systemd":
        unit = read_unit(result.out)
        words = shlex.split(unit["ExecStart"].replace("$$", "$"))
        assert unit["Environment PLANWARDEN_HOME"] == f"PLANWARDEN_HOME={cli.home}"
    else:
        assert "restart: unless-stopped" in result.out
        [line] = re.findall(r"^    command: (\[.+\])$", result.out, re.MULTILINE)
        words = ["/usr/bin/planwarden", *json.loads(line.replace("$$", "$"))]
    assert Path(words[0]).is_absolute()
    arguments = build_parser().parse_args(words[1:])
    assert arguments.http and arguments.store == "sqlite:////srv/a b$c.db"
