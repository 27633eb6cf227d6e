"""`planwarden demo`, which a newcomer sees first."""

import json
import re
import sys
from pathlib import Path

import pytest

from planwarden.server.cli.demo.home import REPORTS
from tests.server.cli.support import Cli, start_on_terminal

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path / "demo", capsys)


def list_reports(cli: Cli) -> list[str]:
    return sorted(path.name for path in (cli.home / "reports").iterdir())


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
    assert places == sorted(places)
    assert len(result.out.splitlines()) <= 40
    [first, second] = re.findall(r"Process (\d+) (?:was killed|continues)", result.out)
    assert first != second
    assert list_reports(cli) == ["2026-q3.txt"]


def test_the_demo_removes_its_temporary_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from planwarden.server.main import main

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PLANWARDEN_MODEL", "nonsense")
    assert main(["demo", "--yes", "--json"]) == 0
    assert cli.capture is not None
    assert json.loads(cli.capture.readouterr().out)["status"] == "completed"
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_the_demo_stops_at_the_question_and_any_process_can_continue(cli: Cli) -> None:
    result = cli.spawn("demo", stdin="y\n")
    assert result.code == 3
    [suspension_id] = re.findall(rf"planwarden --home {re.escape(str(cli.home))} approve (\w+)", result.out)
    assert list_reports(cli) == sorted(REPORTS)
    assert cli.main("reject", suspension_id).code == 0
    assert list_reports(cli) == sorted(REPORTS)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library")
def test_on_a_terminal_the_person_is_asked(cli: Cli) -> None:
    person = start_on_terminal(cli, "demo")
    person.expect("deleteReports (step delete)")
    person.expect("Enter leaves it open]")
    person.type("y")
    assert person.finish() == 0
    person.close()
    assert list_reports(cli) == ["2026-q3.txt"]


def test_the_demo_refuses_a_folder_with_files(cli: Cli) -> None:
    cli.home.mkdir()
    (cli.home / "mine.txt").write_text("precious")
    result = cli.main("demo", "--yes")
    assert (result.code, result.out) == (2, "")
    assert "is not empty" in result.err
    assert [path.name for path in cli.home.iterdir()] == ["mine.txt"]
