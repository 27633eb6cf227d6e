"""`retry` goes on from the last execution of a thread, in a new process, without repeating what is completed."""

from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.cli.support import ERASE, Cli, step

FIND = step("find", "find", {"topic": "x"})


def rejected(cli: Cli) -> str:
    """Runs a plan whose second step is rejected, and returns the thread."""
    suspension_id = cli.run_to_question(FIND, ERASE)
    cli.main("reject", suspension_id)
    return str(cli.main("show", "--json").json["threadId"])


@requirement("retry:rest", "retry:gated")
def test_retry_takes_the_beginning_of_an_id_and_asks_again(cli: Cli) -> None:
    thread_id = rejected(cli)
    result = cli.main("retry", thread_id[:8], "--json")
    assert result.code == 3 and result.json["retryOf"]
    assert "not run again: find." in result.err
    [question] = result.json["suspensions"]
    assert question["kind"] == "approval"
    shown = cli.main("show", thread_id).out
    assert f"(taken over from execution {result.json['retryOf'][:8]})" in " ".join(shown.split())
    assert cli.ledger.count("find x") == 1


@requirement("retry:fork")
def test_from_names_the_step_from_which_it_runs_again(cli: Cli) -> None:
    done = cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json
    again = cli.main("retry", done["threadId"], "--from", "find", "--json")
    assert again.code == 0 and again.json["status"] == "completed" and cli.ledger == ["find x"] * 2
    wrong = cli.main("retry", done["threadId"], "--from", "send")
    assert wrong.code == 2 and "has no step 'send'; it has 'find'" in wrong.err


@requirement("retry:refused")
def test_what_cannot_be_retried_is_refused(cli: Cli) -> None:
    done = cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json
    assert "is completed; fromStep" in cli.main("retry", done["threadId"]).err
    suspension_id = cli.run_to_question(FIND, ERASE)
    waiting = cli.main("show", "--json").json["threadId"]
    busy = cli.main("retry", waiting).err
    assert f"waits for an answer, so there is nothing to retry; `planwarden --home {cli.home} approve" in busy
    assert f"`planwarden --home {cli.home} cancel {waiting[:8]}` stops it" in busy and "cancel_execution" not in busy
    assert "is the id of a question" in cli.main("retry", suspension_id).err
    assert "there is no thread 'nothing'" in cli.main("retry", "nothing").err


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


def rejected_letter(cli: Cli, *words: str) -> str:
    """Runs the plan with a `topic` that reads like a number, rejects its last step, and returns the thread."""
    asked = cli.main("run", cli.write("letter.json", LETTER), "--input", "topic=007", *words, "--json").json
    cli.main("reject", asked["suspensions"][0]["suspensionId"])
    return str(asked["threadId"])


@requirement("retry:fork")
def test_an_input_is_changed_and_the_others_stay_as_they_were(cli: Cli) -> None:
    thread_id = rejected_letter(cli, "--input", "note=first")
    again = cli.main("retry", thread_id, "--input", "note=12", "--json").json
    assert again["suspensions"][0]["toolCall"]["arguments"] == {"ids": [1], "note": "12"}
    assert cli.ledger == ["find 007"]
    cli.main("cancel", thread_id, "--yes")
    given = cli.write("inputs.json", {"topic": "008"})
    forked = cli.main("retry", thread_id, "--from", "find", "--inputs", given, "--input", "note=last", "--json").json
    assert forked["suspensions"][0]["toolCall"]["arguments"]["note"] == "last"
    assert cli.ledger == ["find 007", "find 008"]


@requirement("retry:refused")
def test_wrong_inputs_and_plans_of_a_retry_are_refused_with_the_reason(cli: Cli) -> None:
    thread_id = rejected_letter(cli)
    plain = str(cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"])
    for words, said in (
        ((thread_id, "--input", "note"), "--input 'note' is not NAME=VALUE"),
        ((thread_id, "--input", "other=1"), "other"),
        ((thread_id, "--input", "topic=009"), "takes inputs that are different now"),
        ((thread_id, "--inputs", str(cli.home / "gone.json")), "cannot read the inputs"),
        ((thread_id, "--inputs", cli.write("list.json", [])), "are not an object"),
        ((thread_id, "--plan", "nothing"), "there is no saved plan 'nothing'"),
        ((thread_id, "--plan", cli.write("empty.json", {"todoList": []})), "has no steps"),
        ((thread_id, "--key", "k" * 201), "the limit is 200"),
        ((plain, "--from", "find", "--input", "topic=1"), "takes no inputs"),
    ):
        refused = cli.main("retry", *words)
        assert refused.code == 2 and said in refused.err, (words, refused.err)
    assert cli.ledger == ["find 007", "find x"]


@requirement("retry:once")
def test_a_key_retries_once_and_is_refused_for_another_retry(cli: Cli) -> None:
    thread_id = rejected_letter(cli)
    words = ("retry", thread_id, "--input", "note=new", "--key", "monday", "--json")
    first, second = cli.main(*words), cli.main(*words)
    assert first.json["executionId"] == second.json["executionId"] and "started this before" in second.err
    # The answer stays the same when the thread has gone on since.
    cli.main("cancel", thread_id, "--yes")
    assert cli.main("retry", thread_id, "--input", "note=newer").code == 3
    assert cli.main(*words).json["executionId"] == first.json["executionId"]
    other = cli.main("retry", thread_id, "--key", "monday")
    assert other.code == 2 and "with another goal or plan" in other.err
    assert cli.ledger == ["find 007"]


@requirement("retry:fork")
def test_another_plan_goes_on_from_what_is_completed(cli: Cli) -> None:
    thread_id = rejected(cli)
    changed = cli.write("other.json", {"todoList": [FIND, step("again", "find", {"topic": "y"})]})
    done = cli.main("retry", thread_id, "--plan", changed, "--json")
    assert done.json["status"] == "completed" and cli.ledger == ["find x", "find y"]
