"""One question about many calls at a terminal: rows by page, some of them chosen, single ones edited."""

import sys

import pytest
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.cli.support import Cli, Open, PtyTerminal, step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library"),
]

CHOICE = "Enter leaves it open]"


def _ask(cli: Cli, count: int) -> str:
    items: list[JsonValue] = [*range(count)]
    return cli.run_to_question({**step("wipe", "erase", {"ids": [{"$from": "item"}]}), "forEach": items})


def _answer(person: PtyTerminal, typed: str, *more: tuple[str, str]) -> None:
    """Types after the next choice, and then each text after what it waits for."""
    person.expect(CHOICE)
    person.type(typed)
    for expected, answer in more:
        person.expect(expected)
        person.type(answer)


@requirement("terminal:rows")
def test_rows_are_chosen_and_edited_before_they_are_approved(cli: Cli, terminal: Open) -> None:
    asked = _ask(cli, 4)
    person = terminal("approve", asked)
    person.expect("Run these 4 calls?")
    person.expect("erase (row 4)")
    _answer(person, "e", ("Row to edit, 1 to 4", "7"))
    person.expect("Name one row from 1 to 4")
    _answer(person, "e", ("Row to edit", "2"), ("as one line of JSON", '{"ids": "all"}'))
    person.expect("Row 2 does not fit erase")
    _answer(person, "e", ("Row to edit", "2"), ("as one line of JSON", '{"ids": [80]}'))
    person.expect('Row 2 would run with {"ids": [80]}')
    _answer(person, "s", ("Rows to approve", "0"))
    person.expect("Name rows from 1 to 4")
    _answer(person, "s", ("Rows to approve", "2-3"))
    person.expect("Rows 2-3 would run, and no others")
    assert cli.ledger == []
    _answer(person, "y")
    assert person.finish() == 0
    assert cli.ledger == ["erase [80] none", "erase [2] none"]


@requirement("terminal:rows")
def test_many_rows_are_shown_by_page_and_unseen_ones_are_not_approved_by_a_single_letter(
    cli: Cli, terminal: Open
) -> None:
    asked = _ask(cli, 45)
    person = terminal("approve", asked)
    person.expect("Rows 1 to 20 of 45, page 1 of 3")
    assert "row 21" not in person.text
    _answer(person, "y", ("Rows 21-45 were not on the screen", "y"))
    _answer(person, "+")
    person.expect("Rows 21 to 40 of 45, page 2 of 3")
    _answer(person, "-")
    person.expect("Rows 1 to 20 of 45, page 1 of 3")
    assert cli.ledger == []
    _answer(person, "y", ("Rows 41-45 were not on the screen", "all"))
    assert person.finish() == 0 and len(cli.ledger) == 45


@requirement("terminal:rows")
def test_a_row_is_edited_field_by_field_and_enter_keeps_a_value(cli: Cli, terminal: Open) -> None:
    person = terminal("approve", _ask(cli, 2))
    _answer(person, "e", ("Row to edit", "1"), ("ids (Enter: [0]", ""), ('note (Enter: "none")', "by hand"))
    person.expect('Row 1 would run with {"ids": [0], "note": "by hand"}')
    _answer(person, "e", ("Row to edit", "2"), ("ids (Enter: [1]", "[1"), ("That is not valid JSON", "y"))
    _answer(person, "y")
    assert person.finish() == 0
    assert cli.ledger == ["erase [0] by hand", "erase [1] none"]
