"""`planwarden run`, `approve` and `reject` without a terminal."""

import asyncio
import io
import json
import sys

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.views.encoding import to_json
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import ManualClock, requirement
from tests.server.cli.support import ASK_FORM, ERASE, Cli, step


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

    async def read_stored() -> dict[str, JsonValue]:
        async with planwarden.Warden(cli.home) as warden:
            return to_json(await warden.get_execution(piped.json["threadId"]))

    assert piped.json == asyncio.run(read_stored())


@requirement("key:once")
def test_a_run_started_again_with_its_key_goes_on_with_the_first_one(cli: Cli) -> None:
    cli.set_risk("erase", "confirm")
    path = cli.write("plan.json", {"todoList": [step("find", "find", {"topic": "old"}), ERASE]})
    first = cli.main("run", path, "--key", "monday", "--json")
    again = cli.main("run", path, "--key", "monday", "--json", "--yes")
    after = cli.main("run", path, "--key", "monday")
    assert (first.code, again.code, after.code) == (3, 0, 0)
    assert first.json["executionId"] == again.json["executionId"] and again.json["status"] == "completed"
    assert "Key 'monday' has started this before; nothing new was started." in after.out
    assert "2 of 2 steps completed" in after.out
    assert cli.ledger == ["find old", "erase [1, 2] none"]


@requirement("rehearsal:record", "rehearsal:nothing-done")
def test_a_rehearsed_plan_shows_what_it_would_do_and_whom_it_would_ask(cli: Cli) -> None:
    path = cli.write("plan.json", {"todoList": [step("find", "find", {"topic": "old"}), ERASE]})
    shown = cli.main("run", path, "--rehearse", "--yes")
    found = cli.main("run", path, "--rehearse", "--json")
    assert (shown.code, found.code, found.json["status"]) == (0, 0, "rehearsed")
    assert "not done: would ask a person first (dangerous, needs human)" in shown.out
    assert "== rehearsed ==" in shown.out and "1 call(s) were not made, 1 would ask a person" in shown.out
    assert cli.ledger == ["find old", "find old"]
    broken = step("erase", "erase", {"ids": {"$from": "find", "pointer": "/topic"}})
    path = cli.write("plan.json", {"todoList": [step("find", "find", {"topic": "old"}), broken]})
    assert cli.main("run", path, "--rehearse").code == 1


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
    assert f"execution '{question['executionId']}'" in again.out and "runs the same plan" in again.out
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
@pytest.mark.parametrize("words", [("run", "plan.json"), ("call", "erase", "--arg", "ids=[1]")], ids=["run", "call"])
def test_yes_without_a_terminal_approves_nothing_that_needs_a_person(cli: Cli, words: tuple[str, str]) -> None:
    cli.write("plan.json", {"todoList": [ERASE]})
    command, target, *rest = words
    target = str(cli.home / target) if command == "run" else target
    result = cli.main(command, target, *rest, "--yes")
    assert (result.code, result.err, cli.ledger) == (3, "", [])
    assert "--yes without a terminal does not suffice for it" in result.out
    assert f"planwarden --home {cli.home} approve" in result.out
    assert cli.main("list", "--json").json["total"] == 1


@requirement("yes:worth")
def test_a_rejection_without_a_terminal_is_not_recorded_as_a_persons(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    thread_id = cli.main("list", "--json").json["suspensions"][0]["threadId"]
    assert cli.main("reject", suspension_id).code == 0
    shown = cli.main("show", thread_id, "--observations", "0", "--json").json
    [decided] = [seen["data"] for seen in shown["observations"] if seen["type"] == "AGENT_RESUMED"]
    assert (decided["assurance"], decided["channel"]) == ("client", "terminal")


@pytest.mark.parametrize(
    "asked", [ASK_FORM, step("wipe", "wipe"), step("lost", "lost")], ids=["form", "critical", "reconcile"]
)
def test_yes_does_not_answer_what_needs_a_person(cli: Cli, asked: JsonValue) -> None:
    result = cli.main("run", "--yes", cli.write("plan.json", {"todoList": [asked]}))
    assert result.code == 3
    assert "wipe" not in cli.ledger
    assert cli.main("list", "--json").json["total"] == 1


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


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        ("{", "not valid JSON"),
        ("[]", "not an object"),
        ('{"todoList": [{"id": "a", "description": "b", "requiredTools": ["nothing"]}]}', "'nothing'"),
        ('{"todoList": [{"id": "a", "description": "b", "status": 1, "colour": "red"}]}', "'colour'"),
    ],
)
def test_a_plan_that_cannot_run_is_one_sentence_and_exit_code_2(cli: Cli, content: str | None, expected: str) -> None:
    path = cli.home / "plan.json"
    if content is not None:
        path.write_text(content)
    result, failed = cli.main("run", str(path)), cli.main("run", str(path), "--json")
    assert (result.code, result.out) == (2, "")
    assert expected in result.err and result.err.count("\n") == 1
    assert expected in failed.json["error"]["message"]


def test_a_failed_plan_exits_with_1_and_names_the_error(cli: Cli) -> None:
    plan: JsonValue = {"todoList": [step("sum", "calculator", {"expression": "1 +"})]}
    result = cli.main("run", cli.write("plan.json", plan))
    assert result.code == 1 and "✗ sum" in result.out and "tool_error" in result.out


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_approving_without_a_terminal_is_refused_and_decides_nothing(cli: Cli, extra: tuple[str, ...]) -> None:
    suspension_id = cli.run_to_question(ERASE)
    result = cli.main("approve", suspension_id, *extra)
    assert result.code == 2
    assert "needs a terminal" in result.err and "--code and --digest" in result.err
    assert cli.main("list", "--json").json["total"] == 1
    assert cli.ledger == []


def test_rejecting_needs_no_terminal_and_skips_what_was_covered(cli: Cli) -> None:
    ask = step("ask", "displayConfirmation", {"action": "Erase?"}, confirms=["erase"])
    suspension_id = cli.run_to_question(ask, ERASE)
    result = cli.main("reject", suspension_id, "--reason", "not today", "--json")
    assert result.code == 0
    assert result.json["status"] == "rejected"
    assert [found["status"] for found in result.json["steps"]] == ["rejected", "skipped"]
    assert '"not today"' in result.err
    assert cli.ledger == []


def test_repeating_a_rejection_returns_the_first_one_and_a_different_answer_is_refused(cli: Cli) -> None:
    suspension_id = cli.run_to_question(ERASE)
    first = cli.main("reject", suspension_id, "--json")
    again = cli.main("reject", suspension_id, "--json")
    assert (again.code, again.json) == (0, first.json)
    other = cli.main("approve", suspension_id, "--json")
    assert (other.code, other.json["error"]["code"]) == (1, "already_decided")


def test_approving_a_question_to_the_calling_model_is_refused(cli: Cli) -> None:
    async def ask() -> str:
        async with planwarden.Warden(cli.home) as warden:
            execution = await warden.execute_plan({"todoList": [{"id": "think", "description": "think"}]})
            return execution.suspensions[0].suspension_id

    result = cli.main("approve", asyncio.run(ask()))
    assert result.code == 2
    assert "it waits for the calling model" in result.err


def test_a_question_past_its_deadline_times_out(cli: Cli) -> None:
    asked = step("ask", "displayConfirmation", {"action": "Erase?", "timeoutSeconds": 60}, confirms=["erase"])

    async def ask_long_ago() -> str:
        store = SqliteStore.open(cli.home / "planwarden.db", clock=ManualClock(1_700_000_000.0))
        async with planwarden.Warden(cli.home, store=store) as warden:
            execution = await warden.execute_plan({"todoList": [asked, ERASE]})
        await store.close()
        return execution.suspensions[0].suspension_id

    suspension_id = asyncio.run(ask_long_ago())
    result, again = cli.main("approve", suspension_id, "--json"), cli.main("approve", suspension_id)
    assert (result.code, result.json["status"]) == (1, "rejected")
    assert "The time to answer has passed." in result.err and "nobody answered in time: reject" in result.err
    assert again.code == 1 and "was timed out before" in again.err
    assert cli.ledger == []


def test_a_wait_is_not_a_question_for_a_person(cli: Cli) -> None:
    async def wait() -> str:
        async with planwarden.Warden(cli.home) as warden:
            execution = await warden.execute_plan({"todoList": [step("w", "wait", {"seconds": 3600})]})
            state = await warden.service.engine.find(execution.execution_id)
            return next(iter(state.suspensions))

    result = cli.main("approve", asyncio.run(wait()))
    assert result.code == 2
    assert "waits for the clock" in result.err


def test_an_unknown_suspension_is_refused(cli: Cli) -> None:
    for verb in ("approve", "reject"):
        result = cli.main(verb, "nothing")
        assert (result.code, result.out) == (2, "")
        assert "there is no suspension 'nothing'" in result.err


def test_text_from_a_plan_cannot_draw_on_the_screen(cli: Cli) -> None:
    hostile = "Delete\x1b[2J\u202eeverything\nRisk: read"
    result = cli.main(
        "run", cli.write("plan.json", {"todoList": [step("ask", "displayConfirmation", {"action": hostile})]})
    )
    shown = cli.main("show", str(cli.main("list", "--json").json["suspensions"][0]["threadId"]))
    for out in (result.out, shown.out):
        assert "\x1b" not in out and "\u202e" not in out
        assert "\nRisk: read" not in out
