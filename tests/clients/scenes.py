"""What a person does in a real host when planwarden asks: the form that a host draws, filled in; the page that it opens.

Each scene asserts that nothing behind the question was done before the person decided, and that the record says who did.
`look` is called whenever there is something to see.
"""

from collections.abc import Callable
from typing import Any

from tests.clients.interactive import CLAUDE_CODE_SEAT, CLOSE, CODEX_SEAT, CONFIRM, LETTER, REMIND, Turn, sit_down
from tests.clients.stage import Call, Stage
from tests.server.cli.support import Cli
from tests.support.screen import Screen

Look = Callable[[str, Screen], None]
"""A name for what is on the screen now, and the screen."""

Scene = Callable[[Stage, Look], None]

FOUND, SENT, CLOSED = "found", f"reminded 3: {LETTER}", "closed 3"
CUSTOMERS = 'customers=["Acme Ltd", "Borealis", "Cobalt & Sons"]'
TOOL_FORM = (
    "Run this call? send_reminders (risk: confirm)",
    CUSTOMERS,
    f'text="{LETTER}"',
    "The agent says (unverified): Run send_reminders? Remind all of them",
)
CONFIRMATION = (
    "Confirm? displayConfirmation (risk: confirm); action=(said below); covers",
    f"| 1: send_reminders({CUSTOMERS},",
    f'| text="{LETTER}")',
    "The agent says (unverified): Remind these three?",
)
NARROW = 80
"""Columns of the terminal of which the last of these lines must not be cut."""


def form_in_claude_code(stage: Stage, look: Look) -> None:
    """The form appears by itself with all of its facts, is filled in with keys, and the plan goes on."""
    turn = Turn(
        "Remind the customers whose invoices are overdue. Ask me before anything is sent.",
        [("execute_plan", {"plan": REMIND})],
        lambda: "The reminders are out." if SENT in stage.ledger else "The plan runs; you are asked before it sends.",
    )

    def person(screen: Screen) -> None:
        screen.say(turn.prompt)
        _read_form(screen, TOOL_FORM)
        assert stage.ledger == [FOUND]
        look("host-claude-code-form", screen)
        _approve_in_claude_code(screen, "down", "down")
        screen.expect("The reminders are out.")
        screen.settle()
        look("host-claude-code-approved", screen)

    sit_down(CLAUDE_CODE_SEAT, stage, [turn], person)
    assert stage.ledger == [FOUND, SENT]
    assert decided_by(stage) == (True, "client")


def confirmation_in_claude_code(stage: Stage, look: Look) -> None:
    """On a narrow terminal too, everything that one decision releases stands there, and it is not asked about again."""
    turn = Turn(
        "Remind the customers whose invoices are overdue, but let me see them first.",
        [("execute_plan", {"plan": CONFIRM})],
        lambda: "The reminders are out." if SENT in stage.ledger else "The plan runs; you are asked before it sends.",
    )

    def person(screen: Screen) -> None:
        screen.say(turn.prompt)
        _read_form(screen, CONFIRMATION)
        assert stage.ledger == [FOUND]
        look("host-claude-code-confirmation", screen)
        _approve_in_claude_code(screen, "down", "down")
        screen.expect("The reminders are out.")

    sit_down(CLAUDE_CODE_SEAT, stage, [turn], person, columns=NARROW)
    assert stage.ledger == [FOUND, SENT]
    assert decided_by(stage) == (True, "client")


def page_in_claude_code(stage: Stage, look: Look) -> None:
    """The page of a dangerous call is offered by itself, and going on without a decision there decides nothing."""
    turn = Turn(
        "Close the accounts of everybody who is overdue.",
        [("execute_plan", {"plan": CLOSE})],
        lambda: "The accounts are closed." if CLOSED in stage.ledger else "The plan runs.",
    )

    def person(screen: Screen) -> None:
        screen.say(turn.prompt)
        screen.expect("wants to open a URL")
        for fact in ("Run this call? close_accounts (risk: dangerous)", CUSTOMERS, "accepting here only opens it."):
            screen.expect(fact)
        screen.expect("/inbox/suspensions/")
        screen.settle()
        look("host-claude-code-link", screen)
        [suspension_id] = stage.linked
        screen.press("right", "enter")
        screen.until(lambda: stage.updates > 0, "the host did not say that the page was opened")
        assert stage.ledger == [FOUND]
        stage.approve(suspension_id)
        screen.expect("The accounts are closed.")

    sit_down(CLAUDE_CODE_SEAT, stage, [turn], person)
    assert stage.ledger == [FOUND, CLOSED]
    assert decided_by(stage) == (True, "human")


def form_in_codex(stage: Stage, look: Look) -> None:
    """The host first asks for its own tool call; then comes our form, field by field, which is another question."""
    turn = Turn(
        "Remind the customers whose invoices are overdue. Ask me before anything is sent.",
        [("execute_plan", {"plan": REMIND}), lambda: resuming(stage)],
        lambda: "The reminders are out." if SENT in stage.ledger else "It waits for your decision.",
    )

    def person(screen: Screen) -> None:
        screen.say(turn.prompt)
        screen.expect('run tool "resume_execution"?')
        screen.press("enter")
        for fact in TOOL_FORM:
            screen.expect(fact)
        screen.press("next")
        screen.expect("1. approve")
        screen.settle()
        assert stage.ledger == [FOUND]
        look("host-codex-form", screen)
        screen.press("enter")
        screen.expect("Reason (optional)")
        screen.say("all three, yes")
        screen.expect("The reminders are out.")
        screen.settle()
        look("host-codex-approved", screen)

    sit_down(CODEX_SEAT, stage, [turn], person)
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


def asked(stage: Stage) -> dict[str, Any]:
    """The open question, as the host's model heard of it."""
    heard = [*stage.called("execute_plan"), *stage.called("list_suspensions")]
    [question] = heard[-1]["suspensions"]
    return question


def resuming(stage: Stage) -> Call:
    """The model claims that it is approved."""
    question = asked(stage)
    place = {"threadId": question["threadId"], "suspensionId": question["suspensionId"]}
    return "resume_execution", {**place, "decision": {"approved": True}}


def decided_by(stage: Stage) -> tuple[bool, str]:
    """What the one decision of the record says: approved or not, and its assurance."""
    rows = Cli(stage.home).spawn("audit", "show", "--json").json["rows"]
    [facts] = [row["facts"] for row in rows if row["kind"] == "decided"]
    return facts["approved"], facts["assurance"]


SCENES: tuple[Scene, ...] = (
    form_in_claude_code,
    confirmation_in_claude_code,
    page_in_claude_code,
    form_in_codex,
)
