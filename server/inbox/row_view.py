"""The rows of one question as its page shows them: the exact call of each, what became of it, and inputs to edit it."""

from collections.abc import Sequence

import msgspec

from planwarden.agent.core.state import STEP_TERMINAL, Call, ExecutionState, SuspensionState
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.inbox.forms import FilledForm
from planwarden.server.inbox.question_view import ArgumentView, CallView, build_row_call, find_call
from planwarden.server.inbox.row_choice import RowChoice, list_row_fields, refill
from planwarden.server.inbox.value_view import ArgumentChange, find_changes
from planwarden.server.views.fields import Field
from planwarden.server.views.status_words import WORDS, Tone

MAX_COLUMNS = 12
"""Of a table; the rows of a tool with more arguments list them one below the other."""


class RowView(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    place: int
    """Counted from 0, as programs do."""
    call: CallView
    is_ticked: bool
    is_edited: bool
    fields: tuple[Field, ...]
    """Empty where it cannot be edited here."""
    filled: FilledForm | None
    fault: str
    end: str
    """What became of it, in words; empty while the question is open."""
    tone: Tone

    @property
    def number(self) -> int:
        """Counted from 1, as people do."""
        return self.place + 1

    @property
    def is_open(self) -> bool:
        """Its inputs are shown at once."""
        return self.filled is not None


class ArgumentColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of the rows."""

    label: str
    title: str
    origins: tuple[str, ...]
    """Where the values of all rows come from; empty where they come from different places, which each cell says."""


class EditedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The difference that a person made in one row."""

    number: int
    """Counted from 1."""
    changes: tuple[ArgumentChange, ...]


class RowsView(msgspec.Struct, frozen=True, kw_only=True):
    """A page of rows, and what was chosen on all pages."""

    rows: tuple[RowView, ...]
    page: int
    """Counted from 1, as people count."""
    pages: int
    count: int
    """Rows of all pages."""
    ticked: int
    """Ticked rows of all pages."""
    edited: int
    """Edited rows of all pages."""
    unopened: int
    """Pages that were not shown yet."""
    choice: RowChoice

    columns: "tuple[ArgumentColumn, ...]"
    """The arguments of the rows, each once; empty where a table would be too wide."""
    tools: tuple[CallView, ...]
    """One call of each tool, which says where the tool comes from."""

    @property
    def first(self) -> int:
        return self.rows[0].number

    @property
    def last(self) -> int:
        return self.rows[-1].number


def build_rows_view(
    execution: ExecutionState, found: SuspensionState, tools: Toolbox, choice: RowChoice, pages: Sequence[range]
) -> RowsView:
    question = found.question
    fields = list_row_fields(question.covers, pages[choice.page], tools) if found.is_open else {}
    state = execution.steps.get(question.step_id or "")
    is_over = execution.is_finished or (state is not None and state.status in STEP_TERMINAL)
    rows: list[RowView] = []
    for place in pages[choice.page]:
        call = find_call(execution, question.covers[place].call_id)
        filled = choice.filled.get(place)
        if filled is None and place in choice.edits and place in fields:
            filled = refill(fields[place], choice.edits[place])
        end, tone = ("", "busy") if found.is_open else _describe_end(call, is_over=is_over)
        rows.append(
            RowView(
                place=place,
                call=build_row_call(question, place, tools, call),
                is_ticked=place not in choice.left_out,
                is_edited=place in choice.edits,
                fields=fields.get(place, ()),
                filled=filled,
                fault=choice.faults.get(place, ""),
                end=end,
                tone=tone,
            )
        )
    return RowsView(
        rows=tuple(rows),
        page=choice.page + 1,
        pages=len(pages),
        count=len(question.covers),
        ticked=len(question.covers) - len(choice.left_out),
        edited=len(choice.edits),
        unopened=len(pages) - len(choice.opened),
        choice=choice,
        columns=_list_columns(rows),
        tools=tuple({row.call.tool: row.call for row in rows}.values()),
    )


def _list_columns(rows: Sequence[RowView]) -> tuple[ArgumentColumn, ...]:
    cells: dict[str, list[ArgumentView]] = {}
    for row in rows:
        for argument in row.call.arguments:
            cells.setdefault(argument.label, []).append(argument)
    if len(cells) > MAX_COLUMNS:
        return ()
    return tuple(
        ArgumentColumn(
            label=label,
            title=found[0].title,
            origins=found[0].origins if len({argument.origins for argument in found}) == 1 else (),
        )
        for label, found in cells.items()
    )


def list_edited_rows(found: SuspensionState, choice: RowChoice) -> tuple[EditedRow, ...]:
    """The edited rows that stay in, in their order."""
    return tuple(
        EditedRow(number=place + 1, changes=find_changes(found.question.covers[place].arguments, arguments))
        for place, arguments in sorted(choice.edits.items())
        if place not in choice.left_out
    )


def _describe_end(call: Call | None, *, is_over: bool) -> tuple[str, Tone]:
    if call is None or (is_over and call.status in ("proposed", "decided", "suspended")):
        return "did not run", "bad"
    words = WORDS["row"][call.status]
    return words.word, words.tone
