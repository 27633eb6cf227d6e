"""Characters that nobody sees: none passes anywhere that text leaves; and rows as people write them."""

import io

import pytest

from planwarden.agent.common.schema import Schema
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.screen import PlainScreen
from planwarden.server.inbox.site import load_templates
from planwarden.server.views.facts import count_hidden, escape_rest, escape_text
from planwarden.server.views.row_ranges import format_ranges, read_ranges
from tests.requirements import requirement

PICTURE, KEYCAP = "\ufe0f", "\u20e3"
CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]


def _list(property_name: str) -> set[str]:
    """The characters with the property, as another implementation of Unicode knows it."""
    schema = Schema({"pattern": rf"^\p{{{property_name}}}$"})
    return {character for character in CHARACTERS if schema.is_valid(character)}


@requirement("display:invisible")
def test_every_character_that_unicode_draws_as_nothing_is_escaped() -> None:
    assert {
        character for character in _list("Default_Ignorable_Code_Point") if escape_text(character) == character
    } == set()


@requirement("display:invisible")
def test_the_sign_for_pictures_passes_after_pictures_and_nowhere_else() -> None:
    pictures = _list("Emoji") - {*"#*0123456789"}
    passing = {base for base in CHARACTERS if count_hidden(base + PICTURE) == count_hidden(base)}
    assert passing == pictures
    for digit in "#*0123456789":
        assert count_hidden(f"a{digit}{PICTURE}{KEYCAP}b") == 0 and count_hidden(digit + PICTURE + "b") == 1
    assert count_hidden(f"\u2764{PICTURE}{PICTURE}") == 1


@requirement("display:invisible")
@pytest.mark.parametrize("hidden", ["\x1b[2J", "\u202e", "\u200b", "\x9b", "\U000e0041", "\u2066", "\u2067"])
def test_what_somebody_forgot_to_escape_is_escaped_where_it_leaves(hidden: str) -> None:
    out = io.StringIO()
    PlainScreen(out).lines([TerminalLine((f"a{hidden}b",))])
    page = load_templates().from_string("{{ text }}").render(text=f"a{hidden}b")
    for text in (out.getvalue(), page, escape_rest(f"a{hidden}b")):
        assert hidden not in text and not any(count_hidden(part) for part in text.splitlines())


@requirement("display:invisible")
def test_what_was_escaped_already_and_lines_stay_as_they_are() -> None:
    shown = escape_text("/a/\u05d0\u05d1/123 \u202e")
    assert escape_rest(shown) == shown and escape_rest("a\n\tb ü \u2764\ufe0f") == "a\n\tb ü \u2764\ufe0f"


def test_rows_are_named_by_numbers_and_ranges_and_written_so_that_they_are_read_back() -> None:
    for text, rows in (("1,3", [0, 2]), ("3-5, 1", [0, 2, 3, 4]), ("5", [4])):
        assert read_ranges(text, 5) == rows
    for text in ("6", "0", "", "all", "3-1", "-1", "1-", "1-99999999"):
        assert read_ranges(text, 5) is None
    for rows, text in (([3, 1, 2], "2-4"), ([0, 2, 3, 4, 9], "1,3-5,10"), ([998, 999], "999-1000")):
        assert format_ranges(rows) == text and read_ranges(text, 1_000) == sorted(rows)
    assert format_ranges([]) == ""
