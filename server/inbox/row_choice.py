"""The rows of one question: what a person has chosen so far, and how a page shows it.

A page shows some of the rows, each with its exact call, what became of the call, and inputs to edit it. The server
keeps nothing between two pages: what was chosen on other pages travels in hidden fields of the form, and counts only
when the form is sent with a decision. So the page works without JavaScript, and nothing that was typed reaches an
address or the log before somebody decides.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json, is_larger, is_same_json, read_json
from planwarden.agent.core.execution.question import CoveredCall
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.inbox.forms import MAX_FIELDS, FilledForm, fill_form, refill_form
from planwarden.server.inbox.request import BadForm, InboxRequest, Values
from planwarden.server.views.card import Card
from planwarden.server.views.card_calls import Argument, CardCall
from planwarden.server.views.escaping import ArgumentChange, escape_text, find_changes
from planwarden.server.views.fields import Field, build_fields, format_ranges, read_number, read_ranges

ROWS_PER_PAGE = 50
MAX_PAGE_FIELDS = 800
"""The most fields on a page. For some fields, browsers send a second field, which says that the first is left out."""
MAX_PAGE_CHARS = 96 * 1024
"""The limit for all arguments on a page as JSON; the form of the page sends all of them back."""
MAX_EDITS_BYTES = 192 * 1024
"""The limit for all edited rows. The form with these rows and one page must stay below the limit for a body."""
MAX_FAULTS = 5
MAX_COLUMNS = 12
"""The most columns of a table; rows with more arguments list them one below the other."""
_WHOLE = ".all"
"""The end of the key of an input that holds all arguments of a row."""
_ALL = Field(key=_WHOLE, name="", label="All arguments", kind="json", is_required=True, is_present=True)


class RowChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What was chosen, and the page of rows that the person is looking at."""

    page: int = 0
    """The index of that page, counted from 0."""
    left_out: frozenset[int] = frozenset()
    edits: Mapping[int, dict[str, JsonValue]] = msgspec.field(default_factory=dict[int, dict[str, JsonValue]])
    """All arguments of the edited rows, as they would run."""
    opened: frozenset[int] = frozenset()
    """The pages that were shown so far."""
    filled: Mapping[int, FilledForm] = msgspec.field(default_factory=dict[int, FilledForm])
    """What was typed into rows whose arguments do not fit their tools, with the faults of single fields."""
    faults: Mapping[int, str] = msgspec.field(default_factory=dict[int, str])
    """Why a row as a whole does not fit its tool, escaped."""

    @property
    def left_out_text(self) -> str:
        return format_ranges(self.left_out)

    @property
    def opened_text(self) -> str:
        return format_ranges(self.opened)

    @property
    def edits_text(self) -> str:
        return canonical_json({str(row): arguments for row, arguments in sorted(self.edits.items())})

    @property
    def has_faults(self) -> bool:
        return bool(self.filled or self.faults)

    def keep(self, rows: Iterable[int]) -> dict[str, JsonValue]:
        """Return the edits of these rows as the `modifiedArgs` of a decision."""
        return {str(row): self.edits[row] for row in rows if row in self.edits}


def split_rows(rows: Sequence[CoveredCall]) -> tuple[range, ...]:
    """Return the rows of each page: at most `ROWS_PER_PAGE`, and no more than a form can send back."""
    pages: list[range] = []
    first, chars = 0, 0
    for index, row in enumerate(rows):
        size = _measure(row)
        if index > first and (index - first >= ROWS_PER_PAGE or chars + size > MAX_PAGE_CHARS):
            pages.append(range(first, index))
            first, chars = index, 0
        chars += size
    return (*pages, range(first, len(rows)))


def list_row_fields(rows: Sequence[CoveredCall], page_rows: range, tools: Toolbox) -> dict[int, tuple[Field, ...]]:
    """Return the inputs of the shown rows: one for each argument, or one for all arguments of a row if the page would
    have too many inputs.

    A row that is too long for a form, or whose tool is gone, has no inputs.
    """
    fields_by_row: dict[int, tuple[Field, ...]] = {}
    for index in page_rows:
        definition = tools.get(rows[index].tool_name)
        if definition is None or _measure(rows[index]) > MAX_PAGE_CHARS:
            continue
        fields = build_fields(definition.input_schema, rows[index].arguments)[:MAX_FIELDS]
        fields_by_row[index] = tuple(replace(field, key=f"row{index}.{field.key}") for field in fields)
    if sum(map(len, fields_by_row.values())) <= MAX_PAGE_FIELDS:
        return fields_by_row
    return {index: (replace(_ALL, key=f"row{index}{_WHOLE}", value=rows[index].arguments),) for index in fields_by_row}


def read_choice(
    request: InboxRequest, rows: Sequence[CoveredCall], tools: Toolbox, pages: Sequence[range]
) -> RowChoice:
    """Return the form's choice and its faults. Raises `BadForm` if the form is malformed or its edits are too large."""
    page = read_page_number(request.form_value("shown"), len(pages))
    page_rows = pages[page]
    left_out, opened = _read_set(request, "out", len(rows)), _read_set(request, "opened", len(pages))
    choice = RowChoice(
        page=page, left_out=left_out, opened=opened | {page}, edits=_read_edits(request.form_value("edited"), rows)
    )
    if request.form_value("ticks"):
        ticked = {_read_row(text, page_rows) for text in request.form.get("row", ())}
        choice = replace(choice, left_out=left_out.difference(page_rows).union({*page_rows} - ticked))
    return _read_typed(request, choice, rows, tools, page_rows)


def _read_typed(
    request: InboxRequest, choice: RowChoice, rows: Sequence[CoveredCall], tools: Toolbox, page_rows: range
) -> RowChoice:
    form_texts = request.form_values()
    edits, filled, faults = dict(choice.edits), dict[int, FilledForm](), dict[int, str]()
    for index, fields in list_row_fields(rows, page_rows, tools).items():
        if not any(field.key in form_texts for field in fields):
            continue
        typed = fill_form(fields, form_texts, rows[index].arguments)
        values = typed.values.get("") if _is_whole(fields) else typed.values
        if typed.faults or not isinstance(values, dict):
            filled[index] = typed
            faults[index] = "" if typed.faults else "the arguments are not a JSON object"
            continue
        edits.pop(index, None)
        if is_same_json(rows[index].arguments, values):
            continue
        completed, problems = tools.complete(rows[index].tool_name, values)
        if problems:
            filled[index] = typed
            faults[index] = escape_text("; ".join(problems[:MAX_FAULTS]))
        elif not is_same_json(rows[index].arguments, completed):
            edits[index] = completed
    if is_larger({str(index): arguments for index, arguments in edits.items()}, MAX_EDITS_BYTES):
        raise BadForm(
            f"all edited rows together are larger than {MAX_EDITS_BYTES} bytes; approve some of them first, leaving "
            "the others out"
        )
    return replace(choice, edits=edits, filled=filled, faults=faults)


def _is_whole(fields: Sequence[Field]) -> bool:
    """Return whether a single field holds all arguments of a row."""
    return len(fields) == 1 and fields[0].key.endswith(_WHOLE)


def _read_edits(text: str, rows: Sequence[CoveredCall]) -> dict[int, dict[str, JsonValue]]:
    edits = read_json(text) if text else {}
    if not isinstance(edits, dict):
        raise BadForm
    edits_by_row: dict[int, dict[str, JsonValue]] = {}
    for row, arguments in edits.items():
        if not isinstance(arguments, dict):
            raise BadForm
        edits_by_row[_read_row(row, range(len(rows)))] = arguments
    return edits_by_row


def _read_set(request: InboxRequest, name: str, count: int) -> frozenset[int]:
    text = request.form_value(name)
    numbers = read_ranges(text, count) if text else []
    if numbers is None:
        raise BadForm
    return frozenset(numbers)


def _read_row(text: str, rows: range) -> int:
    row = read_number(text)
    if row is None or row not in rows:
        raise BadForm
    return row


def _measure(row: CoveredCall) -> int:
    return len(json.dumps(row.arguments))


def read_page_number(text: str, count: int) -> int:
    """Return the index, counted from 0, of the page with this number, counted from 1; empty means the first page."""
    number = read_number(text or "1")
    if number is None or not 1 <= number <= count:
        raise BadForm(f"there is no page {text[:20]!r} of these rows; they have pages 1 to {count}")
    return number - 1


def build_rows_view(card: Card, tools: Toolbox, choice: RowChoice, pages: Sequence[range]) -> Values:
    """Return the current page of rows, with numbers that start at 1, and what was chosen on all pages."""
    covers, page = card.question.covers, pages[choice.page]
    fields = list_row_fields(covers, page, tools) if card.decision is None else {}
    rows: list[Values] = []
    for index in page:
        filled = choice.filled.get(index)
        if filled is None and index in choice.edits and index in fields:
            edited = choice.edits[index]
            filled = refill_form(fields[index], {"": edited} if _is_whole(fields[index]) else edited)
        rows.append(
            {
                "place": index,
                "number": index + 1,
                "call": card.rows[index],
                "is_ticked": index not in choice.left_out,
                "is_edited": index in choice.edits,
                "fields": fields.get(index, ()),
                "filled": filled,
                "is_open": filled is not None,
                "fault": choice.faults.get(index, ""),
            }
        )
    calls = [card.rows[index] for index in page]
    return {
        "rows": rows,
        "page": choice.page + 1,
        "pages": len(pages),
        "count": len(covers),
        "choice": choice,
        "columns": _list_columns(calls),
        # The tools of these rows, each once.
        "tools": list({call.tool.name: call.tool for call in calls}.values()),
    }


def _list_columns(calls: Sequence[CardCall]) -> list[Values]:
    """Return each argument of the rows once, with the origins of its values if all rows have the same origins.

    Return an empty list if a table would be too wide.
    """
    cells: dict[str, list[Argument]] = {}
    for call in calls:
        for argument in call.arguments:
            cells.setdefault(argument.label, []).append(argument)
    if len(cells) > MAX_COLUMNS:
        return []
    return [
        {
            "label": label,
            "title": arguments[0].title,
            "origins": arguments[0].origins if len({argument.origins for argument in arguments}) == 1 else (),
        }
        for label, arguments in cells.items()
    ]


def list_row_changes(card: Card, choice: RowChoice) -> tuple[ArgumentChange, ...]:
    """Return the changes in the edited rows that are not left out, in their order, each with the number of its row."""
    rows = ((index, edited) for index, edited in sorted(choice.edits.items()) if index not in choice.left_out)
    return tuple(
        replace(change, label=f"row {index + 1}: {change.label}")
        for index, edited in rows
        for change in find_changes(card.question.covers[index].arguments, edited)
    )
