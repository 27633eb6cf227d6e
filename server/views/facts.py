"""Renders a question as text: facts first, then what the agent says, so that neither can imitate the other.

Facts come only from the stored question: the tool, every argument, what else the decision covers, the risk. Values are
JSON, so no text can start a new line or a new field; control, bidirectional, zero-width, tag and other invisible
characters become escapes and are counted (https://www.unicode.org/reports/tr36/). Right-to-left words are isolated, so
that they move no character beside them. Long values are cut, with their size and hash. The agent's own words come last,
labelled as unverified. The same question always renders the same text.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from planwarden.server.views.suspension import EditView, Endorsement, Suspension, format_instant

VALUE_CHARS = 400
"""Longest argument; longer ones are cut."""
AGENT_CHARS = 500
ASKER_CHARS = 3_000
"""Replaces `AGENT_CHARS` when a server or another agent asks, because an address must be seen whole."""
AGENT_LABEL = "The agent says (unverified): "
_MARKS_IN_A_ROW = 3
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Characters that are invisible although Unicode calls them letters, marks or symbols."""
_UNUSUAL = re.compile("[^ -~]+")
"""Runs of characters that are looked at one by one; in all others there is nothing to escape."""
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
_WORDS = re.compile("R[RM]*(?: +R[RM]*)*")
"""Right-to-left words, with `M` for a mark on the letter before it, as `_isolate` describes characters."""
_ISOLATE, _END = "\u2067", "\u2069"
"""RIGHT-TO-LEFT ISOLATE and POP DIRECTIONAL ISOLATE; such characters of the text itself are escaped."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_HEADINGS = {
    "approval": "Run this call?",
    "confirmation": "Confirm?",
    "input": "Answer needed",
    "delegated": "Another agent asks",
    "reconcile": "Did this call happen? Its result never arrived.",
}


def format_facts(suspension: Suspension, *, limit: int | None = VALUE_CHARS, is_form_shown: bool = False) -> list[str]:
    """Returns the heading and one fact a line. Indentation shows what belongs together; no value spans lines.

    Values are cut to `limit`, or not at all. Where the fields of a form are shown, they are not repeated as a value.
    """
    lines = [_HEADINGS.get(suspension.kind, "Decision needed")]
    for edit in suspension.edits:
        lines.append(f"Edited by {describe_editor(edit)}: {format_edited_arguments(edit, limit)}")
    if suspension.asker is not None:
        lines.append(f"Asked by: {escape_text(suspension.asker)}")
    call = suspension.tool_call
    if call is not None:
        lines.append(f"Tool: {escape_text(call.tool_name)}")
        form = suspension.answer_schema if is_form_shown else None
        lines.extend(_format_arguments(call.arguments, "  ", limit, form))
    if suspension.confirms:
        lines.append(f"The same decision also covers {len(suspension.confirms)} call(s):")
        for covered in suspension.confirms:
            lines.append(f"  {escape_text(covered.tool_name)} (step {escape_text(covered.step_id)})")
            lines.extend(_format_arguments(covered.arguments, "    ", limit))
    lines.extend(_format_remote_calls(suspension, limit))
    if is_form_shown and (titles := find_form_titles(suspension)):
        lines.append(f"The form says of itself: {format_value(titles, limit)}")
    return [*lines, *_format_conditions(suspension, limit)]


def _format_remote_calls(suspension: Suspension, limit: int | None) -> Iterator[str]:
    """Yields what an approval releases at another agent, and why it cannot be given here."""
    if suspension.releases:
        asker = escape_text(suspension.asker or "")
        yield f"Approving it lets {len(suspension.releases)} call(s) run there, as {asker} says:"
    for call in suspension.releases:
        yield f"  {escape_text(call.tool_name)}"
        yield from _format_arguments(call.arguments, "    ", limit)
    if suspension.undecidable is not None:
        yield f"It cannot be approved here, only rejected: {escape_text(suspension.undecidable)}"


def is_whole(suspension: Suspension, *, is_form_shown: bool = False) -> bool:
    """Returns True if no fact is cut, nor the words where the decision is about them."""
    facts = (format_facts(suspension, limit=limit, is_form_shown=is_form_shown) for limit in (VALUE_CHARS, None))
    if next(facts) != next(facts):
        return False
    is_about_words = suspension.kind != "approval" and find_repeated_argument(suspension) is None
    return not is_about_words or format_agent_words(suspension) == format_agent_words(suspension, is_cut=False)


def find_form_titles(suspension: Suspension) -> dict[str, JsonValue]:
    """Returns what the form says of itself, which no field shows."""
    form = suspension.answer_schema or {}
    return {key: form[key] for key in ("title", "description") if key in form}


def _format_conditions(suspension: Suspension, limit: int | None) -> list[str]:
    """Returns what else decides about the question: its risk, who approved, its revision, and its end."""
    lines: list[str] = []
    if suspension.risk is not None:
        lines.append(f"Risk: {suspension.risk}")
    if suspension.quorum > 1:
        given = ", ".join(_format_vote(vote, limit) for vote in suspension.endorsements) or "nobody yet"
        lines.append(f"Needs {suspension.quorum} different people; approved by: {given}")
    if suspension.revision > 1:
        lines.append(f"Revision {suspension.revision}: it, or what it is about, changed since it was first asked")
    if suspension.expires_at is not None:
        lines.append(f"Without an answer until {format_instant(suspension.expires_at)}: {suspension.on_timeout}")
    hidden = count_escaped(suspension)
    if hidden:
        lines.append(f"Escaped here: {hidden} control or invisible character(s)")
    return lines


def _format_vote(vote: Endorsement, limit: int | None) -> str:
    answer = "" if vote.content is None else f" (who answered {format_value(vote.content, limit)})"
    return f"{escape_text(vote.principal)}{answer}"


def describe_editor(edit: EditView) -> str:
    """Returns who edited arguments and what that is worth; only a proven person is called by a name alone."""
    worth = f"({edit.assurance}, {escape_text(edit.channel)})"
    if edit.assurance in ("claimed", "caller"):
        return f"the calling model {worth}"
    name = escape_text(edit.principal)
    return f"the client of {name} {worth}" if edit.assurance == "client" else f"{name} {worth}"


def format_edited_arguments(edit: EditView, limit: int | None = VALUE_CHARS) -> str:
    """Returns the names of the edited arguments, separated by commas."""
    return ", ".join(format_argument_name(name, limit) for name in edit.arguments)


def count_escaped(suspension: Suspension) -> int:
    """Returns how many characters of the question are escaped."""
    return sum(map(count_hidden, _iterate_texts(suspension)))


def format_agent_words(suspension: Suspension, *, is_cut: bool = True) -> list[str]:
    """Returns the agent's words, labelled, on one line, cut to `AGENT_CHARS` or `ASKER_CHARS` characters."""
    if not is_cut:
        return [f"{AGENT_LABEL}{escape_text(suspension.message)}"]
    limit = AGENT_CHARS if suspension.asker is None else ASKER_CHARS
    said = escape_text(suspension.message[: limit + 1])
    if measure_text(said) > limit or len(suspension.message) > limit:
        note = f"... [{len(suspension.message)} characters]"
        said = cut_text(said, limit - len(note)) + note
    return [f"{AGENT_LABEL}{said}"]


def hash_question(suspension: Suspension) -> str:
    """Returns the hex SHA-256 of the whole text of the question; it is recorded with the decision."""
    return hash_text("\n".join([*format_facts(suspension), *format_agent_words(suspension)]))


def hash_text(text: str) -> str:
    """Returns the hex SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_shown_whole(value: JsonValue) -> bool:
    """Returns True if the value is neither cut nor escaped, so that a form may offer it for editing."""
    return len(_dump_json(value)) <= VALUE_CHARS and not any(map(count_hidden, _iterate_strings(value)))


def format_value(value: JsonValue, limit: int | None = VALUE_CHARS) -> str:
    """Returns the value as escaped JSON on one line; one longer than `limit` is cut, with its size and hash."""
    whole = _dump_json(value)
    if limit is None:
        return escape_text(whole)
    shown = escape_text(whole[: limit + 1])
    if measure_text(shown) <= limit:
        return shown
    data = whole.encode("utf-8", "surrogatepass")
    return f"{cut_text(shown, limit)}... [{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}]"


def escape_text(text: str) -> str:
    """Returns the text on one line, with escapes for characters that are invisible or move others.

    Slashes, quotes and digits beside right-to-left words would be moved too (https://www.unicode.org/reports/tr9/): in
    `/a/\u05d0\u05d1/123` the last two parts would change places. Therefore each run of such words is isolated.
    """
    shown = _UNUSUAL.sub(_escape_run, text)
    return shown if shown.isascii() else _isolate(shown)


def cut_text(shown: str, limit: int) -> str:
    """Returns the first `limit` characters of an escaped text; nothing that follows them is isolated with them."""
    cut = shown[:limit]
    return cut + _END if is_isolating(cut) else cut


def measure_text(shown: str) -> int:
    """Returns the length of an escaped text without what isolates its right-to-left words."""
    return len(shown) - shown.count(_ISOLATE) - shown.count(_END)


def is_isolating(shown: str) -> bool:
    """True when the text ends inside right-to-left words."""
    return shown.rfind(_ISOLATE) > shown.rfind(_END)


def continue_isolation(shown: str) -> str:
    """Returns the rest of an escaped text that was cut inside right-to-left words, so that it can stand alone."""
    return shown[1:] if shown.startswith(_END) else _ISOLATE + shown


def count_hidden(text: str) -> int:
    """Returns how many characters `escape_text` escapes."""
    return sum(hides for run in _UNUSUAL.findall(text) for _, hides in _find_hidden(run))


def find_repeated_argument(suspension: Suspension) -> str | None:
    """Returns the name of the argument that equals the agent's message; the argument is a fact and always shown."""
    if suspension.tool_call is None:
        return None
    found = suspension.tool_call.arguments.items()
    return next((name for name, value in found if value == suspension.message), None)


def format_argument_name(name: str, limit: int | None = VALUE_CHARS) -> str:
    """Returns a plain name unchanged, any other name as JSON."""
    return name if name.isidentifier() and name.isascii() and len(name) <= 64 else format_value(name, limit)


def _find_hidden(run: str) -> Iterator[tuple[str, bool]]:
    """Yields each character of a run with whether it must be escaped, which marks piled up on one letter must too."""
    marks = 0
    for character in run:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        yield character, _is_hidden(character, category) or marks > _MARKS_IN_A_ROW


def _escape_run(found: re.Match[str]) -> str:
    return "".join(_escape(character) if hides else character for character, hides in _find_hidden(found[0]))


def _isolate(shown: str) -> str:
    kinds = "".join(map(_describe_direction, shown))
    parts, after = list[str](), 0
    for found in _WORDS.finditer(kinds):
        parts += [shown[after : found.start()], _ISOLATE, shown[found.start() : found.end()], _END]
        after = found.end()
    return "".join([*parts, shown[after:]])


def _describe_direction(character: str) -> str:
    if character <= "~":
        return character if character == " " else "x"
    direction = unicodedata.bidirectional(character)
    return "R" if direction in _RIGHT_TO_LEFT else "M" if direction == "NSM" else "x"


def _is_hidden(character: str, category: str) -> bool:
    is_selector = "\ufe00" <= character <= "\ufe0e" or "\U000e0100" <= character <= "\U000e01ef"
    return category[0] in "CZ" or is_selector or character in _INVISIBLE


def _escape(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}")


def _format_arguments(
    arguments: Mapping[str, JsonValue], indent: str, limit: int | None, form: JsonValue = None
) -> Iterator[str]:
    for name, value in arguments.items():
        shown = "(the fields below)" if form is not None and value == form else format_value(value, limit)
        yield f"{indent}{format_argument_name(name, limit)} = {shown}"
    if not arguments:
        yield f"{indent}(no arguments)"


def _iterate_texts(suspension: Suspension) -> Iterator[str]:
    """Yields all shown text from outside; the message once, although it may be an argument too."""
    yield suspension.message
    call, spoken = suspension.tool_call, find_repeated_argument(suspension)
    shown = {name: value for name, value in call.arguments.items() if name != spoken} if call is not None else {}
    yield from _iterate_strings(shown)
    for covered in (*suspension.confirms, *suspension.releases):
        yield from _iterate_strings(covered.arguments)


def _iterate_strings(value: JsonValue) -> Iterator[str]:
    """Yields every string and key inside a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for child in value:
            yield from _iterate_strings(child)
    elif isinstance(value, dict):
        for key, child in value.items():
            yield key
            yield from _iterate_strings(child)


def _dump_json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
