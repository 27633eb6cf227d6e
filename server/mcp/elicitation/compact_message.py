"""The compact message of a question for small forms: findings and facts on three short lines, then the words.

Claude Code 2.1.330 shows four lines of an elicitation's message, or three lines and a count when there are more, and
cuts each line at the terminal's width less six columns. So the facts must fit on `MAX_FACT_LINES` lines of `LINE_CELLS`
columns. If they do not fit, there is no compact message and the question does not become a form. All further text is on
one last line, so that there are never more than `MAX_LINES`. A line that continues the one before begins with a bar, so
that text from outside never begins a line. The same question always has the same message.
"""

import unicodedata
from itertools import accumulate, takewhile

from planwarden.server.views.facts import (
    PlannedStep,
    continue_isolation,
    cut_text,
    find_form_titles,
    find_repeated_argument,
    format_argument_name,
    format_instant,
    format_value,
    is_isolating,
    list_planned_steps,
)
from planwarden.server.views.question_text import build_heading, build_label, format_found, format_words
from planwarden.server.views.suspension import CoveredCallView, RemoteCallView, Suspension

MAX_LINES = 4
MAX_FACT_LINES = 3
LINE_CELLS = 74
"""The room that a terminal of 80 columns leaves."""
CONTINUATION = "| "


def build_compact_message(suspension: Suspension) -> str | None:
    """Facts and the agent's words on at most `LINES` lines; None when the facts do not fit.

    Words that an argument repeats are a fact and stand there. Unless the question is about a call alone, the decision
    is about the words, so those must fit too. Otherwise they prove nothing: they may run beyond the visible part of
    the last line, and then their length stands before them.
    """
    layouts = _find_layouts(suspension)
    repeated = find_repeated_argument(suspension)
    label = build_label(suspension)
    words = format_words(suspension) if repeated is None else f"the same as {format_argument_name(repeated)}"
    word_lines = _wrap_lines(f"{label}: {words}")
    facts = next((lines for lines in layouts if len(lines) + len(word_lines) <= MAX_LINES), None)
    if facts is not None:
        return "\n".join([*facts, *word_lines])
    if not suspension.is_about_calls or suspension.asker is not None or not layouts:
        return None
    facts = layouts[0]
    counted = f"{label}, {len(suspension.message)} characters: {words}"
    return "\n".join([*facts, *_wrap_lines(counted, most=MAX_LINES - len(facts))])


def build_compact_facts(suspension: Suspension) -> list[str] | None:
    """All facts on at most `MAX_FACT_LINES` lines of at most `LINE_CELLS` columns; None when they do not fit."""
    return next(iter(_find_layouts(suspension)), None)


def _find_layouts(suspension: Suspension) -> list[list[str]]:
    """The layouts in which all facts fit, the most readable one first; empty when there is none."""
    head, arguments, covers, notes = (
        _format_headline(suspension),
        _format_arguments(suspension),
        _format_covered_calls(suspension),
        _format_notes(suspension),
    )
    findings = [sentence.removesuffix(".") for sentence in format_found(suspension)]
    if sum(map(len, (head, *findings, *arguments, *covers, *notes))) > MAX_FACT_LINES * LINE_CELLS:
        return []
    found = f"planwarden found: {'; '.join(findings)}" if findings else ""
    given, covered, noted = ", ".join(arguments), "; ".join(covers), "; ".join(notes)
    rest = "; ".join(filter(None, (found, given, covered, noted)))
    ways = (
        (head, found, given, covered, noted),
        (head, found, *arguments, *covers, *notes),
        (head, found, "; ".join(filter(None, (given, covered, noted)))),
        ("; ".join(filter(None, (head, found, given))), covered, noted),
        (head, rest),
        (f"{head}; {rest}",),
    )
    found = [[line for part in way if part for line in _wrap_lines(part)] for way in ways]
    found.append(_wrap_lines(f"{head}; {rest}", at_spaces=False))
    fitting = [lines for lines in found if len(lines) <= MAX_FACT_LINES]
    return sorted(fitting, key=lambda lines: any(line.startswith(CONTINUATION) for line in lines))


def build_headline(suspension: Suspension) -> list[str]:
    """The kind of question, the tool and the risk, for an address to open; the page shows the rest."""
    return _wrap_lines(_format_headline(suspension), most=MAX_FACT_LINES - 1)


def _format_headline(suspension: Suspension) -> str:
    call, heading = suspension.tool_call, build_heading(suspension)
    words = [
        heading if heading.endswith("?") else f"{heading}:",
        _format_name(call.tool_name) if call is not None else "",
        f"(risk: {suspension.risk})" if suspension.risk is not None else "",
    ]
    return " ".join(word for word in words if word)


def _format_arguments(suspension: Suspension) -> list[str]:
    """Every argument with its value; for the form itself, its fields stand below."""
    call = suspension.tool_call
    if suspension.background.plan is not None:
        return [_format_step(step) for step in list_planned_steps(suspension)]
    if call is None:
        return []
    shown: list[str] = []
    for name, value in call.arguments.items():
        is_form = value is not None and value == suspension.answer_schema
        shown.append(f"{format_argument_name(name)}={'(the fields below)' if is_form else format_value(value)}")
    return shown or ["no arguments"]


def _format_step(step: PlannedStep) -> str:
    called = [_format_call(CoveredCallView(step_id="", tool_name=name, arguments=given)) for name, given in step.calls]
    others = (f"{key}={format_value(value)}" for key, value in step.shown.items())
    return " ".join([f"{step.heading}:", *called, *others])


def _format_covered_calls(suspension: Suspension) -> list[str]:
    """Every call that the same decision releases, here or there; the first entry begins with their number."""
    if suspension.kind == "review":
        # No form covers anything; the page and the terminal do.
        return []
    calls = [_format_call(call) for call in suspension.covered or suspension.releases]
    word = "covers" if suspension.covered else "runs there"
    return [f"{word} {len(calls)}: {calls[0]}", *calls[1:]] if calls else []


def _format_call(call: CoveredCallView | RemoteCallView) -> str:
    given = ", ".join(f"{format_argument_name(name)}={format_value(value)}" for name, value in call.arguments.items())
    return f"{_format_name(call.tool_name)}({given})"


def _format_notes(suspension: Suspension) -> list[str]:
    """The conditions of the decision."""
    notes: list[str] = []
    if suspension.expires_at is not None:
        notes.append(f"without an answer until {format_instant(suspension.expires_at)}: {suspension.on_timeout}")
    if titles := find_form_titles(suspension):
        notes.append(f"the form says of itself {format_value(titles)}")
    if suspension.quorum > 1:
        given = ", ".join(_format_name(vote.principal) for vote in suspension.endorsements) or "nobody yet"
        notes.append(f"needs {suspension.quorum} different people, approved by {given}")
    return notes


def _format_name(name: str) -> str:
    """The name, quoted when it has characters that could pass for more than a name."""
    is_plain = name.isascii() and all(part.isalnum() or part in "_-./:@" for part in name) and name != ""
    return name if is_plain else format_value(name)


def _wrap_lines(text: str, most: int | None = None, *, at_spaces: bool = True) -> list[str]:
    """The text on lines of `LINE_CELLS` columns; with `most`, the last line holds all the rest."""
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
    """How many characters fit into `cells` columns, ending at a space if there is one in the second half."""
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
        # Everything else of this category is escaped; the isolation of right-to-left words takes no room.
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
