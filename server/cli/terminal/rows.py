"""The one question about many calls at a terminal: rows by page, some of them chosen, single ones edited."""

from collections.abc import Sequence

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.terminal.form import FaultFinder, edit_arguments
from planwarden.server.cli.terminal.lines import TerminalLine, indent_fact
from planwarden.server.cli.terminal.terminal import YES, Choice, Terminal
from planwarden.server.views.card_calls import CardCall
from planwarden.server.views.escaping import VALUE_CHARS
from planwarden.server.views.fields import name_rows, read_ranges
from planwarden.server.views.question_text import format_call

ROWS_PER_PAGE = 20


class RowTable:
    """What a person sees of the rows, and has chosen so far."""

    def __init__(self, terminal: Terminal, rows: Sequence[CardCall], find_faults: FaultFinder) -> None:
        self._terminal = terminal
        self._calls = list(rows)
        self._find_faults = find_faults
        self._pages = (len(self._calls) - 1) // ROWS_PER_PAGE + 1
        self._page = 0
        self._seen: set[int] = set()
        self._chosen = list(range(len(self._calls)))
        self._edited: set[int] = set()

    def list_choices(self, reject: Choice) -> list[Choice]:
        """Return the letters that a person can type about rows, with what they do."""
        count = len(self._calls)
        approved = f"all {count} rows" if len(self._chosen) == count else f"{len(self._chosen)} of {count} rows"
        paging = [
            Choice(("+",), "+ later rows", lambda: self.turn(1)),
            Choice(("-",), "- earlier rows", lambda: self.turn(-1)),
        ]
        return [
            Choice(YES, f"y yes, {approved}", self.approve),
            reject,
            Choice(("s",), "s choose rows", self.choose),
            Choice(("e",), "e edit a row", self.edit),
            *(paging if self._pages > 1 else []),
            Choice(("v",), "v view whole values", lambda: self.show(is_cut=False)),
        ]

    def show(self, *, is_cut: bool = True) -> None:
        """Draw the page of rows."""
        first = self._page * ROWS_PER_PAGE
        rows = range(first, min(first + ROWS_PER_PAGE, len(self._calls)))
        limit = VALUE_CHARS if is_cut else None
        for row in rows:
            note = ", edited" if row in self._edited else ""
            left_out = "" if row in self._chosen else ", does not run"
            lines = format_call(self._calls[row], limit, f"{note}{left_out}")
            self._terminal.say(*map(indent_fact, lines))
        if self._pages > 1:
            place = f"Rows {rows[0] + 1} to {rows[-1] + 1} of {len(self._calls)}"
            text = f"{place}, page {self._page + 1} of {self._pages}."
            self._terminal.say(TerminalLine((text, "dim")))
        self._seen.update(rows)

    def turn(self, step: int) -> None:
        """Go to a later or an earlier page, if there is one, and draw it."""
        self._page = min(max(self._page + step, 0), self._pages - 1)
        self.show()

    def choose(self) -> None:
        """Ask which rows run; an answer that names none leaves them as they were."""
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
        """Ask for a row and its arguments; what does not fit the tool is refused here, and nothing is changed."""
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
        """Return the approval of the chosen rows; None when the person did not mean those that were not shown."""
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
