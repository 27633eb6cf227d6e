"""What the terminal draws and asks: lines, forms, and streams that cannot show every character."""

import asyncio
import io
import re
import sys
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

import planwarden
from planwarden.agent.core.state import ExecutionState
from planwarden.server.api.grants import GrantRequest
from planwarden.server.cli.terminal.form import ask_for_json, fill_in
from planwarden.server.cli.terminal.lines import Style, TerminalLine, step_lines, value_summary
from planwarden.server.cli.terminal.terminal import THEME, Terminal
from planwarden.server.views.instants import format_age
from tests.kit import Authority, Ledger, confirm, model_step, plan, requirement, says, tool_step, warden

HUMAN = Authority(assurance="human", channel="terminal", principal="ann")


class RecordedStream(io.TextIOWrapper):
    """A stream with an encoding, which keeps what was written."""

    def __init__(self, encoding: str) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding=encoding, errors="replace", newline="")

    def getvalue(self) -> str:
        self.flush()
        return self._bytes.getvalue().decode(self.encoding)


def type_lines(*lines: str) -> tuple[Terminal, RecordedStream]:
    """Returns a terminal on which somebody types these lines, and its output."""
    paper = RecordedStream("utf-8")
    return Terminal(paper, io.StringIO("".join(f"{line}\n" for line in lines))), paper


def ran(
    document: dict[str, JsonValue],
    *,
    script: Sequence[JsonValue] | None = None,
    decide: bool | None = None,
) -> ExecutionState:
    """Runs a plan until it ends or waits, and returns its state."""

    async def work() -> ExecutionState:
        async with warden(Ledger(), script=script) as w:
            execution = await w.execute_plan(document)
            while decide is not None and execution.suspensions:
                [question] = execution.suspensions
                reason = None if decide else "no need"
                decision = planwarden.Decision(approved=decide, reason=reason)
                execution = await w.resume_execution(
                    execution.thread_id, question.suspension_id, decision, principal="local"
                )
            state = await w.service.engine.find(execution.execution_id)
            return state

    return asyncio.run(work())


def words(execution: ExecutionState, step_id: str) -> list[str]:
    return [line.text for line in step_lines(execution, execution.steps[step_id])]


def test_an_advisory_step_without_calls_is_not_shown_as_proven() -> None:
    execution = ran(plan(model_step("a", "note", toolValidationMode="advisory")), script=[says("I wrote it.")])
    assert words(execution, "a")[1:] == ['the model only wrote: "I wrote it."', "advisory: went on without note"]


def test_a_call_that_a_grant_let_through_names_the_grant() -> None:
    async def work() -> tuple[str, ExecutionState]:
        async with warden(Ledger()) as w:
            request = GrantRequest(tool_name="erase", free=("ids",), uses=1, expires_in_s=60)
            grant = await w.service.grants.make(request, HUMAN)
            execution = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
            return grant.grant_id, await w.service.engine.find(execution.execution_id)

    grant_id, execution = asyncio.run(work())
    assert words(execution, "a")[1] == f"erase(ids=[1]) → erased: 1 (allowed by grant {grant_id[:8]})"


def test_values_are_summarized_and_ages_use_the_largest_unit_that_fits() -> None:
    values: tuple[tuple[JsonValue, str], ...] = (
        (None, "null"),
        ("a\nb\u202e", '"a\\nb\\u202e"'),
        ([1, 2], "[1, 2]"),
        (list(range(100)), "100 items"),
        ({"a": 1, "b": {"c": list(range(50))}}, "a: 1, b: {…}"),
        ({}, "{}"),
        ({"$from": "find", "pointer": "/x"}, "from find"),
        ("x" * 1_000, '"' + "x" * 98 + "…"),
    )
    assert [value_summary(value) for value, _ in values] == [shown for _, shown in values]
    ages = {59: "less than a minute ago", 60: "1 minute ago", 7_200: "2 hours ago", 90 * 86_400: "90 days ago"}
    assert {seconds: format_age(seconds) for seconds in ages} == ages


def test_a_stream_that_is_no_terminal_asks_nobody_and_without_unicode_gets_ascii() -> None:
    paper = RecordedStream("ascii")
    Terminal(paper).say(TerminalLine(("done → well · yes…",), "done"), TerminalLine(("indented",), indent=1))
    Terminal(paper, io.StringIO("y\n")).ask("Approve? [y · n] ")
    assert paper.getvalue() == "+ done -> well | yes...\n    indented\nApprove? [y | n] "
    terminal, _ = type_lines("y")
    assert not terminal.can_ask
    terminal.keyboard.close()
    assert not terminal.can_ask


def test_plain_lines_appear_once_per_step() -> None:
    paper = RecordedStream("utf-8")
    terminal = Terminal(paper)
    execution = ran(plan(tool_step("a", "find", {"topic": "t"}), confirm("b")))
    for _ in range(3):
        with terminal.live() as update:
            update(execution)
            update(execution)
    assert paper.getvalue().count("✓ a") == 1
    assert paper.getvalue().count("? b") == 1


def test_the_end_of_input_stops_a_form() -> None:
    terminal, _ = type_lines()
    assert fill_in(terminal, {"type": "object", "properties": {"a": {"type": "string"}}}) is None
    assert terminal.ask("more? ") is None


def test_a_flat_form_is_asked_again_until_the_content_fits() -> None:
    form: dict[str, JsonValue] = {
        "type": "object",
        "minProperties": 1,
        "properties": {"size": {"type": "number"}, "note": {"type": "string", "maxLength": 3}},
    }
    terminal, paper = type_lines("", "", "1.5", "much too long", "abc")
    assert fill_in(terminal, form) == {"size": 1.5, "note": "abc"}
    assert "propert" in paper.getvalue() and "longer than 3" in paper.getvalue()


def test_a_required_field_without_a_default_is_asked_again() -> None:
    form: dict[str, JsonValue] = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    terminal, paper = type_lines("", "7")
    assert fill_in(terminal, form) == {"a": 7}
    assert "this field is needed" in paper.getvalue()


@pytest.mark.parametrize(
    "form",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/x", "type": "string"}}, "$defs": {"x": {}}},
        {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
        {"type": "object", "properties": {"a": True}},
    ],
)
def test_a_form_that_is_not_flat_is_answered_in_json(
    form: dict[str, JsonValue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    terminal, _ = type_lines('{"b": [1]}')
    assert fill_in(terminal, form) == {"b": [1]}


def test_a_result_can_be_typed_as_json_or_as_text() -> None:
    expected: dict[str, tuple[bool, JsonValue]] = {
        "": (True, None),
        "5": (True, 5),
        '{"a": [true]}': (True, {"a": [True]}),
        "just words": (True, "just words"),
        '{"a": ': (False, None),
        "NaN": (False, None),
    }
    assert {typed: ask_for_json(type_lines(typed)[0], "result: ") for typed in expected} == expected


SEQUENCE = re.compile(r"\x1b\[\??[0-9;]*[a-zA-Z]")
LETTERS = st.text(st.sampled_from("ab -\n日本́👍[]/x"), max_size=60)
STYLES: list[Style] = ["plain", "bold", "good"]


class TerminalStream(RecordedStream):
    """What a terminal shows."""

    def isatty(self) -> bool:
        return True


MakeTerminal = Callable[..., tuple[Terminal, TerminalStream]]


@pytest.fixture
def make_terminal(monkeypatch: pytest.MonkeyPatch) -> MakeTerminal:
    """Makes terminals of 24 columns."""
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def make(encoding: str = "utf-8") -> tuple[Terminal, TerminalStream]:
        paper = TerminalStream(encoding)
        return Terminal(paper), paper

    return make


def rows_of(line: TerminalLine, cells: int) -> list[Text]:
    """Returns the rows of the line on a terminal of so many columns."""
    console = Console(file=io.StringIO(), width=cells, force_terminal=True, theme=THEME)
    return [row for row in line.__rich_console__(console, console.options) if isinstance(row, Text)]


@requirement("display:invisible")
@given(st.lists(st.tuples(LETTERS, st.sampled_from(STYLES)), max_size=4), st.integers(2, 30))
def test_rows_fit_and_have_every_letter_in_its_style_and_order(spans: list[tuple[str, Style]], cells: int) -> None:
    rows = rows_of(TerminalLine(tuple(spans)), cells)
    shown: list[tuple[str, object]] = []
    for row in rows:
        assert cell_len(row.plain) <= cells
        for place, letter in enumerate(row.plain):
            styles = [span.style for span in row.spans if span.start <= place < span.end]
            shown += [] if letter.isspace() else [(letter, styles[-1])]
    assert shown == [(letter, style) for text, style in spans for letter in text if not letter.isspace()]
    assert len(rows) >= sum(text.count("\n") for text, _ in spans) + 1


def test_what_follows_a_mark_hangs_below_its_text_and_a_frame_has_straight_sides(
    make_terminal: MakeTerminal,
) -> None:
    terminal, paper = make_terminal()
    line = TerminalLine((("pay", "bold"), "  the invoice of 日本語 today"), "asks", 1)
    terminal.say(line, TerminalLine(("quiet",), indent=1))
    terminal.panel("Confirm? " + "x" * 40, [line], "warn")
    terminal.say_unbroken("Approve? [bold]" + "y" * 20)
    text = paper.getvalue()
    assert SEQUENCE.sub("", text).splitlines() == [
        "     ? pay  the invoice",
        "       of 日本語 today",
        "    quiet",
        "╭─ Confirm? xxxxxxxxx…─╮",
        "│      ? pay  the      │",
        "│        invoice of    │",
        "│        日本語 today  │",
        "╰──────────────────────╯",
        "Approve? [bold]yyyyyyyyyyyyyyyyyyyy",
    ]
    assert "\x1b[1;36m?" in text and "\x1b[1mpay" in text and "\x1b[33m│" in text


def test_a_terminal_without_unicode_gets_frames_and_signs_that_it_has(
    make_terminal: MakeTerminal,
) -> None:
    terminal, paper = make_terminal("ascii")
    terminal.panel("Confirm", [TerminalLine(("a → b…",), "done")], "warn")
    assert SEQUENCE.sub("", paper.getvalue()).splitlines() == [
        "+- Confirm ------------+",
        "|  + a -> b...         |",
        "+----------------------+",
    ]


def show(terminal: Terminal, execution: ExecutionState) -> None:
    with terminal.live() as update:
        update(execution)
        print("a tool prints this")
        update(execution, "an answer")
        update(execution)


def test_the_last_state_of_a_run_stays_on_the_screen(
    make_terminal: MakeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, paper = make_terminal()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    execution = ran(plan(tool_step("a", "find", {"topic": "t"})))
    show(terminal, execution)
    text = paper.getvalue()
    assert "a tool prints this" in text
    shown = '✓ a  use find find(topic="t", limit=3) → ids: [1, 2, 3], topic: "t"'
    assert SEQUENCE.sub("", text.rpartition("\x1b[2K")[2]).split() == shown.split(), "what changes is cleared first"
    show(terminal, execution)
    assert paper.getvalue().count("✓") == text.count("✓"), "what is settled is not drawn again"
