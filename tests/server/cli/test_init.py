"""`init` makes a folder whose plan runs, and every command that it prints works as printed."""

import re
import shlex
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import pytest

from planwarden.server.settings.configuration import load_settings
from tests.server.cli.support import Cli, PtyTerminal, clean_environment, start_on_terminal

SETTING = re.compile(r"^# (?=\[|[a-z_]+ = )", re.MULTILINE)
"""The beginning of a line of settings that does nothing yet."""


@pytest.fixture
def fresh(cli: Cli, tmp_path: Path) -> Cli:
    """A command line whose home is not there."""
    return Cli(tmp_path / "fresh", cli.capture)


def run(command: str) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    return subprocess.run(
        words, capture_output=True, text=True, env=clean_environment(), timeout=120, check=False, cwd="/"
    )


def find_commands(shown: str) -> list[str]:
    return [line.strip() for line in shown.split("Next:")[1].splitlines() if line.strip() and "#" not in line]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library")
def test_the_three_next_commands_work_as_printed_and_the_plan_ends_in_a_success(fresh: Cli) -> None:
    made = fresh.spawn("init")
    assert made.code == 0, made
    commands = find_commands(made.out)
    assert [shlex.split(command)[3] for command in commands] == ["run", "config", "doctor"]
    assert all(f"--home {fresh.home}" in command for command in commands)
    words = shlex.split(commands[0])
    assert Path(words[0]).is_file() and words[1] == "--home"
    person = start_on_terminal(fresh, *words[3:])
    try:
        answer(person)
    finally:
        person.close()
    assert "GB are free" in (fresh.home / "notes.txt").read_text()
    block, doctor = run(commands[1]), run(commands[2])
    assert block.returncode == 0 and f'"PLANWARDEN_HOME": "{fresh.home}"' in block.stdout
    assert doctor.returncode == 0 and "Everything that planwarden needs is there." in doctor.stdout


def answer(person: PtyTerminal) -> None:
    person.expect("write_note")
    person.expect("Enter leaves it open]")
    person.type("y")
    assert person.finish() == 0, person.text
    assert "2 of 2 steps completed" in person.text


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file modes")
def test_everything_that_it_makes_is_private(fresh: Cli) -> None:
    assert fresh.main("init").code == 0
    modes = {path.relative_to(fresh.home).as_posix(): read_mode(path) for path in fresh.home.rglob("*")}
    assert read_mode(fresh.home) == 0o700
    assert modes == {"planwarden.toml": 0o600, "tools.py": 0o600, "plans": 0o700, "plans/first.json": 0o600}
    empty = Cli(fresh.home.with_name("empty"), fresh.capture)
    empty.home.mkdir(mode=0o755)
    assert empty.main("init").code == 0 and read_mode(empty.home) == 0o700


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_second_one_changes_nothing_and_names_what_is_there(fresh: Cli) -> None:
    fresh.main("init")
    (fresh.home / "tools.py").write_text("# mine\n")
    before = snapshot(fresh.home.rglob("*"))
    again, as_json = fresh.main("init"), fresh.main("init", "--json")
    assert again.code == as_json.code == 1
    assert "planwarden.toml, tools.py, plans" in again.out and "nothing was changed" in again.out
    assert as_json.json["created"] == as_json.json["next"] == [] and len(as_json.json["found"]) == 3
    assert snapshot(fresh.home.rglob("*")) == before


def snapshot(paths: Iterable[Path]) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in paths}


@pytest.mark.parametrize("name", ["planwarden.toml", "tools.py", "plans"])
def test_one_file_of_somebody_else_is_enough_to_change_nothing(fresh: Cli, name: str) -> None:
    fresh.home.mkdir()
    (fresh.home / name).symlink_to("nowhere")
    assert fresh.main("init").code == 1
    assert [path.name for path in fresh.home.iterdir()] == [name]


def test_a_home_with_a_database_and_nothing_else_gets_its_files(cli: Cli, fresh: Cli) -> None:
    plan = fresh.home.with_name("plan.json")
    plan.write_text(
        '{"todoList": [{"id": "a", "description": "a", "toolCalls": [{"toolName": "calculator", "arguments": '
        '{"expression": "1+1"}}]}]}'
    )
    fresh.home.mkdir()
    assert fresh.main("run", str(plan)).code == 0 and (fresh.home / "planwarden.db").exists()
    assert fresh.main("init").code == 0 and fresh.main("tools", "note").code == 0


def test_a_folder_that_cannot_be_made_is_a_sentence(fresh: Cli) -> None:
    fresh.home.write_text("a file")
    result = fresh.main("init")
    assert result.code == 1 and "name another folder with --home" in result.err and result.err.count("\n") == 1


def test_every_setting_in_the_comments_is_one_that_planwarden_takes(fresh: Cli) -> None:
    fresh.main("init")
    path = fresh.home / "planwarden.toml"
    text = path.read_text()
    assert len(SETTING.findall(text)) >= 12
    path.write_text(SETTING.sub("", text))
    settings = load_settings(home=fresh.home, environment={})
    assert settings.tools["write_note"].risk == "dangerous" and settings.retention_days == 90
    assert [channel.kind for channel in settings.channels] == ["ntfy"]


def test_the_settings_that_it_writes_change_nothing_but_the_tools(fresh: Cli) -> None:
    text = (files("planwarden.server.cli.starter") / "planwarden.toml").read_text()
    assert tomllib.loads(text) == {"tools": {"python": ["tools.py"]}}
