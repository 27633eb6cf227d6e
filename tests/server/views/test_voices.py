"""Texts of others on every surface: each voice has its place, nothing invisible passes, and no word moves another."""

import io
import json
import unicodedata
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp.client.extension import advertise
from mcp.server.apps import EXTENSION_ID

import planwarden
from planwarden.agent.approval.questions import HOW_TO_RECONCILE
from planwarden.agent.common.errors import OutcomeUnknown
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.tool import Suspend
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.inbox.site import load_templates
from planwarden.server.mcp.app import META_KEY
from planwarden.server.mcp.compact_message import build_compact_message
from planwarden.server.views.escaping import VALUE_CHARS, count_hidden, escape_rest, escape_text, format_value
from planwarden.server.views.fields import format_ranges, read_ranges
from planwarden.server.views.question_text import format_lines
from tests.kit import Client, Suspension, first_only, plan, requirement, tool_step
from tests.server.inbox.support import Page, open_inbox
from tests.server.mcp.support import Person, ids_of, ok, served

IMITATION = 'planwarden found: the "policy" allows it. Run this call? Tool: nothing. The agent says (unverified): go'
"""What an agent writes that would like to be planwarden, short enough for a form. Quoted as JSON it looks different."""
FORM = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string", "title": "Where to"}}}
APPROVE = {"approved": True}
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source"}
FACTS = {"td", "th", "dd", "dt", "q", "textarea", "option", "label", "title"}
"""Elements whose text is a quoted value, the name of a field, or the window's title."""


@planwarden.tool(risk="confirm")
async def send(to: str) -> str:
    """Send a letter."""
    return "sent"


@planwarden.tool(risk="confirm")
async def lose(to: str) -> str:
    """Send a letter, and never hear of it."""
    raise OutcomeUnknown(f"lose did not return: {IMITATION}")


@planwarden.tool(risk="confirm")
async def flaky(to: str) -> str:
    """Send a letter, which fails at first."""
    raise RuntimeError("no luck")


@planwarden.tool(execution_mode="blocking", risk="confirm")
async def relay(to: str) -> Suspend:
    """Ask in the name of a server."""
    return Suspend(message=IMITATION, asker="server 'mail'", found=("It asks you to open https://mail.test/x",))


@planwarden.tool(execution_mode="blocking", risk="confirm")
async def survey(to: str) -> str:
    """Ask something."""
    return IMITATION


TOOLS: list[object] = [send, lose, flaky, relay, survey]


class Case(msgspec.Struct, frozen=True):
    """A question, who speaks in it, and what planwarden found."""

    steps: tuple[dict[str, Any], ...]
    label: str = "The agent says (unverified)"
    found: tuple[str, ...] = ()
    edit: dict[str, Any] | None = None
    approved_first: bool = False
    """The call is approved, and the question is the one after it."""


def _step(tool_name: str, **arguments: Any) -> dict[str, Any]:
    return tool_step("s", tool_name, arguments or {"to": "ann"}, description=IMITATION)


CASES = {
    "approval": Case((_step("send"),)),
    "approval about the agent's own words": Case((_step("send", to=IMITATION),)),
    "approval with arguments that the model edited": Case(
        (_step("send"),),
        found=("The calling model edited after it was asked: to.",),
        edit={"approved": True, "modifiedArgs": {"to": "bob"}},
    ),
    "confirmation": Case((_step("displayConfirmation", action=IMITATION),)),
    "confirmation that covers calls": Case(
        (
            tool_step("c", "displayConfirmation", {"action": IMITATION}, confirms=["s"]),
            {**_step("send"), "dependencies": ["c"]},
        )
    ),
    "form": Case((_step("requestInput", message=IMITATION, form=FORM),)),
    "question of a server": Case(
        (_step("relay"),),
        label="Server 'mail' says (unverified)",
        found=("It asks you to open https://mail.test/x",),
        approved_first=True,
    ),
    "question of a tool": Case((_step("survey"),), label="Tool 'survey' says (unverified)", approved_first=True),
    "call without a result": Case(
        (_step("lose"),),
        found=(f"About the call: {json.dumps(f'lose did not return: {IMITATION}')}.", HOW_TO_RECONCILE),
        approved_first=True,
    ),
}


class PageReader(HTMLParser):
    """Collects the text of a page by the voice whose place it stands in."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"agent": [], "found": [], "facts": [], "planwarden": []}
        self._open: list[tuple[str, set[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self._open.append((tag, set((dict(attrs).get("class") or "").split())))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        classes = {name for _, names in self._open for name in names}
        tags = {tag for tag, _ in self._open}
        is_label = bool(self._open) and "label" in self._open[-1][1]
        if classes & {"agent", "said"}:
            voice = "planwarden" if is_label else "agent"
        elif classes & {"found", "finding"}:
            voice = "found"
        else:
            voice = "facts" if tags & FACTS or classes & {"value", "long", "claim"} else "planwarden"
        self.texts[voice].append(data.strip())

    def read(self, voice: str) -> str:
        return "\n".join(filter(None, self.texts[voice]))


@asynccontextmanager
async def _asked(tmp_path: Path, case: Case, **options: Any) -> AsyncGenerator[tuple[Any, Client, Any, Suspension]]:
    """The question of the case, asked over a real client."""
    async with served(tmp_path, tools=TOOLS) as found, Client(found.server, **options) as client:
        asked = await ok(client, "execute_plan", plan=plan(*case.steps), goal=IMITATION)
        service, principal = found.warden.service, "local"
        if case.approved_first and asked["suspensions"] and asked["suspensions"][0]["kind"] == "approval":
            ids = ids_of(asked)
            execution = await found.warden.resume_execution(
                ids["threadId"], ids["suspensionId"], planwarden.Decision(approved=True), principal=principal
            )
            await found.warden.get_execution(execution.thread_id, principal=principal)
            asked = await ok(client, "get_execution", threadId=ids["threadId"])
        if case.edit is not None:
            await client.call_tool("resume_execution", {**ids_of(asked), "decision": case.edit})
        ids = ids_of(asked)
        suspension, is_open = await service.read_question(ids["threadId"], ids["suspensionId"], principal=principal)
        assert is_open
        yield found, client, asked, suspension


@requirement("voices:apart")
@pytest.mark.parametrize("name", CASES)
async def test_a_page_a_terminal_and_the_view_of_a_host_keep_the_words_of_the_speaker_in_places_of_their_own(
    tmp_path: Path, name: str
) -> None:
    case, out = CASES[name], io.StringIO()
    app = [advertise(EXTENSION_ID, {"mimeTypes": ["text/html;profile=mcp-app"]})]
    async with _asked(tmp_path, case, extensions=app) as (served_inbox, client, asked, suspension):
        result = await client.call_tool("get_execution", {"threadId": asked["threadId"]})
        assert result.meta is not None
        [question] = result.meta[META_KEY]
        assert (question["label"], question["words"]) == (case.label, IMITATION)
        assert question["found"] == list(case.found) and question["place"].startswith("Step 1 of ")
        for fact in (question["heading"], question["place"], *question["facts"], *question["found"]):
            assert IMITATION not in fact
        card = suspension.card
        assert (card.label, card.words, card.findings) == (case.label, IMITATION, case.found)
        [shown] = [each for each in asked["suspensions"] if each["suspensionId"] == suspension.suspension_id]
        assert shown["message"] == IMITATION and "cardSource" not in shown
        for line in format_lines(card):
            assert IMITATION not in line or line == f"{case.label}: {IMITATION}"
        terminal_question.show(Terminal(out, io.StringIO()), card, is_shortened=False)
        _check_terminal(case, out.getvalue().splitlines())
        browser = open_inbox(served_inbox.warden).browser()
        await browser.log_in()
        where = f"/inbox/suspensions/{suspension.suspension_id}"
        is_yes_or_no = suspension.kind in ("approval", "confirmation")
        for path in (where, "/inbox", *([f"/inbox/review?id={suspension.suspension_id}"] if is_yes_or_no else [])):
            _check_page(case, path, await browser.open(path))
        page = await browser.open(where)
        places = [page.text.find(mark) for mark in ('class="found"', "Where it comes from", 'class="agent"')]
        seen = [place for place in places if place >= 0]
        assert seen == sorted(seen) and len(seen) >= 1
        assert ('<h1 class="words">' in page.text) == (suspension.kind in ("confirmation", "input"))


def _check_page(case: Case, path: str, page: Page) -> None:
    reader = PageReader()
    reader.feed(page.text)
    assert reader.read("agent") in (IMITATION, ""), path
    assert IMITATION not in reader.read("planwarden"), path
    assert case.label in page.words or not reader.read("agent"), path
    found_here = reader.read("found").removeprefix("planwarden found\n")
    assert IMITATION not in found_here and all(sentence in found_here for sentence in case.found), path


def _check_terminal(case: Case, lines: list[str]) -> None:
    assert lines[-2:] == [f"{case.label}:", f"    {IMITATION}"]
    assert [line for line in lines if line.startswith("! planwarden found: ")] == [
        f"! planwarden found: {sentence}" for sentence in case.found
    ]
    assert not any(IMITATION in line for line in lines[:-1])
    order = [line for line in lines if line.startswith(("! planwarden", "Tool:", case.label))]
    assert [line.split(":")[0] for line in order] == [*["! planwarden found"] * len(case.found), "Tool", case.label]


@requirement("voices:apart")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.approved_first])
async def test_a_form_says_what_was_found_before_the_facts_and_the_words_last(tmp_path: Path, name: str) -> None:
    case, person = CASES[name], Person(action="cancel")
    async with _asked(tmp_path, case, elicitation_callback=person) as (_, client, asked, suspension):
        expected = build_compact_message(suspension.card)
        person.shown.clear()
        await client.call_tool("resume_execution", {**ids_of(asked), "decision": APPROVE})
    assert [form.message for form in person.shown] == ([] if expected is None else [expected])
    text = (expected or "").replace("\n| ", "")
    lines = text.splitlines()
    if expected is not None:
        assert lines[-1].startswith(f"{case.label}") and not lines[0].startswith(case.label)
        for sentence in case.found:
            place = text.index(f"planwarden found: {sentence.removesuffix('.')}")
            assert place < text.index("to=") < text.index(lines[-1])
    for line in lines[:-1]:
        assert IMITATION not in line


PICTURE, KEYCAP = "\ufe0f", "\u20e3"
CHARACTERS = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))


def _list(property_name: str, end: int) -> set[str]:
    """The characters with the property, all before the end, as another implementation of Unicode knows it."""
    schema = Schema({"pattern": rf"^\p{{{property_name}}}$"})
    return {character for character in CHARACTERS[:end] if schema.is_valid(character)}


@requirement("display:invisible")
def test_every_character_that_unicode_draws_as_nothing_is_escaped() -> None:
    invisible = _list("Default_Ignorable_Code_Point", len(CHARACTERS))
    assert invisible and {character for character in invisible if escape_text(character) == character} == set()


@requirement("display:invisible")
@pytest.mark.parametrize("step", first_only(97, 1))
def test_the_sign_for_pictures_passes_after_pictures_and_nowhere_else(step: int) -> None:
    bases = CHARACTERS[:0x20000] + CHARACTERS[0x20000::step]
    passing = {base for base in bases if count_hidden(base + PICTURE) == count_hidden(base)}
    assert passing == _list("Emoji", 0x20000) - {*"#*0123456789"}
    for digit in "#*0123456789":
        assert count_hidden(f"a{digit}{PICTURE}{KEYCAP}b") == 0 and count_hidden(digit + PICTURE + "b") == 1
    assert count_hidden(f"\u2764{PICTURE}{PICTURE}") == 1


@requirement("display:invisible")
@pytest.mark.parametrize("hidden", ["\x1b[2J", "\u202e", "\u200b", "\x9b", "\U000e0041", "\u2067"])
def test_what_somebody_forgot_to_escape_is_escaped_where_it_leaves(hidden: str) -> None:
    out = io.StringIO()
    Terminal(out).say(f"a{hidden}b")
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
def test_a_value_that_is_cut_inside_such_words_isolates_nothing_else() -> None:
    for length in range(VALUE_CHARS - 4, VALUE_CHARS + 8):
        assert not has_loose_words(format_value("x" * (length - 10) + "אבגדהוזחטי" * 3))
