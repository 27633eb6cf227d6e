"""`cancel` stops an execution, says what is completed, and never guesses which one is meant."""

import sys

import pytest

from tests.server.cli.support import ERASE, Cli, start_on_terminal, step

CONFIRM = step("confirm", "displayConfirmation", {"action": "Go on?"})
FIND = step("find", "find", {"topic": "x"})


def newest_thread(cli: Cli) -> str:
    return str(cli.main("show", "--json").json["threadId"])


def test_a_waiting_execution_is_cancelled_by_the_beginning_of_its_id(cli: Cli) -> None:
    cli.run_to_question(FIND, ERASE)
    thread_id = newest_thread(cli)
    result = cli.main("cancel", thread_id[:8], "--reason", "not today")
    assert result.code == 0
    assert "Completed, and not undone: find." in result.out and "Not completed: erase." in result.out
    assert cli.main("show", "--json").json["status"] == "cancelled"
    assert cli.ledger == ["find x"] and "Nothing waits" in cli.main("list").out


def test_a_call_that_may_have_happened_is_named_when_the_rest_is_cancelled(cli: Cli) -> None:
    cli.run_to_question(FIND, step("send", "lost"), ERASE)
    result = cli.main("cancel", newest_thread(cli))
    assert "Not completed: send, erase." in result.out
    assert "Nobody knows whether a call happened: send. A retry asks first." in result.out


DIE = """

@planwarden.tool(risk="read", effect="effect")
async def die() -> str:
    '''Send something; the process ends before it is known whether it arrived.'''
    os.kill(os.getpid(), 9)
    return "sent"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_run_whose_process_was_killed_is_cancelled_at_once_and_goes_on_by_a_retry(cli: Cli) -> None:
    with (cli.home / "tools.py").open("a") as tools:
        tools.write(DIE)
    killed = cli.spawn("run", cli.write("plan.json", {"todoList": [FIND, step("send", "die")]}))
    assert killed.code == -9
    thread_id = newest_thread(cli)
    refused = cli.main("retry", thread_id)
    assert refused.code == 2 and f"cancel {thread_id[:8]}` stops it, then retry goes on" in refused.err
    cancelled = cli.main("cancel", thread_id)
    assert cancelled.code == 0 and "Nobody knows whether a call happened: send." in cancelled.out
    again = cli.main("retry", thread_id, "--json")
    assert again.code == 3 and [question["kind"] for question in again.json["suspensions"]] == ["reconcile"]
    assert cli.ledger == ["find x"]


def test_without_an_id_nothing_is_cancelled_and_everything_unfinished_is_listed(cli: Cli) -> None:
    nothing = cli.main("cancel")
    assert nothing.code == 2 and "nothing to cancel" in nothing.err
    cli.run_to_question(CONFIRM, ERASE)
    first = newest_thread(cli)
    cli.run_to_question(ERASE)
    second = newest_thread(cli)
    finished = cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"]
    result, listed = cli.main("cancel"), cli.main("cancel", "--json")
    assert (result.code, listed.code) == (2, 2)
    assert first[:8] in result.out and second[:8] in result.out and finished[:8] not in result.out
    assert f"planwarden --home {cli.home} cancel THREAD" in result.err
    assert listed.json["error"]["details"]["threads"] == [first, second]
    assert "2 waiting for an answer" in cli.main("list").out


def test_what_is_finished_cannot_be_cancelled_and_cancelling_twice_is_the_same(cli: Cli) -> None:
    finished = cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"]
    assert cli.main("cancel", finished).code == 1
    cli.run_to_question(ERASE)
    thread_id = newest_thread(cli)
    assert (cli.main("cancel", thread_id).code, cli.main("cancel", thread_id).code) == (0, 0)
    assert cli.main("cancel", thread_id, "--json").json["status"] == "cancelled"


def test_an_unknown_or_foreign_id_is_refused_with_what_to_do(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    foreign, unknown = cli.main("cancel", suspension_id), cli.main("cancel", "nothing")
    assert foreign.code == unknown.code == 2
    assert "is the id of a question, and this command wants a thread" in foreign.err
    assert f"planwarden --home {cli.home} cancel` lists" in unknown.err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library")
def test_a_terminal_asks_before_the_rest_is_cancelled_when_something_has_had_its_effect(cli: Cli) -> None:
    cli.set_risk("erase", "read")
    cli.run_to_question(ERASE, CONFIRM)
    for typed, code, status in (("", 1, "suspended"), ("y", 0, "cancelled")):
        person = start_on_terminal(cli, "cancel", newest_thread(cli)[:8])
        try:
            person.expect("cancelling does not undo it: erase.")
            person.expect("Cancel the rest?")
            person.type(typed)
            assert person.finish() == code
        finally:
            person.close()
        assert cli.main("show", "--json").json["status"] == status
