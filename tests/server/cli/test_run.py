"""`run`, `run-goal`, `check`, `retry` and `cancel`: what they print, ask and exit with, and what `--yes` is worth."""

import io
import json
import sys

import pytest
from pydantic import JsonValue

from tests.kit import Execution, Warden, requirement
from tests.server.cli.support import ASK_FORM, ERASE, Cli, Open, at_terminal, needs_terminal, step


def test_a_plan_that_needs_nobody_runs_to_its_end_and_json_is_one_document_equal_to_the_wire(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan: JsonValue = {"todoList": [step("find", "find", {"topic": "old"}), step("rest", "wait", {"seconds": 0.01})]}
    result = cli.main("run", cli.write("plan.json", plan))
    assert (result.code, result.err) == (0, "")
    assert 'find(topic="old") → ids: [1, 2, 3]' in result.out
    assert "✓ 2 of 2 steps completed · 1 tool call" in result.out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(plan).encode())))
    piped = cli.main("run", "-", "--json")
    assert piped.code == 0 and "find" in piped.err and cli.ledger == ["find old"] * 2

    assert piped.json == cli.ask(lambda warden: warden.get_execution(piped.json["threadId"]))


@requirement("plan:forecast")
def test_a_checked_plan_shows_whom_it_will_ask_and_runs_nothing(cli: Cli) -> None:
    bound = step("more", "erase", {"ids": {"$from": "find", "pointer": "/ids"}})
    path = cli.write("plan.json", {"todoList": [step("find", "find", {"topic": "old"}), ERASE, bound]})
    shown, found = cli.main("check", path), cli.main("check", path, "--json")
    assert (shown.code, found.code) == (0, 0)
    assert "erase will ask a person, in the inbox or at a terminal: calls of this tool are dangerous" in shown.out
    assert "only the run will know: erase takes values of find; its risk is dangerous" in shown.out
    assert "flowchart TD" in shown.out and found.json["graph"].startswith("flowchart TD")
    assert [asking["stepId"] for asking in found.json["asks"]] == ["erase"]
    assert cli.main("check", cli.write("bad.json", {"todoList": [step("a", "eraze", {})]})).code == 2
    assert cli.ledger == [] and not (cli.home / "planwarden.db").exists()


@requirement("key:warning")
def test_an_open_question_is_printed_with_the_commands_that_can_answer_it(cli: Cli) -> None:
    result = cli.main("run", cli.write("plan.json", {"todoList": [ERASE]}))
    [question] = cli.main("list", "--json").json["suspensions"]
    assert result.code == 3
    assert f"planwarden --home {cli.home} approve {question['suspensionId'][:8]}" in result.out
    again = cli.main("run", str(cli.home / "plan.json"))
    assert f"execution '{question['executionId'][:8]}' (thread '{question['threadId'][:8]}')" in again.out
    assert "runs the same plan" in again.out
    critical = cli.main("run", cli.write("plan.json", {"todoList": [step("wipe", "wipe")]}))
    assert f"planwarden --home {cli.home} inbox\n" in critical.out and f"{cli.home} approve" not in critical.out
    assert critical.code == 3 and f"planwarden --home {cli.home} reject" in critical.out
    assert cli.ledger == []


def test_yes_approves_calls_and_confirmations_and_says_so_in_the_log(cli: Cli) -> None:
    cli.set_risk("erase", "confirm")
    ask = step("ask", "displayConfirmation", {"action": "Erase?"}, confirms=["erase"])
    again = step("again", "erase", {"ids": [9]})
    result = cli.main("run", "--yes", cli.write("plan.json", {"todoList": [ask, ERASE, again]}), "--json")
    assert result.code == 0
    assert cli.ledger == ["erase [1, 2] none", "erase [9] none"]
    shown = cli.main("show", result.json["threadId"], "--observations", "0", "--json").json
    decided = [seen["data"] for seen in shown["observations"] if seen["type"] == "AGENT_RESUMED"]
    assert [(found["assurance"], found["channel"]) for found in decided] == [("client", "terminal --yes")] * 2


@requirement("yes:worth")
def test_yes_without_a_terminal_approves_nothing_that_needs_a_person(cli: Cli) -> None:
    path = cli.write("plan.json", {"todoList": [ERASE]})
    for words in (("run", path), ("call", "erase", "--arg", "ids=[1]")):
        result = cli.main(*words, "--yes")
        assert (result.code, result.err, cli.ledger) == (3, "", [])
        assert "--yes without a terminal is not enough for this" in result.out
        assert f"planwarden --home {cli.home} approve" in result.out


def test_yes_answers_neither_a_form_nor_a_critical_call_nor_what_became_of_a_lost_one(cli: Cli) -> None:
    for count, asked in enumerate((ASK_FORM, step("wipe", "wipe"), step("lost", "lost")), 1):
        assert cli.main("run", "--yes", cli.write("plan.json", {"todoList": [asked]})).code == 3
        assert cli.main("list", "--json").json["total"] == count
    assert cli.ledger == ["lost"]


def test_what_needs_a_model_is_refused_before_anything_runs_and_a_scripted_one_does_it(cli: Cli) -> None:
    plan: JsonValue = {
        "todoList": [step("find", "find", {"topic": "x"}), {"id": "think", "description": "think about it"}]
    }
    path, goal = cli.write("plan.json", plan), cli.main("run-goal", "find what is old")
    refused = cli.main("run", path)
    assert refused.code == 2 and refused.err.count("\n") == 1
    assert "'think'" in refused.err and "--model scripted:FILE" in refused.err
    assert goal.code == 2 and "--model" in goal.err and cli.ledger == []
    script = cli.write("model.json", {"replies": [{"reply": {"content": "It is fine."}}]})
    done = cli.main("--model", f"scripted:{script}", "run", path)
    assert done.code == 0 and '"It is fine."' in done.out


def test_a_plan_that_cannot_run_is_one_sentence_and_exit_code_2(cli: Cli) -> None:
    path = cli.home / "plan.json"
    for content, expected in (
        (None, "No such file"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "plan.json': the JSON is nested deeper than 64 levels"),
        ("[]", "not an object"),
        ('{"todoList": [{"id": "a", "description": "b", "requiredTools": ["nothing"]}]}', "'nothing'"),
    ):
        if content is not None:
            path.write_text(content)
        result, failed = cli.main("run", str(path)), cli.main("run", str(path), "--json")
        assert (result.code, result.out) == (2, "")
        assert expected in result.err and result.err.count("\n") == 1
        assert expected in failed.json["error"]["message"]


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


def run_letter(cli: Cli, *words: str) -> str:
    """Runs the plan with a `topic` that reads like a number, rejects its last step, and returns the thread."""
    asked = cli.main("run", cli.write("letter.json", LETTER), "--input", "topic=007", *words, "--json").json
    cli.main("reject", asked["suspensions"][0]["suspensionId"])
    return str(asked["threadId"])


@requirement("retry:rest", "retry:gated", "retry:fork")
def test_retry_asks_again_runs_from_a_step_again_or_goes_on_with_another_plan(cli: Cli) -> None:
    cli.main("reject", cli.run_to_question(FIND, ERASE))
    thread_id = cli.newest_thread
    result = cli.main("retry", thread_id[:8], "--json")
    assert result.code == 3 and "not run again: find." in result.err and cli.ledger == ["find x"]
    shown = " ".join(cli.main("show", thread_id).out.split())
    assert f"(taken over from execution {result.json['retryOf'][:8]})" in shown
    cli.main("cancel", thread_id, "--yes")
    changed = cli.write("other.json", {"todoList": [FIND, step("again", "find", {"topic": "y"})]})
    done = cli.main("retry", thread_id, "--plan", changed, "--json")
    assert done.json["status"] == "completed" and cli.ledger == ["find x", "find y"]
    again = cli.main("retry", thread_id, "--from", "again", "--json")
    assert again.json["status"] == "completed" and cli.ledger == ["find x", "find y", "find y"]


@requirement("retry:refused")
def test_what_cannot_be_retried_is_refused_with_the_reason(cli: Cli) -> None:
    letter = run_letter(cli)
    done = str(cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"])
    suspension_id = cli.run_to_question(FIND, ERASE)
    waiting = cli.newest_thread
    for words, said in (
        ((done,), "is completed: nothing is left to run. fromStep"),
        ((done, "--from", "find", "--input", "topic=1"), "takes no inputs"),
        ((waiting,), f"so there is nothing to retry; `planwarden --home {cli.home} approve"),
        ((waiting,), f"`planwarden --home {cli.home} cancel {waiting[:8]}` stops it"),
        ((suspension_id,), "is the id of a question"),
        (("nothing",), "there is no thread 'nothing'"),
        (("a\udfffb",), r"there is no thread 'a\udfffb'"),
        ((letter, "--input", "note"), "--input 'note' is not NAME=VALUE"),
        ((letter, "--input", "topic=009"), "takes inputs that are different now"),
        ((letter, "--inputs", str(cli.home / "gone.json")), "cannot read the inputs"),
        ((letter, "--inputs", cli.write("list.json", [])), "are not an object"),
        ((letter, "--plan", cli.write("empty.json", {"todoList": []})), "has no steps"),
    ):
        refused = cli.main("retry", *words)
        assert refused.code == 2 and said in refused.err, (words, refused.err)
        assert "cancel_execution" not in refused.err
    assert cli.ledger == ["find 007", "find x", "find x"]


@needs_terminal
def test_a_run_whose_process_was_killed_is_cancelled_at_once_and_goes_on_by_a_retry(cli: Cli) -> None:
    with (cli.home / "tools.py").open("a") as tools:
        tools.write(DIE)
    killed = cli.spawn("run", cli.write("plan.json", {"todoList": [FIND, step("send", "die"), ERASE]}))
    assert killed.code == -9
    thread_id = cli.newest_thread
    refused = cli.main("retry", thread_id)
    assert refused.code == 2 and f"cancel {thread_id[:8]}` stops it, then retry goes on" in refused.err
    cancelled = cli.main("cancel", thread_id[:8], "--reason", "not today")
    assert cancelled.code == 0 and "Nothing waits" in cli.main("list").out
    assert "Completed, and not undone: find." in cancelled.out and "Not completed: send, erase." in cancelled.out
    assert "Nobody knows whether a call happened: send. A retry asks first." in cancelled.out
    assert (cli.main("cancel", thread_id).code, cli.main("show", "--json").json["status"]) == (0, "cancelled")
    assert cli.main("show", "--step", "erase").out.splitlines()[0] in cli.main("show").out.splitlines()
    again = cli.main("retry", thread_id, "--json")
    assert again.code == 3 and [question["kind"] for question in again.json["suspensions"]] == ["reconcile"]
    assert cli.ledger == ["find x"]


def test_without_an_id_nothing_is_cancelled_and_everything_unfinished_is_listed(cli: Cli) -> None:
    nothing = cli.main("cancel")
    assert nothing.code == 2 and "nothing to cancel" in nothing.err
    suspension_id = cli.run_to_question(CONFIRM, ERASE)
    first = cli.newest_thread
    finished = cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"]
    result, listed = cli.main("cancel"), cli.main("cancel", "--json")
    assert (result.code, listed.code) == (2, 2)
    assert first[:8] in result.out and finished[:8] not in result.out
    assert f"planwarden --home {cli.home} cancel THREAD" in result.err
    assert listed.json["error"]["details"]["threads"] == [first]
    for wrong_id, code, said in (
        (finished, 1, ""),
        (suspension_id, 2, "is the id of a question, and this command wants a thread"),
        ("nothing", 2, f"planwarden --home {cli.home} cancel` lists"),
    ):
        refused = cli.main("cancel", wrong_id)
        assert refused.code == code and said in refused.err
    assert "1 waiting for an answer" in cli.main("list").out


def test_an_unfinished_run_is_listed_to_be_cancelled_however_many_newer_runs_have_ended(cli: Cli) -> None:
    async def start(warden: Warden) -> Execution:
        waiting = await warden.execute_plan({"todoList": [step("rest", "wait", {"seconds": 9_000})]}, wait_seconds=0)
        for _ in range(101):
            await warden.execute_plan({"todoList": [step("find", "find", {"topic": "x"})]})
        return waiting

    thread_id = str(cli.ask(start)["threadId"])
    result = cli.main("cancel", "--json")
    assert result.json["error"]["details"]["threads"] == [thread_id], result


@at_terminal
def test_a_terminal_asks_before_the_rest_is_cancelled_if_something_had_its_effect(cli: Cli, terminal: Open) -> None:
    cli.set_risk("erase", "read")
    cli.run_to_question(ERASE, CONFIRM)
    for typed, code, status in (("", 1, "suspended"), ("y", 0, "cancelled")):
        person = terminal("cancel", cli.newest_thread[:8])
        shown = ("cancelling does not undo it: erase.", "Cancel the rest?")
        assert person.play(*shown, f"> {typed}") == code
        assert cli.main("show", "--json").json["status"] == status
