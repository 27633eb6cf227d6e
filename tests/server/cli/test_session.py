"""`CliSession` in this process: dialogues, late answers and interrupted executions."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.agent.core.state import ExecutionState
from planwarden.server.cli.commands.decide import approve
from planwarden.server.cli.commands.run import run_plan
from planwarden.server.cli.context import CliContext
from planwarden.server.cli.exit_codes import exit_code
from planwarden.server.cli.plan_source import GivenPlan
from planwarden.server.cli.session import CliSession
from planwarden.server.cli.terminal.editor import edit_arguments
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import ManualClock, requirement
from tests.server.cli.support import ASK_FORM, ERASE, Cli, TypedTerminal, step
from tests.support.wardens import end_at_once
from tests.tools.downstream.support import wait_until

CONFIRM = step("ask", "displayConfirmation", {"action": "Erase them?"}, confirms=["erase"])


def run(cli: Cli, terminal: TypedTerminal, *steps: JsonValue) -> ExecutionState:
    session = CliSession(CliContext.load(cli.home, None), terminal)
    execution = run_plan(session, GivenPlan({"todoList": list(steps)}))
    session.draw_outcome(execution)
    return execution


def test_several_questions_are_asked_one_after_the_other(cli: Cli) -> None:
    terminal = TypedTerminal("y", "y", "n", "enough")
    first, second = {**ERASE, "dependencies": []}, step("more", "erase", {"ids": [3]}, dependencies=[])
    third = step("last", "erase", {"ids": [4]}, dependencies=["more"])
    execution = run(cli, terminal, first, second, third)
    assert execution.status == "rejected"
    assert sorted(cli.ledger) == ["erase [1, 2] none", "erase [3] none"]
    assert terminal.shown.count("Run this call?") == 3
    assert '"enough"' in terminal.shown


def test_the_end_of_input_leaves_the_question_open(cli: Cli) -> None:
    terminal = TypedTerminal()
    execution = run(cli, terminal, ERASE)
    assert (execution.status, exit_code(execution)) == ("suspended", 3)
    assert f"planwarden --home {cli.home} approve" in terminal.shown
    assert cli.ledger == []


def test_input_that_ends_before_the_reason_rejects_nothing(cli: Cli) -> None:
    assert run(cli, TypedTerminal("n"), ERASE).status == "suspended"


@requirement("forms:whole")
def test_what_a_form_asks_stands_whole_before_its_fields(cli: Cli) -> None:
    label, action = "l" * 300 + "END", "a" * 600 + "END"
    form: JsonValue = {"type": "object", "title": label, "properties": {"n": {"type": "string", "description": label}}}
    terminal = TypedTerminal("x", "y", "v", "y")
    ask = step("ask", "requestInput", {"message": action, "form": form})
    execution = run(cli, terminal, ask, step("sure", "displayConfirmation", {"action": action}, dependencies=["ask"]))
    assert execution.status == "completed"
    before, _, after = terminal.shown.partition("v view all")
    fields = before.partition("The form says of itself")[2]
    assert label in fields.splitlines()[0] and f"n - {label}" in fields and before.count(action) >= 2
    assert action in after


def test_only_a_typed_yes_approves(cli: Cli) -> None:
    terminal = TypedTerminal("ok", "Y E S", "true", "v", "")
    assert run(cli, terminal, ERASE).status == "suspended" and cli.ledger == []
    assert terminal.shown.count("Type one of the letters") == 4


@requirement("terminal:rows")
def test_the_arguments_of_a_single_call_are_edited_field_by_field_and_a_later_look_keeps_the_edit(cli: Cli) -> None:
    terminal = TypedTerminal("e", "[7]", "edited", "e", "", "", "yes")
    assert run(cli, terminal, ERASE).status == "completed" and cli.ledger == ["erase [7] edited"]
    for said in (
        "ids (Enter: [1, 2]",
        'note (Enter: "none")',
        'The call would run with {"ids": [7], "note": "edited"}',
    ):
        assert said in terminal.shown
    assert "ids (Enter: [7]" in terminal.shown and "The call is as it was." in terminal.shown


def test_an_edit_that_only_python_takes_for_the_same_value_is_an_edit() -> None:
    edited = edit_arguments(TypedTerminal("true"), "The call", "pay", {"times": 1}, lambda name, arguments: ())
    assert edited is not None and edited["times"] is True


def test_edited_arguments_that_do_not_fit_the_tool_are_refused_at_once_and_change_nothing(cli: Cli) -> None:
    terminal = TypedTerminal("e", "[1", "e", "{", "e", '{"ids": "all"}', "")
    assert run(cli, terminal, ERASE).status == "suspended" and cli.ledger == []
    assert terminal.shown.count("not valid JSON") == 2 and "The call does not fit erase" in terminal.shown


def test_each_field_of_a_form_is_asked_again_until_it_fits(cli: Cli) -> None:
    terminal = TypedTerminal("none", "0", "3", "perhaps", "yes", "", "", "y")
    result = run(cli, terminal, ASK_FORM).steps["ask"].result
    assert result == {"approved": True, "content": {"count": 3, "sure": True, "size": "small"}}
    for said in (
        *("count - How many (integer):", "less than the minimum", "sure (y/n):", "choose an option"),
        *('size (small | large) ["small"]:', "note (string, optional):", 'Your answer: {"count": 3, "sure": true, "'),
    ):
        assert said in terminal.shown


def test_arguments_can_be_edited_in_the_editor(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor.py"
    editor.write_text("import sys; open(sys.argv[1], 'w').write('{\"ids\": [8]}')")
    monkeypatch.setenv("EDITOR", f"{sys.executable} {editor}")
    terminal = TypedTerminal("e", "y")
    assert run(cli, terminal, ERASE).status == "completed" and cli.ledger == ["erase [8] none"]
    assert 'The call would run with {"ids": [8]}' in terminal.shown


def _ask_rows(cli: Cli, count: int, *typed: str) -> tuple[ExecutionState, str]:
    items: list[JsonValue] = [*range(count)]
    terminal = TypedTerminal(*typed)
    loop: JsonValue = {**step("wipe", "erase", {"ids": [{"$from": "item"}]}), "forEach": items}
    return run(cli, terminal, loop), terminal.shown


@requirement("terminal:rows")
def test_rows_that_were_not_on_the_screen_are_not_approved_by_a_single_letter(cli: Cli) -> None:
    execution, shown = _ask_rows(cli, 45, "y", "y", "+", "-", "y", "all")
    assert execution.status == "completed" and len(cli.ledger) == 45
    first, _, rest = shown.partition("Rows 1 to 20 of 45, page 1 of 3")
    assert "row 21" not in first and "Rows 21-45 were not on the screen" in rest
    assert "Rows 21 to 40 of 45, page 2 of 3" in rest and "Rows 41-45 were not on the screen" in rest


@requirement("terminal:rows")
def test_a_row_is_edited_field_by_field_and_enter_keeps_a_value(cli: Cli) -> None:
    execution, shown = _ask_rows(cli, 2, "e", "7", "e", "1", "", "by hand", "e", "2", "[1", "s", "0", "y")
    assert execution.status == "completed" and cli.ledger == ["erase [0] by hand", "erase [1] none"]
    assert 'Row 1 would run with {"ids": [0], "note": "by hand"}' in shown and "That is not valid JSON" in shown
    assert "Name one row from 1 to 2" in shown and "Name rows from 1 to 2" in shown


def test_unchanged_arguments_make_no_revision(cli: Cli) -> None:
    terminal = TypedTerminal("e", "", "", "e", '{"ids": [1, 2], "note": "none"}', "y")
    execution = run(cli, terminal, ERASE)
    assert execution.status == "completed"
    [suspension] = execution.suspensions.values()
    assert suspension.question.revision == 1
    assert terminal.shown.count("The call is as it was.") == 2


@pytest.mark.parametrize(
    ("typed", "status", "result"),
    [
        (("y", ""), "completed", None),
        (("y", "{", "y", "[1]"), "completed", [1]),
        (("what?", "n"), "completed", "second"),
        (("g", ""), "failed", None),
        (("",), "suspended", None),
    ],
)
def test_a_call_with_an_unknown_outcome_asks_what_happened(
    cli: Cli, typed: tuple[str, ...], status: str, result: JsonValue
) -> None:
    execution = run(cli, TypedTerminal(*typed), step("lost", "lost"))
    assert execution.status == status
    assert execution.steps["lost"].result == result


def test_a_late_answer_loses_to_the_time_out(cli: Cli) -> None:
    async def ask_long_ago() -> str:
        store = SqliteStore.open(cli.home / "planwarden.db", clock=ManualClock(1_700_000_000.0))
        asked = step("ask", "displayConfirmation", {"action": "Erase?", "timeoutSeconds": 60}, confirms=["erase"])
        async with planwarden.Warden(cli.home, store=store) as warden:
            execution = await warden.execute_plan({"todoList": [asked, ERASE]})
        await store.close()
        return execution.thread_id

    thread_id = asyncio.run(ask_long_ago())
    [question] = cli.main("list", "--json").json["suspensions"]
    terminal = TypedTerminal()
    session = CliSession(CliContext.load(cli.home, None), terminal)

    async def read() -> ExecutionState:
        async with session.context.open_for_reading() as service:
            return await service.load_newest(thread_id, "local")

    execution = asyncio.run(read())
    suspension = session.build_view(execution, execution.suspensions[question["suspensionId"]])
    ended = session.answer(suspension, Decision(approved=True))
    assert ended.status == "rejected"
    assert "has passed" in terminal.shown
    assert cli.ledger == []


def test_approving_again_continues_an_execution_that_was_interrupted_after_its_approval(cli: Cli) -> None:
    suspension_id = cli.run_to_question(CONFIRM, ERASE, step("hang", "hang"))
    thread_id = str(cli.main("list", "--json").json["suspensions"][0]["threadId"])

    async def approve_and_stop() -> None:
        async with planwarden.Warden(cli.home) as warden:
            end_at_once(warden)
            await warden.resume_execution(thread_id, suspension_id, Decision(approved=True), wait_seconds=0)
            await wait_until((cli.home / "started").exists)

    asyncio.run(approve_and_stop())
    assert cli.main("show", thread_id, "--json").json["status"] == "running"
    result = cli.main("approve", suspension_id, "--json")
    assert (result.code, result.json["status"]) == (0, "completed")
    assert "It was approved before" in result.err
    assert cli.ledger == ["erase [1, 2] none"]
    again = cli.main("approve", suspension_id, "--json")
    assert (again.code, again.json) == (0, result.json)


def test_a_step_for_the_calling_model_waits_for_the_model(cli: Cli) -> None:
    async def ask() -> str:
        plan: dict[str, JsonValue] = {"todoList": [CONFIRM, ERASE, {"id": "think", "description": "think about it"}]}
        async with planwarden.Warden(cli.home) as warden:
            return (await warden.execute_plan(plan)).suspensions[0].suspension_id

    terminal = TypedTerminal("y")
    session = CliSession(CliContext.load(cli.home, None), terminal)
    execution = approve(session, asyncio.run(ask())).execution
    session.draw_outcome(execution)
    assert exit_code(execution) == 3
    assert "a model has to answer" in terminal.shown and "--model scripted:FILE" in terminal.shown
    assert cli.ledger == ["erase [1, 2] none"]


def test_a_long_wait_is_left_to_a_server(cli: Cli) -> None:
    suspension_id = cli.run_to_question(CONFIRM, ERASE, step("pause", "wait", {"seconds": 7_200}))
    terminal = TypedTerminal("y")
    session = CliSession(CliContext.load(cli.home, None), terminal, patience_s=60)
    execution = approve(session, suspension_id).execution
    session.draw_outcome(execution)
    assert (execution.status, exit_code(execution)) == ("suspended", 3)
    assert "waits until" in terminal.shown and "planwarden serve" in terminal.shown


def review(cli: Cli, *typed: str) -> tuple[ExecutionState, str]:
    """What became of a plan under review after somebody typed these lines, and what the terminal showed."""
    terminal = TypedTerminal(*typed)
    session = CliSession(CliContext.load(cli.home, None), terminal)
    steps: list[JsonValue] = [step("find", "find", {"topic": "old"}), ERASE]
    execution = run_plan(session, GivenPlan({"todoList": steps}), options={"review": "person"})
    session.draw_outcome(execution)
    return execution, terminal.shown


@requirement("plan:review")
def test_a_plan_is_edited_at_the_terminal_before_it_starts(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    edited = json.dumps({"todoList": [step("find", "find", {"topic": "new"})]})
    execution, shown = review(cli, "e", edited, "c", "y")
    assert execution.status == "completed" and cli.ledger == ["find new"]
    assert "It would run as:" in shown and "approved without covering calls" in shown
