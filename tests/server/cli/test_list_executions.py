"""`planwarden list --executions`: what the page of plans shows, in the terminal."""

import pytest

from tests.requirements import requirement
from tests.server.cli.support import ERASE, Cli, step

FIND = step("find", "find", {"topic": "x"})
FITTING = (
    (("--search", "x"), 0),
    (("--search", "GO"), 0),
    (("--state", "completed"), 1),
    (("--state", "waiting"), 1),
    (("--tool", "erase"), 1),
    (("--tool", "erase", "--state", "done"), 0),
    (("--host", "Claude"), 0),
    (("--plan", "monthly"), 0),
    (("--executions",), 2),
)


@requirement("terminal:executions")
def test_executions_are_listed_with_state_progress_and_title_in_words(cli: Cli) -> None:
    """issue: the same list to the terminal"""
    waiting = cli.run_to_question(ERASE)
    done = cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"]
    listed = cli.main("list", "--executions", "--json").json["executions"]
    assert [(found["state"], found["stepsDone"], found["stepCount"]) for found in listed] == [
        ("completed", 1, 1),
        ("waiting", 0, 1),
    ]
    assert listed[0]["threadId"] == done and listed[1]["suspensionId"] == waiting
    shown = cli.main("list", "--executions")
    assert shown.code == 0 and "waits for a person" in shown.out and "0 of 1 step" in shown.out
    recent = cli.main("list").out
    assert "newest executions" in recent and "waits for a person" in recent


@requirement("terminal:executions")
@pytest.mark.parametrize(("words", "count"), FITTING)
def test_options_choose_which(cli: Cli, words: tuple[str, ...], count: int) -> None:
    cli.run_to_question(ERASE)
    cli.main("run", cli.write("plan.json", {"todoList": [FIND]}))
    assert len(cli.main("list", *words, "--json").json["executions"]) == count
    assert ("No execution fits." in cli.main("list", *words).out) == (count == 0)


@requirement("terminal:executions")
def test_the_next_page_is_a_command_to_copy(cli: Cli) -> None:
    for _ in range(2):
        cli.main("run", cli.write("plan.json", {"todoList": [FIND]}))
    page = cli.main("list", "--tool", "find", "--limit", "1", "--json").json
    shown = cli.main("list", "--tool", "find", "--limit", "1").out
    assert f"--tool find --cursor {page['nextCursor']}" in shown
    rest = cli.main("list", "--tool", "find", "--limit", "1", "--cursor", page["nextCursor"], "--json").json
    assert rest["nextCursor"] is None and rest["executions"] != page["executions"]
    assert cli.main("list", "--executions", "--limit", "0").code == 2
    assert cli.main("list", "--executions", "--cursor", "foreign").code == 2
    assert cli.main("list", "--state", "asleep").code == 2
