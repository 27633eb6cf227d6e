"""What a person does in a real host when planwarden asks: fill in the form that the host draws, or open the page.

Each scene asserts that no call behind the question ran before the person decided, and that the audit records who
decided. It calls `capture` whenever the screen shows something of interest.
"""

from collections.abc import Callable
from typing import Any

from tests.clients.interactive import (
    CLAUDE_CODE_HOST,
    CLOSE,
    CODEX_HOST,
    CONFIRM,
    LETTER,
    REMIND,
    Turn,
    run_with_person,
)
from tests.clients.stage import Call, Stage
from tests.server.cli.support import Cli
from tests.support.screen import Screen

Capture = Callable[[str, Screen], None]
"""Called with the name of a picture and the screen that shows it."""

Scene = Callable[[Stage, Capture], None]

FOUND, SENT, CLOSED = "found", f"reminded 3: {LETTER}", "closed 3"
CUSTOMERS = 'customers=["Acme Ltd", "Borealis", "Cobalt & Sons"]'
TOOL_FORM = (
    "Run this call? send_reminders (risk: confirm)",
    CUSTOMERS,
    f'text="{LETTER}"',
    "The agent says (unverified): Remind all of them",
)
CONFIRMATION = (
    'Confirm? displayConfirmation (risk: confirm); action="Remind these three?"',
    'covers 1: send_reminders(customers=["Acme Ltd", "Borealis", "Cobalt &',
    f'| Sons"], text="{LETTER}")',
    "The agent says (unverified): the same as action",
)
NARROW = 80
"""Columns of a terminal that must still show these lines completely."""


def form_in_claude_code(stage: Stage, capture: Capture) -> None:
    """The form appears by itself with all facts; the person fills it in with keys, and the plan continues."""
    turn = Turn(
        "Remind the customers whose invoices are overdue. Ask me before anything is sent.",
        [("execute_plan", {"plan": REMIND})],
        lambda: "The reminders are out." if SENT in stage.ledger else "The plan runs; you are asked before it sends.",
    )

    def person(screen: Screen) -> None:
        screen.paste(turn.prompt)
        _read_form(screen, TOOL_FORM)
        assert stage.ledger == [FOUND]
        capture("host-claude-code-form", screen)
        _approve_in_claude_code(screen, "down", "down")
        screen.expect("The reminders are out.")
        screen.settle()
        capture("host-claude-code-approved", screen)

    run_with_person(CLAUDE_CODE_HOST, stage, [turn], person)
    assert stage.ledger == [FOUND, SENT]
    assert decided_by(stage) == (True, "client")


def confirmation_in_claude_code(stage: Stage, capture: Capture) -> None:
    """Also a narrow terminal shows every call that the decision releases, and no call is asked about again."""
    turn = Turn(
        "Remind the customers whose invoices are overdue, but let me see them first.",
        [("execute_plan", {"plan": CONFIRM})],
        lambda: "The reminders are out." if SENT in stage.ledger else "The plan runs; you are asked before it sends.",
    )

    def person(screen: Screen) -> None:
        screen.paste(turn.prompt)
        _read_form(screen, CONFIRMATION)
        assert stage.ledger == [FOUND]
        capture("host-claude-code-confirmation", screen)
        _approve_in_claude_code(screen, "down", "down")
        screen.expect("The reminders are out.")

    run_with_person(CLAUDE_CODE_HOST, stage, [turn], person, columns=NARROW)
    assert stage.ledger == [FOUND, SENT]
    assert decided_by(stage) == (True, "client")


def page_in_claude_code(stage: Stage, capture: Capture) -> None:
    """The host offers the page of a dangerous call by itself; continuing without a decision decides nothing."""
    turn = Turn(
        "Close the accounts of everybody who is overdue.",
        [("execute_plan", {"plan": CLOSE})],
        lambda: "The accounts are closed." if CLOSED in stage.ledger else "The plan runs.",
    )

    def person(screen: Screen) -> None:
        screen.paste(turn.prompt)
        screen.expect("wants to open a URL")
        for fact in ("Run this call? close_accounts (risk: dangerous)", CUSTOMERS, "accepting here only opens it."):
            screen.expect(fact)
        screen.expect("/inbox/suspensions/")
        screen.settle()
        capture("host-claude-code-link", screen)
        [suspension_id] = stage.linked_questions
        screen.press("right", "enter")
        screen.wait_until(lambda: stage.update_count > 0, "the host did not say that the page was opened")
        assert stage.ledger == [FOUND]
        stage.approve(suspension_id)
        screen.expect("The accounts are closed.")

    run_with_person(CLAUDE_CODE_HOST, stage, [turn], person)
    assert stage.ledger == [FOUND, CLOSED]
    assert decided_by(stage) == (True, "human")


def form_in_codex(stage: Stage, capture: Capture) -> None:
    """The host first asks about its own tool call; then it shows our form, field by field."""
    turn = Turn(
        "Remind the customers whose invoices are overdue. Ask me before anything is sent.",
        [("execute_plan", {"plan": REMIND}), lambda: build_resume_call(stage)],
        lambda: "The reminders are out." if SENT in stage.ledger else "It waits for your decision.",
    )

    def person(screen: Screen) -> None:
        screen.paste(turn.prompt)
        screen.expect('run tool "resume_execution"?')
        screen.press("enter")
        for fact in TOOL_FORM:
            screen.expect(fact)
        screen.press("next")
        screen.expect("1. approve")
        screen.settle()
        assert stage.ledger == [FOUND]
        capture("host-codex-form", screen)
        screen.press("enter")
        screen.expect("Reason (optional)")
        screen.paste("all three, yes")
        screen.expect("The reminders are out.")
        screen.settle()
        capture("host-codex-approved", screen)

    run_with_person(CODEX_HOST, stage, [turn], person)
    assert stage.ledger == [FOUND, SENT]
    assert decided_by(stage) == (True, "client")


def _read_form(screen: Screen, lines: tuple[str, ...]) -> None:
    screen.expect("requests your input")
    for line in lines:
        screen.expect(line)
    screen.settle()
    assert "more lines" not in screen.text, screen.text


def _approve_in_claude_code(screen: Screen, *to_accept: str) -> None:
    screen.press("right", "enter")
    screen.expect("Decision: approve")
    screen.press(*to_accept, "enter")


def read_question(stage: Stage) -> dict[str, Any]:
    """Returns the open question as the model of the host received it."""
    answers = [*stage.results_of("execute_plan"), *stage.results_of("list_suspensions")]
    [question] = answers[-1]["suspensions"]
    # An execution's answer has the thread once, beside its questions.
    return {"threadId": answers[-1].get("threadId"), **question}


def build_resume_call(stage: Stage) -> Call:
    """Returns a call in which the model claims an approval."""
    question = read_question(stage)
    place = {"threadId": question["threadId"], "suspensionId": question["suspensionId"]}
    return "resume_execution", {**place, "decision": {"approved": True}}


def decided_by(stage: Stage) -> tuple[bool, str]:
    """Returns the verdict and the assurance of the one decision in the audit."""
    rows = Cli(stage.home).spawn("audit", "show", "--json").json["rows"]
    [facts] = [row["facts"] for row in rows if row["kind"] == "decided"]
    return facts["approved"], facts["assurance"]


SCENES: tuple[Scene, ...] = (
    form_in_claude_code,
    confirmation_in_claude_code,
    page_in_claude_code,
    form_in_codex,
)
