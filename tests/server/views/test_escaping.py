"""Texts of others where a person reads them: what nobody sees is escaped, and right-to-left words move nothing.

Also rows as people write them.
"""

import io
import unicodedata
from pathlib import Path

import pytest

from planwarden.agent.common.schema import Schema
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.inbox.site import load_templates
from planwarden.server.mcp.elicitation.compact_message import build_compact_message
from planwarden.server.views.facts import (
    VALUE_CHARS,
    count_hidden,
    escape_rest,
    escape_text,
    format_facts,
    format_value,
)
from planwarden.server.views.row_ranges import format_ranges, read_ranges
from tests.kit import Cli, Ledger, confirm, make_home, plan, requirement, tool_step, warden

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
    Terminal(out).say(TerminalLine((f"a{hidden}b",)))
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


PATH = "/invoices/אבג/123.pdf"
SHOWN = "/invoices/\u2067אבג\u2069/123.pdf"


def has_loose_words(text: str) -> bool:
    """Whether right-to-left letters stand outside an isolation, or anything else inside one, on any line."""
    for line in text.splitlines():
        depth = 0
        for character in line:
            depth += {"\u2067": 1, "\u2069": -1}.get(character, 0)
            if depth not in (0, 1) or (unicodedata.bidirectional(character) in ("R", "AL", "AN")) != (
                depth == 1 and character not in "\u2067\u2069 " and unicodedata.bidirectional(character) != "NSM"
            ):
                return True
        if depth:
            return True
    return False


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (PATH, SHOWN),
        ('a "אב" 1', 'a "\u2067אב\u2069" 1'),
        ("אב גד, 12 הו", "\u2067אב גד\u2069, 12 \u2067הו\u2069"),
        ("عَرَبِيّ/٣/4", "\u2067عَرَبِيّ\u2069/\u2067٣\u2069/4"),
        ("\u2067אב", "\\u2067\u2067אב\u2069"),
        ("plain / é 1", "plain / é 1"),
    ],
)
@requirement("shown:right-to-left")
def test_right_to_left_words_are_isolated_and_nothing_else_is(text: str, shown: str) -> None:
    assert escape_text(text) == shown and not has_loose_words(shown)


@requirement("shown:right-to-left")
@pytest.mark.parametrize("length", range(VALUE_CHARS - 4, VALUE_CHARS + 8))
def test_a_value_that_is_cut_inside_such_words_isolates_nothing_else(length: int) -> None:
    assert not has_loose_words(format_value("x" * (length - 10) + "אבגדהוזחטי" * 3))


@requirement("shown:right-to-left")
@pytest.mark.anyio
async def test_a_question_shows_such_words_isolated_on_every_line() -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(confirm("a", f"pay {PATH} {'אבגד/12 ' * 20}")))
        [question] = asked.suspensions
    facts = "\n".join(format_facts(question))
    assert not has_loose_words(facts)
    message = build_compact_message(question)
    assert message is None or not has_loose_words(message)


@requirement("shown:right-to-left")
def test_the_terminal_shows_such_words_isolated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(make_home(tmp_path / "home"), capsys)
    asked = cli.run_to_question(tool_step("a", "erase", {"ids": [1], "note": PATH}))
    said = cli.main("show", cli.main("list", "--json").json["suspensions"][0]["threadId"])
    assert asked and SHOWN in said.out + cli.main("list").out and not has_loose_words(said.out)
