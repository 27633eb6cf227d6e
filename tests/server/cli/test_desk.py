"""Deciding with somebody at the keyboard, in this process: dialogues, late answers, interrupted executions."""

import asyncio
import io
import json

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.agent.core.state import ExecutionState
from planwarden.server.cli.commands.run import CliSession, approve, conclude, run_plan
from planwarden.server.cli.home import CliHome, exit_code
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.store import SqliteStore
from tests.server.cli.support import ASK_FORM, ERASE, Cli, step

CONFIRM = step("ask", "displayConfirmation", {"action": "Erase them?"}, confirms=["erase"])


class Seat(Terminal):
    """A terminal on which these lines are typed, whatever is asked."""

    def __init__(self, *typed: str) -> None:
        self.paper = io.StringIO()
        super().__init__(self.paper, io.StringIO("".join(f"{line}\n" for line in typed)))

    @property
    def can_ask(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        return self.paper.getvalue()


def run(cli: Cli, seat: Seat, *steps: JsonValue) -> ExecutionState:
    desk = CliSession(CliHome.load(cli.home, None), seat)
    execution = run_plan(desk, {"todoList": list(steps)})
    conclude(desk, execution)
    return execution


def test_several_questions_are_asked_one_after_the_other(cli: Cli) -> None:
    """ours"""
    seat = Seat("y", "y", "n", "enough")
    first, second = {**ERASE, "dependencies": []}, step("more", "erase", {"ids": [3]}, dependencies=[])
    third = step("last", "erase", {"ids": [4]}, dependencies=["more"])
    execution = run(cli, seat, first, second, third)
    assert execution.status == "rejected"
    assert sorted(cli.ledger) == ["erase [1, 2] none", "erase [3] none"]
    assert seat.shown.count("Run this call?") == 3
    assert '"enough"' in seat.shown


def test_the_end_of_input_leaves_the_question_open(cli: Cli) -> None:
    """ours"""
    seat = Seat()
    execution = run(cli, seat, ERASE)
    assert (execution.status, exit_code(execution)) == ("suspended", 3)
    assert f"planwarden --home {cli.home} approve" in seat.shown
    assert cli.ledger == []


def test_input_that_ends_before_the_reason_rejects_nothing(cli: Cli) -> None:
    """ours"""
    assert run(cli, Seat("n"), ERASE).status == "suspended"


def test_long_arguments_can_be_seen_whole_before_deciding(cli: Cli) -> None:
    """spec: long ones are cut with size and hash"""
    note = "".join(f"{number:04}" for number in range(500))
    seat = Seat("v", "y")
    execution = run(cli, seat, step("erase", "erase", {"ids": [1], "note": note}))
    assert execution.status == "completed"
    before, _, after = seat.shown.partition("v view all")
    assert "sha256" in before and note not in before and note in after


def test_arguments_left_as_they_were_are_no_revision(cli: Cli) -> None:
    """ours"""
    seat = Seat("e", "", "e", '{"ids": [1, 2], "note": "none"}', "y")
    execution = run(cli, seat, ERASE)
    assert execution.status == "completed"
    [suspension] = execution.suspensions.values()
    assert suspension.question.revision == 1
    assert seat.shown.count("The arguments are as they were.") == 2


def test_a_form_can_be_answered_left_open_and_rejected(cli: Cli) -> None:
    """ours"""
    answers = ("2", "y", "large", "")
    left = run(cli, Seat(*answers, "what?", ""), ASK_FORM)
    rejected = run(cli, Seat(*answers, "r", "no idea"), ASK_FORM)
    answered = run(cli, Seat(*answers, "y"), ASK_FORM)
    assert [found.status for found in (left, rejected, answered)] == ["suspended", "rejected", "completed"]
    assert answered.steps["ask"].result == {
        "approved": True,
        "content": {"count": 2, "sure": True, "size": "large"},
    }


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
def test_what_happened_to_a_lost_call_is_asked(
    cli: Cli, typed: tuple[str, ...], status: str, result: JsonValue
) -> None:
    """spec: it happened: here is the result / it did not: run it / give up"""
    execution = run(cli, Seat(*typed), step("lost", "lost"))
    assert execution.status == status
    assert execution.steps["lost"].result == result


def test_an_answer_that_comes_too_late_gives_way_to_the_time_out(cli: Cli) -> None:
    """spec: time-out and approval race to one winner"""

    async def ask_long_ago() -> str:
        store = SqliteStore.open(cli.home / "planwarden.db", clock=ManualClock(1_700_000_000.0))
        asked = step("ask", "displayConfirmation", {"action": "Erase?", "timeoutSeconds": 60}, confirms=["erase"])
        async with planwarden.Warden(cli.home, store=store) as warden:
            execution = await warden.execute_plan({"todoList": [asked, ERASE]})
        await store.close()
        return execution.thread_id

    thread_id = asyncio.run(ask_long_ago())
    [question] = cli.main("list", "--json").json["suspensions"]
    seat = Seat()
    desk = CliSession(CliHome.load(cli.home, None), seat)

    async def look() -> ExecutionState:
        async with desk.home.looking() as service:
            return await service.newest(thread_id, "local")

    execution = asyncio.run(look())
    suspension = desk.view(execution, execution.suspensions[question["suspensionId"]])
    ended = desk.answer(suspension, Decision(approved=True))
    assert ended.status == "rejected"
    assert "has passed" in seat.shown
    assert cli.ledger == []


def test_an_execution_that_was_interrupted_after_its_approval_goes_on_when_it_is_approved_again(cli: Cli) -> None:
    """spec: the same decision again after a failure while resuming continues"""
    suspension_id = cli.suspended(CONFIRM, ERASE, step("hang", "hang"))
    thread_id = str(cli.main("list", "--json").json["suspensions"][0]["threadId"])

    async def interrupted() -> None:
        async with planwarden.Warden(cli.home) as warden:
            await warden.resume_execution(thread_id, suspension_id, Decision(approved=True), wait_seconds=0.2)

    asyncio.run(interrupted())
    assert cli.main("show", thread_id, "--json").json["status"] == "running"
    said = cli.main("approve", suspension_id, "--json")
    assert (said.code, said.json["status"]) == (0, "completed")
    assert "It was approved before" in said.err
    assert cli.ledger == ["erase [1, 2] none"]
    again = cli.main("approve", suspension_id, "--json")
    assert (again.code, again.json) == (0, said.json)


def test_a_step_that_the_calling_model_has_to_do_is_left_to_it(cli: Cli) -> None:
    """ours"""

    async def ask() -> str:
        plan: dict[str, JsonValue] = {"todoList": [CONFIRM, ERASE, {"id": "think", "description": "think about it"}]}
        async with planwarden.Warden(cli.home) as warden:
            return (await warden.execute_plan(plan)).suspensions[0].suspension_id

    seat = Seat("y")
    desk = CliSession(CliHome.load(cli.home, None), seat)
    execution = approve(desk, asyncio.run(ask()))
    conclude(desk, execution)
    assert exit_code(execution) == 3
    assert "a model has to answer" in seat.shown and "--model scripted:FILE" in seat.shown
    assert cli.ledger == ["erase [1, 2] none"]


def test_an_execution_that_waits_long_is_left_to_a_server(cli: Cli) -> None:
    """ours: a command that answers one question does not stay for hours"""
    suspension_id = cli.suspended(CONFIRM, ERASE, step("pause", "wait", {"seconds": 7_200}))
    seat = Seat("y")
    desk = CliSession(CliHome.load(cli.home, None), seat, patience_s=60)
    execution = approve(desk, suspension_id)
    conclude(desk, execution)
    assert (execution.status, exit_code(execution)) == ("suspended", 3)
    assert "waits until" in seat.shown and "planwarden serve" in seat.shown


def test_edited_arguments_are_typed_as_one_document(cli: Cli) -> None:
    """ours"""
    seat = Seat("e", json.dumps({"ids": [9], "note": "é"}), "y")
    assert run(cli, seat, ERASE).status == "completed"
    assert cli.ledger == ["erase [9] é"]
