"""A question in the terminal: what planwarden found, the facts, what the agent says, then the prompt.

Nobody approves by accident: only a typed `y`, `yes` or, for a plan, `c` approves, and an empty line leaves the question
open. The decision is sent with the digest of the shown question. If the question has changed, the decision is refused.
"""

import json
from collections.abc import Sequence

from msgspec.structs import replace

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import count_of
from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.terminal.form import FaultFinder, ask_for_json, edit_arguments, edit_json, fill_in
from planwarden.server.cli.terminal.lines import Style, TerminalLine, indent_fact
from planwarden.server.cli.terminal.terminal import NO, YES, Choice, Terminal
from planwarden.server.views.card import Card
from planwarden.server.views.card_calls import CardCall
from planwarden.server.views.escaping import VALUE_CHARS, ValueView, escape_text, format_value, shorten_id
from planwarden.server.views.fields import name_rows, read_ranges
from planwarden.server.views.question_text import format_call, format_facts, is_whole
from planwarden.server.views.status_words import DECIDERS

MIN_DIGEST_CHARS = 12
"""How many characters of the digest identify a question. They are shown only with the whole question."""

_RISK_STYLES: dict[str | None, Style] = {"dangerous": "bad", "critical": "bad"}
ROWS_PER_PAGE = 20


def show(terminal: Terminal, card: Card, *, is_shortened: bool = True, is_paged: bool = False) -> None:
    """Draw the question in a frame. `is_shortened` shortens long values, which a person can ask to view whole.

    With `is_paged`, leave out the rows of a question about many calls: `ask` draws them page by page.
    """
    facts = format_facts(replace(card, rows=()) if is_paged else card, limit=VALUE_CHARS if is_shortened else None)
    question = card.question
    lines = [TerminalLine((card.where, "dim"))] if card.where else []
    lines += [TerminalLine(("planwarden found: ", "warn"), sentence, mark="note") for sentence in card.findings]
    lines += map(indent_fact, facts)
    if question.needs is not None:
        lines.append(TerminalLine(f"Needs: {DECIDERS[question.needs]}"))
    if not is_shortened:
        lines.append(TerminalLine((f"Digest: {question.digest[:MIN_DIGEST_CHARS]}", "dim")))
    if card.words:
        words = card.words if is_shortened else card.whole_words
        lines += [TerminalLine((f"{card.label}:", "bold")), TerminalLine((words, "dim"), indent=1)]
    style = _RISK_STYLES.get(question.risk, "warn")
    terminal.panel(f"{card.heading} {shorten_id(question.suspension_id)}", lines, style)


def ask(terminal: Terminal, card: Card, find_faults: FaultFinder) -> Decision | None:
    """Ask the person, and return the decision that they typed; None if the question stays open."""
    whole = Choice(("v",), "v view all", lambda: _show_whole(terminal, card))
    viewing = [] if is_whole(card) else [whole]
    match card.answer_kind:
        case "rows":
            rows = RowTable(terminal, card.rows, find_faults)
            rows.show()
            return terminal.choose("Approve?", rows.list_choices)
        case "yes" | "plan":
            return _ask_for_approval(terminal, card, find_faults, viewing)
        case "reconcile" | "form":
            if viewing:
                _show_whole(terminal, card)
            is_form = card.answer_kind == "form"
            return _ask_for_form(terminal, card.question.form or {}) if is_form else _ask_what_happened(terminal)


def _ask_for_approval(
    terminal: Terminal, card: Card, find_faults: FaultFinder, viewing: Sequence[Choice]
) -> Decision | None:
    """Ask for approval of a call, a plan or a confirmation. The person may first edit a plan, or a call if allowed."""
    call, plan = card.call, card.plan
    edits: list[dict[str, JsonValue]] = []

    def approve() -> Decision:
        if plan is None:
            return Decision(approved=True, modified_args=edits[-1] if edits else None)
        return Decision(approved=True, content={"plan": edits[-1]} if edits else None)

    def cover() -> Decision | None:
        if not edits:
            return Decision(approved=True, content={"cover": True})
        terminal.warn("An edited plan is approved without covering calls: y approves it.")
        return None

    def edit() -> None:
        changed = None
        if plan is not None:
            changed = _edit_plan(terminal, edits[-1] if edits else plan)
        elif call is not None:
            arguments = edits[-1] if edits else call.values
            changed = edit_arguments(terminal, "The call", call.tool.name, arguments, find_faults)
        edits.extend([changed] if changed is not None else [])

    covering = Choice(("c",), f"c yes, and the {count_of(len(card.covered), 'call')} that it can cover", cover)
    editing = Choice(("e",), f"e edit {'the arguments' if plan is None else 'the plan'}", edit)
    choices = [
        Choice(YES, "y yes", approve),
        *([covering] if plan is not None and card.covered else []),
        _build_reject_choice(terminal),
        *([editing] if plan is not None or card.may_edit else []),
        *viewing,
    ]
    return terminal.choose("Approve?" if plan is None else "Start it?", lambda: choices)


def _edit_plan(terminal: Terminal, plan: dict[str, JsonValue]) -> dict[str, JsonValue] | None:
    """Return the edited plan; None if it did not change or is not an object."""
    edited = edit_json(terminal, plan)
    if not isinstance(edited, dict) or is_same_json(edited, plan):
        terminal.say("The plan is as it was.")
        return None
    terminal.warn("It would run as:")
    terminal.say(*ValueView(edited).lines)
    return edited


def _build_reject_choice(terminal: Terminal, keys: tuple[str, ...] = NO, label: str = "n no, reject it") -> Choice:
    def reject() -> Decision | None:
        reason = terminal.ask("Why not? (Enter: no reason given) ")
        return None if reason is None else Decision(approved=False, reason=reason[:2_000] or None)

    return Choice(keys, label, reject)


def _ask_for_form(terminal: Terminal, form: dict[str, JsonValue]) -> Decision | None:
    content = fill_in(terminal, form)
    if content is None:
        return None
    terminal.line(("Your answer: ", "bold"), escape_text(json.dumps(content, ensure_ascii=False)))
    sending = Choice(YES, "y yes", lambda: Decision(content=content))
    rejecting = _build_reject_choice(terminal, ("r", "reject"), "r reject the question")
    return terminal.choose("Send it?", lambda: [sending, rejecting])


def _ask_what_happened(terminal: Terminal) -> Decision | None:
    terminal.say(
        "y  it happened: the step continues with the result that you type",
        "n  it did not happen: the call is run again",
        "g  give up: the step fails",
    )

    def ask_for_result() -> Decision | None:
        is_usable, result = ask_for_json(terminal, "Its result as JSON (Enter: none): ")
        if not is_usable:
            return None
        return Decision(content={"happened": True} if result is None else {"happened": True, "result": result})

    choices = [
        Choice(YES, "y", ask_for_result),
        Choice(NO, "n", lambda: Decision(content={"happened": False})),
        _build_reject_choice(terminal, ("g", "give up"), "g"),
    ]
    return terminal.choose("Did it happen?", lambda: choices)


def _show_whole(terminal: Terminal, card: Card) -> None:
    calls = [("the plan", card.plan)] if card.plan is not None else []
    calls += [(call.tool.label, call.values) for call in (*filter(None, [card.call]), *card.covered, *card.rows)]
    for name, arguments in calls:
        terminal.line((name, "bold"))
        terminal.say(*ValueView(arguments).lines)
    for vote in card.votes:
        if vote.answer is not None:
            terminal.say(f"{vote.principal} answered {format_value(vote.answer.value, None)}")
    terminal.say(f"{card.label}: {card.whole_words}")


class RowTable:
    """The rows of a question about many calls, and which of them the person has seen, chosen and edited."""

    def __init__(self, terminal: Terminal, rows: Sequence[CardCall], find_faults: FaultFinder) -> None:
        self._terminal = terminal
        self._calls = list(rows)
        self._find_faults = find_faults
        self._pages = (len(self._calls) - 1) // ROWS_PER_PAGE + 1
        self._page = 0
        self._seen: set[int] = set()
        self._chosen = list(range(len(self._calls)))
        self._edited: set[int] = set()

    def list_choices(self) -> list[Choice]:
        """Return what a person can type about the rows, and what each choice does."""
        count = len(self._calls)
        approved = f"all {count} rows" if len(self._chosen) == count else f"{len(self._chosen)} of {count} rows"
        paging = [
            Choice(("+",), "+ later rows", lambda: self.turn(1)),
            Choice(("-",), "- earlier rows", lambda: self.turn(-1)),
        ]
        return [
            Choice(YES, f"y yes, {approved}", self.approve),
            _build_reject_choice(self._terminal),
            Choice(("s",), "s choose rows", self.choose),
            Choice(("e",), "e edit a row", self.edit),
            *(paging if self._pages > 1 else []),
            Choice(("v",), "v view whole values", lambda: self.show(is_shortened=False)),
        ]

    def show(self, *, is_shortened: bool = True) -> None:
        """Draw the current page of rows, and remember that the person has seen them."""
        first = self._page * ROWS_PER_PAGE
        rows = range(first, min(first + ROWS_PER_PAGE, len(self._calls)))
        limit = VALUE_CHARS if is_shortened else None
        for row in rows:
            note = ", edited" if row in self._edited else ""
            left_out = "" if row in self._chosen else ", does not run"
            lines = format_call(self._calls[row], limit, f"{note}{left_out}")
            self._terminal.say(*map(indent_fact, lines))
        if self._pages > 1:
            shown_rows = f"Rows {rows[0] + 1} to {rows[-1] + 1} of {len(self._calls)}"
            self._terminal.line((f"{shown_rows}, page {self._page + 1} of {self._pages}.", "dim"))
        self._seen.update(rows)

    def turn(self, step: int) -> None:
        """Move `step` pages forward, or back if `step` is negative, but not past either end, and draw the page."""
        self._page = min(max(self._page + step, 0), self._pages - 1)
        self.show()

    def choose(self) -> None:
        """Ask which rows run; an answer that does not name rows changes nothing."""
        typed = self._terminal.ask("Rows to approve, such as 1,3,6-10 (Enter: as they are): ")
        if not typed:
            return
        rows = read_ranges(typed, len(self._calls))
        if rows is None:
            self._terminal.warn(f"Name rows from 1 to {len(self._calls)}.")
            return
        self._chosen = rows
        self._terminal.say(f"{name_rows(rows).capitalize()} would run, and no others.")

    def edit(self) -> None:
        """Ask for a row and its new arguments. Arguments that do not fit the tool change nothing."""
        typed = read_ranges(self._terminal.ask(f"Row to edit, 1 to {len(self._calls)}: ") or "", len(self._calls))
        if typed is None or len(typed) != 1:
            self._terminal.warn(f"Name one row from 1 to {len(self._calls)}.")
            return
        [row] = typed
        call = self._calls[row]
        edited = edit_arguments(self._terminal, f"Row {row + 1}", call.tool.name, call.values, self._find_faults)
        if edited is not None:
            self._calls[row] = call.edit(edited)
            self._edited.add(row)
            self._seen.add(row)

    def approve(self) -> Decision | None:
        """Return the approval of the chosen rows; None if some were not shown and the person does not confirm them."""
        unseen = [row for row in self._chosen if row not in self._seen]
        if unseen:
            subject = f"{name_rows(unseen).capitalize()} {'was' if len(unseen) == 1 else 'were'}"
            typed = self._terminal.ask(f"{subject} not on the screen. Type all to approve them too: ")
            if (typed or "").lower() != "all":
                return None
        edits: dict[str, JsonValue] = {str(row): self._calls[row].values for row in self._chosen if row in self._edited}
        is_all = len(self._chosen) == len(self._calls)
        content: JsonValue = None if is_all else {"items": list[JsonValue](self._chosen)}
        return Decision(approved=True, content=content, modified_args=edits or None)
