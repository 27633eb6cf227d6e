"""`retry` goes on from the last execution of a thread without repeating what is completed; `cancel` stops one."""

import sys

import pytest
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.cli.support import ERASE, Cli, Open, step

CONFIRM = step("confirm", "displayConfirmation", {"action": "Go on?"})
FIND = step("find", "find", {"topic": "x"})
LETTER: JsonValue = {
    "inputs": {
        "properties": {"topic": {"type": "string"}, "note": {"type": "string", "default": "none"}},
        "required": ["topic"],
    },
    "todoList": [
        step("find", "find", {"topic": {"$from": "inputs", "pointer": "/topic"}}),
        step("erase", "erase", {"ids": [1], "note": {"$from": "inputs", "pointer": "/note"}}),
    ],
}
DIE = """

@planwarden.tool(risk="read", effect="effect")
async def die() -> str:
    '''Send something; the process ends before it is known whether it arrived.'''
    os.kill(os.getpid(), 9)
    return "sent"
"""
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL and no pseudo-terminals")


def newest_thread(cli: Cli) -> str:
    return str(cli.main("show", "--json").json["threadId"])


def run_letter(cli: Cli, *words: str) -> str:
    """Runs the plan with a `topic` that reads like a number, rejects its last step, and returns the thread."""
    asked = cli.main("run", cli.write("letter.json", LETTER), "--input", "topic=007", *words, "--json").json
    cli.main("reject", asked["suspensions"][0]["suspensionId"])
    return str(asked["threadId"])


@requirement("retry:rest", "retry:gated", "retry:fork")
def test_retry_asks_again_runs_from_a_step_again_or_goes_on_with_another_plan(cli: Cli) -> None:
    cli.main("reject", cli.run_to_question(FIND, ERASE))
    thread_id = newest_thread(cli)
    result = cli.main("retry", thread_id[:8], "--json")
    assert result.code == 3 and "not run again: find." in result.err and cli.ledger == ["find x"]
    assert [question["kind"] for question in result.json["suspensions"]] == ["approval"]
    shown = " ".join(cli.main("show", thread_id).out.split())
    assert f"(taken over from execution {result.json['retryOf'][:8]})" in shown
    cli.main("cancel", thread_id, "--yes")
    changed = cli.write("other.json", {"todoList": [FIND, step("again", "find", {"topic": "y"})]})
    done = cli.main("retry", thread_id, "--plan", changed, "--json")
    assert done.json["status"] == "completed" and cli.ledger == ["find x", "find y"]
    again = cli.main("retry", thread_id, "--from", "again", "--json")
    assert again.json["status"] == "completed" and cli.ledger == ["find x", "find y", "find y"]


@requirement("retry:fork")
def test_an_input_is_changed_and_the_others_stay_as_they_were(cli: Cli) -> None:
    thread_id = run_letter(cli, "--input", "note=first")
    again = cli.main("retry", thread_id, "--input", "note=12", "--json").json
    assert again["suspensions"][0]["toolCall"]["arguments"] == {"ids": [1], "note": "12"}
    assert cli.ledger == ["find 007"]
    cli.main("cancel", thread_id, "--yes")
    inputs = cli.write("inputs.json", {"topic": "008"})
    forked = cli.main("retry", thread_id, "--from", "find", "--inputs", inputs, "--input", "note=last", "--json").json
    assert forked["suspensions"][0]["toolCall"]["arguments"]["note"] == "last"
    assert cli.ledger == ["find 007", "find 008"]


@requirement("retry:refused")
def test_what_cannot_be_retried_is_refused_with_the_reason(cli: Cli) -> None:
    letter = run_letter(cli)
    done = str(cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"])
    suspension_id = cli.run_to_question(FIND, ERASE)
    waiting = newest_thread(cli)
    for words, said in (
        ((done,), "is completed; fromStep"),
        ((done, "--from", "send"), "has no step 'send'; it has 'find'"),
        ((done, "--from", "find", "--input", "topic=1"), "takes no inputs"),
        ((waiting,), f"so there is nothing to retry; `planwarden --home {cli.home} approve"),
        ((waiting,), f"`planwarden --home {cli.home} cancel {waiting[:8]}` stops it"),
        ((suspension_id,), "is the id of a question"),
        (("nothing",), "there is no thread 'nothing'"),
        ((letter, "--input", "note"), "--input 'note' is not NAME=VALUE"),
        ((letter, "--input", "other=1"), "other"),
        ((letter, "--input", "topic=009"), "takes inputs that are different now"),
        ((letter, "--inputs", str(cli.home / "gone.json")), "cannot read the inputs"),
        ((letter, "--inputs", cli.write("list.json", [])), "are not an object"),
        ((letter, "--plan", "nothing"), "there is no saved plan 'nothing'"),
        ((letter, "--plan", cli.write("empty.json", {"todoList": []})), "has no steps"),
        ((letter, "--key", "k" * 201), "the limit is 200"),
    ):
        refused = cli.main("retry", *words)
        assert refused.code == 2 and said in refused.err, (words, refused.err)
        assert "cancel_execution" not in refused.err
    assert cli.ledger == ["find 007", "find x", "find x"]


@needs_posix
def test_a_run_whose_process_was_killed_is_cancelled_at_once_and_goes_on_by_a_retry(cli: Cli) -> None:
    with (cli.home / "tools.py").open("a") as tools:
        tools.write(DIE)
    killed = cli.spawn("run", cli.write("plan.json", {"todoList": [FIND, step("send", "die"), ERASE]}))
    assert killed.code == -9
    thread_id = newest_thread(cli)
    refused = cli.main("retry", thread_id)
    assert refused.code == 2 and f"cancel {thread_id[:8]}` stops it, then retry goes on" in refused.err
    cancelled = cli.main("cancel", thread_id[:8], "--reason", "not today")
    assert cancelled.code == 0 and "Nothing waits" in cli.main("list").out
    assert "Completed, and not undone: find." in cancelled.out and "Not completed: send, erase." in cancelled.out
    assert "Nobody knows whether a call happened: send. A retry asks first." in cancelled.out
    assert (cli.main("cancel", thread_id).code, cli.main("show", "--json").json["status"]) == (0, "cancelled")
    again = cli.main("retry", thread_id, "--json")
    assert again.code == 3 and [question["kind"] for question in again.json["suspensions"]] == ["reconcile"]
    assert cli.ledger == ["find x"]


def test_without_an_id_nothing_is_cancelled_and_everything_unfinished_is_listed(cli: Cli) -> None:
    nothing = cli.main("cancel")
    assert nothing.code == 2 and "nothing to cancel" in nothing.err
    suspension_id = cli.run_to_question(CONFIRM, ERASE)
    first = newest_thread(cli)
    cli.run_to_question(ERASE)
    second = newest_thread(cli)
    finished = cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"]
    result, listed = cli.main("cancel"), cli.main("cancel", "--json")
    assert (result.code, listed.code) == (2, 2)
    assert first[:8] in result.out and second[:8] in result.out and finished[:8] not in result.out
    assert f"planwarden --home {cli.home} cancel THREAD" in result.err
    assert listed.json["error"]["details"]["threads"] == [first, second]
    for wrong_id, code, said in (
        (finished, 1, ""),
        (suspension_id, 2, "is the id of a question, and this command wants a thread"),
        ("nothing", 2, f"planwarden --home {cli.home} cancel` lists"),
    ):
        refused = cli.main("cancel", wrong_id)
        assert refused.code == code and said in refused.err
    assert "2 waiting for an answer" in cli.main("list").out


@pytest.mark.slow
@needs_posix
def test_a_terminal_asks_before_the_rest_is_cancelled_when_something_has_had_its_effect(
    cli: Cli, terminal: Open
) -> None:
    cli.set_risk("erase", "read")
    cli.run_to_question(ERASE, CONFIRM)
    for typed, code, status in (("", 1, "suspended"), ("y", 0, "cancelled")):
        person = terminal("cancel", newest_thread(cli)[:8])
        person.expect("cancelling does not undo it: erase.")
        person.expect("Cancel the rest?")
        person.type(typed)
        assert person.finish() == code
        assert cli.main("show", "--json").json["status"] == status
