"""The compact message that asks a question in a small form: findings and facts on three lines, then the agent's words.

Claude Code 2.1.330 shows four lines of an elicitation's message, or three lines and a count when there are more, and
cuts each line at the terminal's width minus six columns. So the facts must fit on `MAX_FACT_LINES` lines of
`LINE_CELLS` columns. If they do not, there is no compact message and the question does not become a form. The last
line takes all text that is left, so that there are never more than `MAX_LINES`. A line that continues the one before
begins with a bar, so that text from outside never begins a line. The same question always has the same message.
"""

import unicodedata
from itertools import accumulate, takewhile

from planwarden.server.views.card import Card
from planwarden.server.views.card_calls import Argument, CardCall, ToolNote
from planwarden.server.views.escaping import (
    continue_isolation,
    cut_text,
    format_argument_name,
    format_identifier,
    format_value,
    is_isolating,
)
from planwarden.server.views.instants import format_instant

MAX_LINES = 4
MAX_FACT_LINES = 3
LINE_CELLS = 74
"""How many columns of each line a terminal of 80 columns shows."""
CONTINUATION = "| "


def build_compact_message(card: Card) -> str | None:
    """Return facts and the agent's words on at most `MAX_LINES` lines; None when the facts do not fit.

    Words that repeat an argument are not written again, because the argument is a fact. If planwarden itself asks
    whether calls may run, the person does not decide about the words. Then the words, after their length, may run past
    the visible end of the last line. In any other question, the words must fit.
    """
    layouts, repeated = _find_layouts(card), card.repeated_argument
    words = card.words if repeated is None else f"the same as {format_argument_name(repeated)}"
    word_lines = _wrap_lines(f"{card.label}: {words}") if words else []
    facts = next((lines for lines in layouts if len(lines) + len(word_lines) <= MAX_LINES), None)
    if facts is not None:
        return "\n".join([*facts, *word_lines])
    if not card.question.traits.is_about_calls or card.asker or not layouts:
        return None
    facts = layouts[0]
    counted = f"{card.label}, {len(card.question.message)} characters: {words}"
    return "\n".join([*facts, *_wrap_lines(counted, most=MAX_LINES - len(facts))])


def build_compact_facts(card: Card) -> list[str] | None:
    """Return all facts on at most `MAX_FACT_LINES` lines of at most `LINE_CELLS` columns; None when they do not fit."""
    return next(iter(_find_layouts(card)), None)


def _find_layouts(card: Card) -> list[list[str]]:
    """Return the layouts in which all facts fit, the most readable one first; empty when there is none."""
    head, arguments, covers, notes = (
        _format_headline(card),
        _format_arguments(card),
        _format_covered_calls(card),
        _format_notes(card),
    )
    findings = [sentence.removesuffix(".") for sentence in card.findings]
    if sum(map(len, (head, *findings, *arguments, *covers, *notes))) > MAX_FACT_LINES * LINE_CELLS:
        return []
    findings_text = f"planwarden found: {'; '.join(findings)}" if findings else ""
    arguments_text, covered, noted = ", ".join(arguments), "; ".join(covers), "; ".join(notes)
    rest = "; ".join(filter(None, (findings_text, arguments_text, covered, noted)))
    ways = (
        (head, findings_text, arguments_text, covered, noted),
        (head, findings_text, *arguments, *covers, *notes),
        (head, findings_text, "; ".join(filter(None, (arguments_text, covered, noted)))),
        ("; ".join(filter(None, (head, findings_text, arguments_text))), covered, noted),
        (head, rest),
        (f"{head}; {rest}",),
    )
    layouts = [[line for part in way if part for line in _wrap_lines(part)] for way in ways]
    layouts.append(_wrap_lines(f"{head}; {rest}", at_spaces=False))
    fitting = [lines for lines in layouts if len(lines) <= MAX_FACT_LINES]
    return sorted(fitting, key=lambda lines: any(line.startswith(CONTINUATION) for line in lines))


def build_headline(card: Card) -> list[str]:
    """Return lines with the kind of question, the tool and the risk, for a link to the page that shows the rest."""
    return _wrap_lines(_format_headline(card), most=MAX_FACT_LINES - 1)


def _format_headline(card: Card) -> str:
    words = [
        card.heading if card.heading.endswith("?") else f"{card.heading}:",
        _format_tool(card.call.tool) if card.call is not None else "",
        f"(risk: {card.question.risk})" if card.question.risk is not None else "",
    ]
    return " ".join(word for word in words if word)


def _format_arguments(card: Card) -> list[str]:
    """Return every argument with its value, or every step of a plan; for a form, only refer to the fields below."""
    if card.call is not None:
        return list(map(_format_argument, card.call.arguments)) or ["no arguments"]
    return [
        " ".join(
            [
                f"{step.heading}:",
                *map(_format_call, step.calls),
                *(f"{key}={format_value(value.value)}" for key, value in step.facts),
            ]
        )
        for step in card.steps
    ]


def _format_covered_calls(card: Card) -> list[str]:
    """Return every call that the decision releases, here or at another agent; the first entry begins with a count."""
    if card.plan is not None:
        # A person can approve the calls together with the plan only on the page or in the terminal.
        return []
    covered = card.covered or card.rows
    calls = list(map(_format_call, covered or card.released))
    return [f"{'covers' if covered else 'runs there'} {len(calls)}: {calls[0]}", *calls[1:]] if calls else []


def _format_call(call: CardCall) -> str:
    return f"{_format_tool(call.tool)}({', '.join(map(_format_argument, call.arguments))})"


def _format_tool(tool: ToolNote) -> str:
    return f"{format_identifier(tool.name)}{f' of {tool.server}' if tool.server else ''}"


def _format_argument(argument: Argument) -> str:
    """Return the argument with its value, and the results that it comes from; there is no space for other origins."""
    value = "(the fields below)" if argument.is_form else format_value(argument.value.value)
    origins = f" ({', '.join(argument.result_origins)})" if argument.result_origins else ""
    return f"{format_argument_name(argument.name)}={value}{origins}"


def _format_notes(card: Card) -> list[str]:
    """Return the conditions of the decision."""
    notes: list[str] = []
    if card.expires_at is not None:
        notes.append(f"without an answer until {format_instant(card.expires_at)}: {card.question.on_timeout}")
    if card.form_titles:
        notes.append(f"the form says of itself {format_value(card.form_titles)}")
    if card.question.quorum > 1:
        names = ", ".join(format_identifier(vote.name) for vote in card.votes) or "nobody yet"
        notes.append(f"needs {card.question.quorum} different people, approved by {names}")
    return notes


def _wrap_lines(text: str, most: int | None = None, *, at_spaces: bool = True) -> list[str]:
    """Return the text on lines of `LINE_CELLS` columns; with `most`, the last line holds all the rest."""
    lines: list[str] = []
    begins = ""
    while True:
        at = _find_line_end(text, LINE_CELLS - len(begins), at_spaces=at_spaces)
        if len(lines) + 1 == most:
            at = len(text)
        line, text = text[:at], text[at:]
        if text and is_isolating(line):
            line, text = cut_text(line, at), continue_isolation(text)
        lines.append(begins + line)
        begins = CONTINUATION
        if not text:
            return lines


def _find_line_end(text: str, cells: int, *, at_spaces: bool) -> int:
    """Return how many characters fit into `cells` columns, ending at a space if there is one in the second half."""
    at = sum(1 for _ in takewhile(lambda used: used <= cells, accumulate(map(_count_cells, text))))
    if at == len(text):
        return at
    space = text.rfind(" ", 0, at) + 1
    if at_spaces and space > at // 2:
        return space
    while at > 1 and unicodedata.category(text[at])[0] == "M":
        # A combining mark stays with its letter.
        at -= 1
    return at


def _count_cells(character: str) -> int:
    if unicodedata.category(character) == "Cf":
        # All characters of this category are escaped, except the marks around right-to-left words. These have no width.
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
