"""Right-to-left words in what a person decides about: they move no slash, quote or digit beside them."""

import unicodedata
from pathlib import Path

import pytest

from planwarden.server.mcp.elicitation.compact_message import build_compact_message
from planwarden.server.views.facts import VALUE_CHARS, escape_text, format_facts, format_value
from tests.requirements import requirement
from tests.server.cli.support import Cli, make_home
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

pytestmark = requirement("shown:right-to-left")
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
def test_right_to_left_words_are_isolated_and_nothing_else_is(text: str, shown: str) -> None:
    assert escape_text(text) == shown and not has_loose_words(shown)


@pytest.mark.parametrize("length", range(VALUE_CHARS - 4, VALUE_CHARS + 8))
def test_a_value_that_is_cut_inside_such_words_isolates_nothing_else(length: int) -> None:
    assert not has_loose_words(format_value("x" * (length - 10) + "אבגדהוזחטי" * 3))


@pytest.mark.anyio
async def test_a_question_shows_such_words_isolated_on_every_line() -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(confirm("a", f"pay {PATH} {'אבגד/12 ' * 20}")))
        [question] = asked.suspensions
    facts = "\n".join(format_facts(question))
    assert not has_loose_words(facts)
    message = build_compact_message(question)
    assert message is None or not has_loose_words(message)


def test_the_terminal_shows_such_words_isolated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(make_home(tmp_path / "home"), capsys)
    asked = cli.run_to_question(tool_step("a", "erase", {"ids": [1], "note": PATH}))
    said = cli.main("show", cli.main("list", "--json").json["suspensions"][0]["threadId"])
    assert asked and SHOWN in said.out + cli.main("list").out and not has_loose_words(said.out)
