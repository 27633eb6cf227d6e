"""The one question about many calls at a terminal: rows by page, some of them chosen, single ones edited."""

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.terminal.editor import FaultFinder, edit_arguments
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import YES, Choice, Terminal
from planwarden.server.views.facts import VALUE_CHARS, format_call
from planwarden.server.views.row_ranges import format_ranges, read_ranges
from planwarden.server.views.suspension import Suspension

ROWS_PER_PAGE = 20


class RowTable:
    """What a person sees of the rows, and has chosen so far."""

    def __init__(self, terminal: Terminal, suspension: Suspension, find_faults: FaultFinder) -> None:
        self._terminal = terminal
        self._calls = suspension.calls
        self._find_faults = find_faults
        self._pages = (len(self._calls) - 1) // ROWS_PER_PAGE + 1
        self._page = 0
        self._seen: set[int] = set()
        self._chosen = list(range(len(self._calls)))
        self._edits: dict[int, dict[str, JsonValue]] = {}

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
        """Draws the page of rows."""
        first = self._page * ROWS_PER_PAGE
        rows = range(first, min(first + ROWS_PER_PAGE, len(self._calls)))
        limit = VALUE_CHARS if is_cut else None
        for row in rows:
            note = ", edited" if row in self._edits else ""
            left_out = "" if row in self._chosen else ", does not run"
            call = self._calls[row]
            lines = format_call(call.tool_name, f"row {row + 1}{note}{left_out}", self._arguments(row), limit)
            self._terminal.say(
                *(TerminalLine((line.strip(),), indent=(len(line) - len(line.lstrip())) // 2) for line in lines)
            )
        if self._pages > 1:
            place = f"Rows {rows[0] + 1} to {rows[-1] + 1} of {len(self._calls)}"
            text = f"{place}, page {self._page + 1} of {self._pages}."
            self._terminal.say(TerminalLine(((text, "dim"),)))
        self._seen.update(rows)

    def turn(self, step: int) -> None:
        """Goes to a later or an earlier page, if there is one, and draws it."""
        self._page = min(max(self._page + step, 0), self._pages - 1)
        self.show()

    def choose(self) -> None:
        """Asks which rows run; an answer that names none leaves them as they were."""
        typed = self._terminal.ask("Rows to approve, such as 1,3,6-10 (Enter: as they are): ")
        if not typed:
            return
        chosen = read_ranges(typed, len(self._calls))
        if chosen is None:
            self._terminal.warn(f"Name rows from 1 to {len(self._calls)}.")
            return
        self._chosen = chosen
        self._terminal.say(f"Rows {format_ranges(chosen).replace(',', ', ')} would run, and no others.")

    def edit(self) -> None:
        """Asks for a row and its arguments; what does not fit the tool is refused here, and nothing is changed."""
        typed = read_ranges(self._terminal.ask(f"Row to edit, 1 to {len(self._calls)}: ") or "", len(self._calls))
        if typed is None or len(typed) != 1:
            self._terminal.warn(f"Name one row from 1 to {len(self._calls)}.")
            return
        [row] = typed
        tool_name = self._calls[row].tool_name
        edited = edit_arguments(self._terminal, f"Row {row + 1}", tool_name, self._arguments(row), self._find_faults)
        if edited is not None:
            self._edits[row] = edited
            self._seen.add(row)

    def approve(self) -> Decision | None:
        """Returns the approval of the chosen rows; None when the person did not mean those that were not shown."""
        unseen = [row for row in self._chosen if row not in self._seen]
        if unseen:
            named = format_ranges(unseen).replace(",", ", ")
            typed = self._terminal.ask(f"Rows {named} were not on the screen. Type all to approve them too: ")
            if (typed or "").lower() != "all":
                return None
        edits: dict[str, JsonValue] = {str(row): self._edits[row] for row in self._chosen if row in self._edits}
        is_all = len(self._chosen) == len(self._calls)
        content: JsonValue = None if is_all else {"items": list[JsonValue](self._chosen)}
        return Decision(approved=True, content=content, modified_args=edits or None)

    def _arguments(self, row: int) -> dict[str, JsonValue]:
        return self._edits.get(row, self._calls[row].arguments)
