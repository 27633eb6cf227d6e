"""What the person does with the saved plan at a terminal and in a program, one after the other."""

import json
import os
import signal
import sys
from contextlib import suppress

from tests.clients.conftest import find_processes
from tests.support.screen import Screen

from dev.show.stage import PLAN_NAME, Transcript, WentWrong, read_block

CHOICE = "Enter leaves it open]"
INPUT = ("--input", "to=archive")


def look_at_plan(shown: Transcript) -> None:
    """Lists the plan, and asks what it would do."""
    shown.run("look", "plans")
    shown.run("look", "check", PLAN_NAME, *INPUT)


def run_and_be_killed(shown: Transcript) -> None:
    """Leaves one row out; planwarden dies by SIGKILL while the git server commits."""

    def person(screen: Screen) -> None:
        wait_for_question(screen, 1)
        screen.press("s", "enter")
        screen.expect("Rows to approve")
        screen.press("1,3", "enter")
        wait_for_question(screen, 2)
        screen.press("y", "enter")
        wait_for_question(screen, 3)
        signal_git_server(shown, signal.SIGSTOP)
        screen.press("y", "enter")
        screen.expect("→ running")
        screen.process.kill()
        screen.process.wait()

    shown.run_on_terminal("run", "run", PLAN_NAME, *INPUT, person=person)
    signal_git_server(shown, signal.SIGKILL)
    expect(shown.place.list_notes("inbox") == ["budget.md"], "the note that was left out stays", shown)
    expect(count_commits(shown) == 1, "nothing was committed", shown)


def retry(shown: Transcript) -> None:
    """Go on: only the call with the unknown outcome is asked about, and made again."""
    thread = read_newest_thread(shown)
    shown.run("refused", "retry", thread[:6], code=2)
    shown.run("retry", "cancel", thread[:6])

    def person(screen: Screen) -> None:
        screen.expect("Did it happen?")
        screen.press("n", "enter")
        wait_for_end(screen)

    shown.run_on_terminal("retry", "retry", thread[:6], person=person)
    expect(count_commits(shown) == 2, "it was committed once", shown)


def run_from_python(shown: Transcript) -> None:
    """Runs the program of the page twice; the second time its key finds the first run."""
    for _ in range(2):
        done = shown.run_program([sys.executable, "-c", read_block("python")])
        expect(done.returncode == 0, "the program ends well", shown, done.stdout)
    expect(count_commits(shown) == 3, "the second run of the program did nothing", shown)


def schedule(shown: Transcript) -> str:
    """Adds the plan to Mondays, and returns the schedule's id."""
    words = ("--cron", "0 9 * * 1", "--timezone", "Europe/Berlin", *INPUT)
    shown.run("schedule", "schedule", "add", PLAN_NAME, *words)
    return str(json.loads(shown.read("schedule", "list", "--json"))["schedules"][0]["scheduleId"])


def grant(shown: Transcript, schedule_id: str) -> None:
    """Allows the commit beforehand, so that the run of the schedule asks once; a change of the plan ends that."""

    def allow(screen: Screen) -> None:
        screen.expect("Allow them?")
        screen.press("y", "enter")
        screen.finish()

    words = ("repo_git_commit", "--plan", PLAN_NAME, "--step", "commit", "--uses-per-day", "1", "--for", "90d")
    shown.run_on_terminal("grant", "grant", "add", *words, person=allow)
    shown.place.write_notes("ideas.md")

    def person(screen: Screen) -> None:
        wait_for_question(screen, 1)
        screen.press("y", "enter")
        wait_for_end(screen)

    before = count_commits(shown)
    shown.run_on_terminal("granted", "schedule", "run-now", schedule_id[:6], person=person)
    expect(count_commits(shown) == before + 1, "it was committed without a question", shown)
    path = shown.place.home / "plans" / f"{PLAN_NAME}.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("Archive notes", "Archive old notes"), encoding="utf-8")
    shown.run("changed", "grant", "list")


def wait_for_question(screen: Screen, number: int) -> None:
    screen.wait_until(lambda: screen.text.count(CHOICE) == number, f"question {number} did not appear")


def wait_for_end(screen: Screen) -> None:
    screen.expect("─ completed ─")
    if screen.finish() != 0:
        raise WentWrong(screen.text)


def signal_git_server(shown: Transcript, number: signal.Signals) -> None:
    """Stops the server, so that the kill finds a call under way, or ends it afterwards."""
    for process_id in find_processes(shown.place.folder, b"mcp-server-git"):
        with suppress(ProcessLookupError):
            os.kill(process_id, number)


def count_commits(shown: Transcript) -> int:
    return int(shown.place.run_git("rev-list", "--count", "HEAD"))


def read_newest_thread(shown: Transcript) -> str:
    return str(json.loads(shown.read("show", "--json"))["threadId"])


def expect(is_so: bool, what: str, shown: Transcript, seen: str = "") -> None:
    """Raises `WentWrong` unless it is so."""
    if not is_so:
        raise WentWrong(f"not as it should be: {what}\n{seen or shown.blocks}")
