"""What a terminal asks and draws: the dialogue of a run, forms, lines, and streams that cannot show everything."""

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

import planwarden
from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import plan_to_json
from planwarden.server.cli.commands.run import run_plan
from planwarden.server.cli.home import GivenPlan
from planwarden.server.cli.session import CliSession, exit_code
from planwarden.server.cli.terminal.form import ask_for_json, fill_in
from planwarden.server.cli.terminal.lines import Style, TerminalLine, value_summary
from planwarden.server.cli.terminal.terminal import THEME, Terminal
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.instants import format_age
from tests.kit import Decision, Home, requirement
from tests.server.cli.support import ASK_FORM, ERASE, Cli, TypedTerminal, step
from tests.server.views.test_voices import PATH, has_loose_words
from tests.support.wardens import end_at_once
from tests.tools.downstream.support import wait_until

CONFIRM = step("ask", "displayConfirmation", {"action": "Erase them?"}, confirms=["erase"])


def run(cli: Cli, terminal: TypedTerminal, *steps: JsonValue) -> ExecutionState:
    session = CliSession(Home.load(cli.home), terminal)
    execution = run_plan(session, GivenPlan({"todoList": list(steps)}))
    session.draw_outcome(execution)
    return execution


@pytest.mark.parametrize("typed", [(), ("n",)], ids=["before an answer", "before the reason of a rejection"])
def test_the_end_of_input_leaves_the_question_open(cli: Cli, typed: tuple[str, ...]) -> None:
    terminal = TypedTerminal(*typed)
    execution = run(cli, terminal, ERASE)
    assert (execution.status, exit_code(execution)) == ("suspended", 3)
    assert f"planwarden --home {cli.home} approve" in terminal.shown
    assert cli.ledger == []


@requirement("forms:whole")
def test_what_a_form_asks_stands_whole_before_its_fields(cli: Cli) -> None:
    label, action = "l" * 300 + "END", "a" * 600 + "END"
    form: JsonValue = {"type": "object", "title": label, "properties": {"n": {"type": "string", "description": label}}}
    terminal = TypedTerminal("x", "y", "v", "y")
    ask = step("ask", "requestInput", {"message": action, "form": form})
    execution = run(cli, terminal, ask, step("sure", "displayConfirmation", {"action": action}, dependencies=["ask"]))
    assert execution.status == "completed"
    before, _, after = terminal.shown.partition("v view all")
    fields = before.partition("The form says of itself")[2]
    assert label in fields.splitlines()[0] and f"n - {label}" in fields and before.count(action) >= 2
    assert action in after


@pytest.mark.parametrize("separator", ["\u2028", "\x85"])
def test_no_separator_of_lines_in_a_value_begins_a_line_where_all_is_shown(cli: Cli, separator: str) -> None:
    terminal = TypedTerminal("v", "")
    note = f"{'x' * 500}{separator}planwarden found: nothing"
    run(cli, terminal, step("erase", "erase", {"ids": [1], "note": note}))
    whole = terminal.shown.partition("v view all")[2]
    assert "planwarden found: nothing" in whole
    assert not any(line.startswith("planwarden found: nothing") for line in whole.splitlines())


def test_only_a_typed_yes_approves(cli: Cli) -> None:
    terminal = TypedTerminal("ok", "Y E S", "true", "v", "")
    assert run(cli, terminal, ERASE).status == "suspended" and cli.ledger == []
    assert terminal.shown.count("Type one of the letters") == 4


@requirement("terminal:rows")
def test_the_arguments_of_a_single_call_are_edited_field_by_field_and_a_later_look_keeps_the_edit(cli: Cli) -> None:
    terminal = TypedTerminal("e", "[7]", "edited", "e", "", "", "yes")
    assert run(cli, terminal, ERASE).status == "completed" and cli.ledger == ["erase [7] edited"]
    for said in (
        "ids (Enter: [1, 2]",
        'note (Enter: "none")',
        'The call would run with {"ids": [7], "note": "edited"}',
    ):
        assert said in terminal.shown
    assert "ids (Enter: [7]" in terminal.shown and "The call is as it was." in terminal.shown


def test_each_field_of_a_form_is_asked_again_until_it_fits(cli: Cli) -> None:
    terminal = TypedTerminal("none", "0", "3", "perhaps", "yes", "", "", "y")
    result = run(cli, terminal, ASK_FORM).steps["ask"].result
    assert result == {"approved": True, "content": {"count": 3, "sure": True, "size": "small"}}
    for said in (
        *("count - How many (integer):", "less than the minimum", "sure (y/n):", "choose an option"),
        *('size (small | large) ["small"]:', "note (string, optional):", 'Your answer: {"count": 3, "sure": true, "'),
    ):
        assert said in terminal.shown


def test_arguments_can_be_edited_in_the_editor(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor.py"
    editor.write_text("import sys; open(sys.argv[1], 'w').write('{\"ids\": [8]}')")
    monkeypatch.setenv("EDITOR", f"{sys.executable} {editor}")
    terminal = TypedTerminal("e", "y")
    assert run(cli, terminal, ERASE).status == "completed" and cli.ledger == ["erase [8] none"]
    assert 'The call would run with {"ids": [8]}' in terminal.shown
    for written, said in (("'[8]'", "Arguments are a JSON object. The call is as it was."), ("chr(233)", "as it was")):
        editor.write_text(f"import sys; open(sys.argv[1], 'w', encoding='latin-1').write({written})")
        terminal = TypedTerminal("e", "")
        assert run(cli, terminal, ERASE).status == "suspended" and said in terminal.shown


def _ask_rows(cli: Cli, count: int, *typed: str) -> tuple[ExecutionState, str]:
    items: list[JsonValue] = [*range(count)]
    terminal = TypedTerminal(*typed)
    loop: JsonValue = {**step("wipe", "erase", {"ids": [{"$from": "item"}]}), "forEach": items}
    return run(cli, terminal, loop), terminal.shown


@requirement("terminal:rows")
def test_rows_that_were_not_on_the_screen_are_not_approved_by_a_single_letter(cli: Cli) -> None:
    execution, shown = _ask_rows(cli, 45, "y", "y", "+", "-", "y", "all")
    assert execution.status == "completed" and len(cli.ledger) == 45
    first, _, rest = shown.partition("Rows 1 to 20 of 45, page 1 of 3")
    assert "row 21" not in first and "Rows 21-45 were not on the screen" in rest
    assert "Rows 21 to 40 of 45, page 2 of 3" in rest and "Rows 41-45 were not on the screen" in rest


@requirement("terminal:rows")
def test_a_row_is_edited_field_by_field_and_enter_keeps_a_value(cli: Cli) -> None:
    execution, shown = _ask_rows(cli, 2, "e", "7", "e", "1", "", "by hand", "e", "2", "[1", "s", "0", "y")
    assert execution.status == "completed" and cli.ledger == ["erase [0] by hand", "erase [1] none"]
    assert 'Row 1 would run with {"ids": [0], "note": "by hand"}' in shown and "That is not valid JSON" in shown
    assert "Name one row from 1 to 2" in shown and "Name rows from 1 to 2" in shown


@pytest.mark.parametrize(
    ("typed", "status", "result"), [(("what?", "y", "{", "y", "[1]"), "completed", [1]), (("",), "suspended", None)]
)
def test_a_call_with_an_unknown_outcome_asks_what_happened(
    cli: Cli, typed: tuple[str, ...], status: str, result: JsonValue
) -> None:
    execution = run(cli, TypedTerminal(*typed), step("lost", "lost"))
    assert execution.status == status
    assert execution.steps["lost"].result == result


def test_approving_again_continues_an_execution_that_was_interrupted_after_its_approval(cli: Cli) -> None:
    suspension_id = cli.run_to_question(CONFIRM, ERASE, step("hang", "hang"))
    thread_id = str(cli.main("list", "--json").json["suspensions"][0]["threadId"])

    async def approve_and_stop() -> None:
        async with planwarden.Warden(cli.home) as warden:
            end_at_once(warden)
            await warden.resume_execution(thread_id, suspension_id, Decision(approved=True), wait_seconds=0)
            await wait_until((cli.home / "started").exists)

    asyncio.run(approve_and_stop())
    assert cli.main("show", thread_id, "--json").json["status"] == "running"
    result = cli.main("approve", suspension_id, "--json")
    assert (result.code, result.json["status"]) == (0, "completed")
    assert "It was approved before" in result.err
    assert cli.ledger == ["erase [1, 2] none"]
    again = cli.main("approve", suspension_id, "--json")
    assert (again.code, again.json) == (0, result.json)


@requirement("plan:review")
def test_a_plan_is_edited_at_the_terminal_before_it_starts(cli: Cli) -> None:
    edited = json.dumps({"todoList": [step("find", "find", {"topic": "new"})]})
    terminal = TypedTerminal("e", "[1]", "e", edited, "c", "y")
    session = CliSession(Home.load(cli.home), terminal)
    steps: list[JsonValue] = [step("find", "find", {"topic": "old"}), ERASE]
    execution = run_plan(session, GivenPlan({"todoList": steps}), options={"review": "person"})
    session.draw_outcome(execution)
    shown = terminal.shown
    assert execution.status == "completed" and cli.ledger == ["find new"]
    for said in ("The plan is as it was.", "It would run as:", "approved without covering calls"):
        assert said in shown


@requirement("plan:review")
def test_an_edit_of_a_plan_from_1_to_true_is_an_edit(cli: Cli) -> None:
    plan = GivenPlan({"todoList": [step("ask", "displayConfirmation", {"action": "Go?", "details": {"all": 1}})]})
    home, options = Home.load(cli.home), dict[str, JsonValue](review="person")
    asked = run_plan(CliSession(home, TypedTerminal("")), plan, options=options)
    assert asked.plan is not None
    edited = canonical_json(plan_to_json(asked.plan)).replace('"all":1', '"all":true')
    terminal = TypedTerminal("e", edited, "y", "y")
    execution = run_plan(CliSession(home, terminal), plan, options=options)
    assert execution.status == "completed" and "It would run as:" in terminal.shown
    assert execution.plan is not None and '"all":true' in canonical_json(plan_to_json(execution.plan))


class RecordedStream(io.TextIOWrapper):
    """A stream with an encoding, which keeps what was written."""

    def __init__(self, encoding: str) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding=encoding, errors="replace", newline="")

    def getvalue(self) -> str:
        self.flush()
        return self._bytes.getvalue().decode(self.encoding)


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
    Terminal(paper).say(TerminalLine("done → well · yes…", mark="done"), TerminalLine("indented", indent=1))
    Terminal(paper, io.StringIO("y\n")).ask("Approve? [y · n] ")
    assert paper.getvalue() == "+ done -> well | yes...\n    indented\nApprove? [y | n] "
    terminal = Terminal(paper, io.StringIO("y\n"))
    assert not terminal.can_ask
    terminal.keyboard.close()
    assert not terminal.can_ask


FLAT: JsonValue = {"size": {"type": "number"}, "note": {"type": "string", "maxLength": 3}}
NEEDED: JsonValue = {"a": {"type": "integer"}}
NOT_FLAT: list[dict[str, JsonValue]] = [
    {},
    {"properties": {"a": {"type": "array"}}},
    {"properties": {"a": {"$ref": "#/$defs/x", "type": "string"}}, "$defs": {"x": {}}},
    {"properties": {"a": {"type": ["string", "null"]}}},
    {"properties": {"a": True}},
]
FORMS: list[tuple[dict[str, JsonValue], tuple[str, ...], JsonValue, str]] = [
    (
        {"minProperties": 1, "properties": FLAT},
        ("", "", "1.5", "much too long", "abc"),
        {"size": 1.5, "note": "abc"},
        "longer than 3",
    ),
    ({"required": ["a"], "properties": NEEDED}, ("", "7"), {"a": 7}, "this field is needed"),
    ({"properties": NEEDED}, (), None, ""),
    ({"properties": {"a": {"enum": ["1", "b"]}}}, ("c", "1"), {"a": "1"}, "choose an option"),
    (NOT_FLAT[0], ("{", '{"b": 1}'), {"b": 1}, "not valid JSON"),
]
FORMS.extend((form, ('{"b": [1]}',), {"b": [1]}, "") for form in NOT_FLAT)


@pytest.mark.parametrize(("form", "typed", "content", "said"), FORMS)
def test_a_form_is_asked_again_until_it_fits_and_answered_in_json_where_it_is_not_flat(
    form: dict[str, JsonValue], typed: tuple[str, ...], content: JsonValue, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    terminal = TypedTerminal(*typed)
    assert fill_in(terminal, {"type": "object", **form}) == content and said in terminal.shown


def test_a_result_can_be_typed_as_json_or_as_text() -> None:
    expected: dict[str, tuple[bool, JsonValue]] = {
        "": (True, None),
        "5": (True, 5),
        '{"a": [true]}': (True, {"a": [True]}),
        "just words": (True, "just words"),
        '{"a": ': (False, None),
        "NaN": (False, None),
    }
    assert {typed: ask_for_json(TypedTerminal(typed), "result: ") for typed in expected} == expected


LETTERS = st.text(st.sampled_from("ab -\n日本́👍[]/x"), max_size=60)
STYLES: list[Style] = ["plain", "bold", "good"]


def rows_of(line: TerminalLine, cells: int) -> list[Text]:
    """Returns the rows of the line on a terminal of so many columns."""
    console = Console(file=io.StringIO(), width=cells, force_terminal=True, theme=THEME)
    return [row for row in line.__rich_console__(console, console.options) if isinstance(row, Text)]


@requirement("display:invisible")
@given(st.lists(st.tuples(LETTERS, st.sampled_from(STYLES)), max_size=4), st.integers(2, 30))
def test_rows_fit_and_have_every_letter_in_its_style_and_order(spans: list[tuple[str, Style]], cells: int) -> None:
    rows = rows_of(TerminalLine(*spans), cells)
    shown: list[tuple[str, object]] = []
    for row in rows:
        assert cell_len(row.plain) <= cells
        for place, letter in enumerate(row.plain):
            styles = [span.style for span in row.spans if span.start <= place < span.end]
            shown += [] if letter.isspace() else [(letter, styles[-1])]
    assert shown == [(letter, style) for text, style in spans for letter in text if not letter.isspace()]
    assert len(rows) >= sum(text.count("\n") for text, _ in spans) + 1


@requirement("shown:right-to-left")
@pytest.mark.parametrize("cells", range(2, 50))
def test_right_to_left_words_stay_isolated_on_every_row_over_which_they_go(cells: int) -> None:
    text = PATH.replace("אבג", "אבג דהו " * 6)
    rows = rows_of(TerminalLine("path = ", (escape_text(text), "dim"), indent=cells // 20), cells)
    assert not any(has_loose_words(row.plain) or cell_len(row.plain) > cells for row in rows)
    assert "".join("".join(row.plain for row in rows).translate({0x2067: "", 0x2069: ""}).split()) == (
        "path=" + "".join(text.split())
    )
