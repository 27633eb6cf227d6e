"""The rows of one question as its page shows them: the exact call of each, what became of it, and inputs to edit it."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.inbox.forms import FilledForm
from planwarden.server.inbox.row_choice import RowChoice, list_row_fields, refill
from planwarden.server.views.card import Card
from planwarden.server.views.card_calls import Argument, CardCall, ToolNote
from planwarden.server.views.fields import Field
from planwarden.server.views.value_view import ArgumentChange, find_changes

MAX_COLUMNS = 12
"""Of a table; the rows of a tool with more arguments list them one below the other."""


class RowView(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    place: int
    """Counted from 0, as programs do."""
    call: CardCall
    is_ticked: bool
    is_edited: bool
    fields: tuple[Field, ...]
    """Empty where it cannot be edited here."""
    filled: FilledForm | None
    fault: str

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


class RowsView(msgspec.Struct, frozen=True, kw_only=True):
    """A page of rows, and what was chosen on all pages."""

    rows: tuple[RowView, ...]
    pages: int
    count: int
    """Rows of all pages."""
    choice: RowChoice
    columns: tuple[ArgumentColumn, ...]
    """The arguments of the rows, each once; empty where a table would be too wide."""
    tools: tuple[ToolNote, ...]
    """The tools of these rows, each once."""

    @property
    def page(self) -> int:
        """Counted from 1, as people count."""
        return self.choice.page + 1


def build_rows_view(card: Card, tools: Toolbox, choice: RowChoice, pages: Sequence[range]) -> RowsView:
    """Return the page of rows that was chosen."""
    covers, page = card.question.covers, pages[choice.page]
    fields = list_row_fields(covers, page, tools) if card.decision is None else {}
    rows: list[RowView] = []
    for place in page:
        filled = choice.filled.get(place)
        if filled is None and place in choice.edits and place in fields:
            filled = refill(fields[place], choice.edits[place])
        rows.append(
            RowView(
                place=place,
                call=card.rows[place],
                is_ticked=place not in choice.left_out,
                is_edited=place in choice.edits,
                fields=fields.get(place, ()),
                filled=filled,
                fault=choice.faults.get(place, ""),
            )
        )
    return RowsView(
        rows=tuple(rows),
        pages=len(pages),
        count=len(covers),
        choice=choice,
        columns=_list_columns(rows),
        tools=tuple({row.call.tool.name: row.call.tool for row in rows}.values()),
    )


def _list_columns(rows: Sequence[RowView]) -> tuple[ArgumentColumn, ...]:
    cells: dict[str, list[Argument]] = {}
    for row in rows:
        for argument in row.call.arguments:
            cells.setdefault(argument.label, []).append(argument)
    if len(cells) > MAX_COLUMNS:
        return ()
    return tuple(
        ArgumentColumn(
            label=label,
            title=arguments[0].title,
            origins=arguments[0].origins if len({argument.origins for argument in arguments}) == 1 else (),
        )
        for label, arguments in cells.items()
    )


def list_row_changes(card: Card, choice: RowChoice) -> tuple[ArgumentChange, ...]:
    """Return the differences in the edited rows that stay in, in their order, each with the number of its row."""
    rows = ((place, edited) for place, edited in sorted(choice.edits.items()) if place not in choice.left_out)
    return tuple(
        replace(change, label=f"row {place + 1}: {change.label}")
        for place, edited in rows
        for change in find_changes(card.question.covers[place].arguments, edited)
    )
