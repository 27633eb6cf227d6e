"""What a newcomer runs first: `init` makes a folder whose plan runs, and `demo` shows the whole job."""

import json
import re
import shlex
import stat
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from planwarden.server.cli.demo.home import REPORTS
from planwarden.server.settings.configuration import load_settings
from tests.server.cli.support import Cli, Open, clean_environment, run_in_process

SETTING = re.compile(r"^# (?=\[|[a-z_]+ = )", re.MULTILINE)
"""The beginning of a line of settings that does nothing yet."""
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals and no file modes")


@pytest.fixture
def cli(cli: Cli, tmp_path: Path) -> Cli:
    """A command line whose home is not there."""
    cli.home = tmp_path / "fresh"
    return cli


@pytest.mark.slow
@needs_posix
def test_the_three_next_commands_work_as_printed_and_the_plan_ends_in_a_success(cli: Cli, terminal: Open) -> None:
    made = cli.spawn("init")
    assert made.code == 0, made
    lines = [line.strip() for line in made.out.split("Next:")[1].splitlines()]
    run, *others = (shlex.split(line) for line in lines if line and "#" not in line)
    assert Path(run[0]).is_file() and run[1:3] == ["--home", str(cli.home)]
    person = terminal(*run[3:])
    assert person.play("write_note", "Enter leaves it open]", "> y") == 0, person.text
    assert "2 of 2 steps completed" in person.text and "GB are free" in (cli.home / "notes.txt").read_text()
    block, doctor = (
        subprocess.run(words, capture_output=True, text=True, env=clean_environment(), timeout=120, check=True, cwd="/")
        for words in others
    )
    assert f'"PLANWARDEN_HOME": "{cli.home}"' in block.stdout
    assert "Everything that planwarden needs is there." in doctor.stdout


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@needs_posix
def test_everything_that_init_makes_is_private_and_a_second_one_changes_nothing(cli: Cli) -> None:
    assert cli.main("init").code == 0
    modes = {path.relative_to(cli.home).as_posix(): read_mode(path) for path in cli.home.rglob("*")}
    assert read_mode(cli.home) == 0o700
    assert modes == {"planwarden.toml": 0o600, "tools.py": 0o600, "plans": 0o700, "plans/first.json": 0o600}
    (cli.home / "tools.py").write_text("# mine\n")
    before = {path: path.stat().st_mtime_ns for path in cli.home.rglob("*")}
    again, as_json = cli.main("init"), cli.main("init", "--json")
    assert again.code == as_json.code == 1
    assert "planwarden.toml, tools.py, plans" in again.out and "nothing was changed" in again.out
    assert as_json.json["created"] == as_json.json["next"] == [] and len(as_json.json["found"]) == 3
    assert {path: path.stat().st_mtime_ns for path in cli.home.rglob("*")} == before


@pytest.mark.parametrize("name", ["planwarden.toml", "tools.py", "plans"])
def test_one_file_of_somebody_else_is_enough_to_change_nothing(cli: Cli, name: str) -> None:
    cli.home.mkdir()
    (cli.home / name).symlink_to("nowhere")
    assert cli.main("init").code == 1
    assert [path.name for path in cli.home.iterdir()] == [name]


@needs_posix
def test_an_empty_folder_and_a_home_with_only_a_database_get_the_files_and_a_file_is_a_sentence(cli: Cli) -> None:
    cli.home.mkdir(mode=0o755)
    assert cli.main("init").code == 0 and read_mode(cli.home) == 0o700
    cli.home = cli.home.with_name("used")
    cli.home.mkdir()
    (cli.home / "planwarden.db").touch()
    assert cli.main("init").code == 0 and cli.main("tools", "note").code == 0
    cli.home = cli.home.with_name("file")
    cli.home.write_text("a file")
    result = cli.main("init")
    assert result.code == 1 and "name another folder with --home" in result.err and result.err.count("\n") == 1


def test_the_settings_that_init_writes_change_only_the_tools_and_every_comment_is_a_setting(cli: Cli) -> None:
    text = (files("planwarden.server.cli.starter") / "planwarden.toml").read_text()
    assert tomllib.loads(text) == {"tools": {"python": ["tools.py"]}}
    cli.main("init")
    assert len(SETTING.findall(text)) >= 12
    (cli.home / "planwarden.toml").write_text(SETTING.sub("", text))
    settings = load_settings(home=cli.home, environment={})
    assert settings.tools["write_note"].risk == "dangerous" and settings.retention_days == 90
    assert [channel.kind for channel in settings.channels] == ["ntfy"]


def list_reports(cli: Cli) -> list[str]:
    return sorted(path.name for path in (cli.home / "reports").iterdir())


@pytest.mark.slow
def test_the_demo_shows_the_whole_job_on_one_screen(cli: Cli) -> None:
    result = cli.spawn("demo", "--yes")
    assert (result.code, result.err) == (0, "")
    shown = [
        "✓ find",
        'the model only wrote: "I used the calculator',
        "not accepted: nothing called calculator; told once to call it",
        'calculator(expression="18432 + 20480 + 22528") → result: 61440',
        "? ask",
        "was killed (kill -9) while the question waits",
        "The same decision also covers 1 call(s):",
        'names = ["2021-q4.txt", "2022-q1.txt", "2022-q2.txt"]',
        "(client, terminal --yes)",
        "deleted: 3 (covered by the confirmation)",
        "5 of 5 steps completed",
        "reports left: 2026-q3.txt",
    ]
    places = [result.out.index(text) for text in shown]
    assert places == sorted(places) and len(result.out.splitlines()) <= 40
    [first, second] = re.findall(r"Process (\d+) (?:was killed|continues)", result.out)
    assert first != second and list_reports(cli) == ["2026-q3.txt"]
    refused = cli.main("demo", "--yes")
    assert (refused.code, refused.out) == (2, "") and "is not empty" in refused.err


@pytest.mark.slow
def test_the_demo_removes_its_temporary_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cli.capture is not None
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("PLANWARDEN_MODEL", "nonsense")
    result = run_in_process(cli.capture, "demo", "--yes", "--json")
    assert result.code == 0 and json.loads(result.out)["status"] == "completed"
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@needs_posix
def test_the_demo_asks_the_person_at_a_terminal_and_stops_at_the_question_without_one(cli: Cli, terminal: Open) -> None:
    result = cli.spawn("demo", stdin="y\n")
    assert result.code == 3
    [suspension_id] = re.findall(rf"planwarden --home {re.escape(str(cli.home))} approve (\w+)", result.out)
    assert cli.main("reject", suspension_id).code == 0 and list_reports(cli) == sorted(REPORTS)
    cli.home = cli.home.with_name("other")
    assert terminal("demo").play("deleteReports (step delete)", "Enter leaves it open]", "> y") == 0
    assert list_reports(cli) == ["2026-q3.txt"]
