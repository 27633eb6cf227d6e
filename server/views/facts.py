"""What a person sees before deciding: facts first, then what the agent says, and nothing that could pass for either.

Facts come from the stored question alone: the tool, every argument, what else the decision covers, the risk. Values are
shown as JSON, so no text can start a new line or a new field; control, bidirectional, zero-width, tag and other invisible
characters are written as escapes and counted (https://www.unicode.org/reports/tr36/). Long values are cut with their
size and hash. The agent's own words come last, labelled as unverified. The same question always renders the same text.
"""

import hashlib
import json
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import datetime

from pydantic import JsonValue

from planwarden.server.views.execution import Suspension

VALUE_CHARS = 400
"""Of one argument; longer ones are cut."""
AGENT_CHARS = 500
ASKER_CHARS = 3_000
"""As `AGENT_CHARS`, of what a server or another agent asks: an address in it has to be seen whole."""
_MARKS_IN_A_ROW = 3
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Characters that show nothing although Unicode calls them letters, marks or symbols."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_HEADINGS = {
    "approval": "Run this call?",
    "confirmation": "Confirm?",
    "input": "Answer needed",
    "delegated": "Another agent asks",
    "reconcile": "Did this call happen? Its result never arrived.",
}


def facts_lines(suspension: Suspension) -> list[str]:
    """One fact a line, the heading first. Indentation shows what belongs together; no value spans lines."""
    lines = [_HEADINGS.get(suspension.kind, "Decision needed")]
    if suspension.asker is not None:
        lines.append(f"Asked by: {escape_text(suspension.asker)}")
    call = suspension.tool_call
    if call is not None:
        lines.append(f"Tool: {escape_text(call.tool_name)}")
        lines.extend(_argument_lines(call.arguments, "  ", spoken=spoken_argument(suspension)))
    if suspension.confirms:
        lines.append(f"The same decision also covers {len(suspension.confirms)} call(s):")
        for covered in suspension.confirms:
            lines.append(f"  {escape_text(covered.tool_name)} (step {escape_text(covered.step_id)})")
            lines.extend(_argument_lines(covered.arguments, "    "))
    if suspension.risk is not None:
        lines.append(f"Risk: {suspension.risk}")
    if suspension.quorum > 1:
        given = ", ".join(escape_text(vote.principal) for vote in suspension.endorsements) or "nobody yet"
        lines.append(f"Needs {suspension.quorum} different people; approved by: {given}")
    if suspension.revision > 1:
        lines.append(
            f"Revision {suspension.revision}: it was edited, or what it is about changed, since it was first asked"
        )
    if suspension.expires_at is not None:
        lines.append(f"Without an answer until {instant(suspension.expires_at)}: {suspension.on_timeout}")
    hidden = hidden_in(suspension)
    if hidden:
        lines.append(f"Escaped here: {hidden} control or invisible character(s)")
    return lines


def instant(moment: datetime) -> str:
    """The moment in UTC, to the second."""
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def hidden_in(suspension: Suspension) -> int:
    """How many characters had to be escaped to show the question."""
    return sum(map(count_hidden, _texts(suspension)))


def agent_lines(suspension: Suspension) -> list[str]:
    """The agent's words, labelled, on one line of at most `AGENT_CHARS` characters."""
    limit = AGENT_CHARS if suspension.asker is None else ASKER_CHARS
    said = escape_text(suspension.message[: limit + 1])
    if len(said) > limit or len(suspension.message) > limit:
        note = f"... [{len(suspension.message)} characters]"
        said = said[: limit - len(note)] + note
    return [f"The agent says (unverified): {said}"]


def shown_digest(suspension: Suspension) -> str:
    """SHA-256 of the question as every channel with room for it shows it, to be recorded with the decision."""
    return text_digest("\n".join([*facts_lines(suspension), *agent_lines(suspension)]))


def text_digest(text: str) -> str:
    """Hex SHA-256 of a text that was shown."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_shown_whole(value: JsonValue) -> bool:
    """True when the value is neither cut nor escaped, so that a form may offer it for editing."""
    return len(_json(value)) <= VALUE_CHARS and not any(map(count_hidden, _strings(value)))


def value_text(value: JsonValue) -> str:
    """The value as JSON on one line, escaped; cut with size and hash when it is long."""
    whole = _json(value)
    shown = escape_text(whole[: VALUE_CHARS + 1])
    if len(shown) <= VALUE_CHARS:
        return shown
    data = whole.encode("utf-8", "surrogatepass")
    return f"{shown[:VALUE_CHARS]}... [{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}]"


def escape_text(text: str) -> str:
    """The text on one line, every character that is invisible, or moves others, written as an escape."""
    return "".join(_escaped(character) if hides else character for character, hides in _marked(text))


def count_hidden(text: str) -> int:
    """How many characters `escape_text` escapes."""
    return sum(hides for _, hides in _marked(text))


def spoken_argument(suspension: Suspension) -> str | None:
    """The argument that is the agent's message itself and fits below, so that it need not be shown twice."""
    if suspension.tool_call is None or len(escape_text(suspension.message)) > AGENT_CHARS:
        return None
    found = suspension.tool_call.arguments.items()
    return next((name for name, value in found if value == suspension.message), None)


def argument_name(name: str) -> str:
    """The name as it is when it is plain, as JSON otherwise."""
    return name if name.isidentifier() and name.isascii() and len(name) <= 64 else value_text(name)


def _marked(text: str) -> Iterator[tuple[str, bool]]:
    """Each character with whether it has to be escaped; also marks piled up on one letter."""
    marks = 0
    for character in text:
        if " " <= character <= "~":
            marks = 0
            yield character, False
            continue
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        yield character, _hides(character, category) or marks > _MARKS_IN_A_ROW


def _hides(character: str, category: str) -> bool:
    is_selector = "\ufe00" <= character <= "\ufe0e" or "\U000e0100" <= character <= "\U000e01ef"
    return category[0] in "CZ" or is_selector or character in _INVISIBLE


def _escaped(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}")


def _argument_lines(arguments: Mapping[str, JsonValue], indent: str, *, spoken: str | None = None) -> Iterator[str]:
    for name, value in arguments.items():
        shown = "(what the agent says, below)" if name == spoken else value_text(value)
        yield f"{indent}{argument_name(name)} = {shown}"
    if not arguments:
        yield f"{indent}(no arguments)"


def _texts(suspension: Suspension) -> Iterator[str]:
    """Everything shown that came from outside; the message once, though it may be an argument too."""
    yield suspension.message
    call, spoken = suspension.tool_call, spoken_argument(suspension)
    shown = {name: value for name, value in call.arguments.items() if name != spoken} if call is not None else {}
    yield from _strings(shown)
    for covered in suspension.confirms:
        yield from _strings(covered.arguments)


def _strings(value: JsonValue) -> Iterator[str]:
    """Every string and key inside a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for child in value:
            yield from _strings(child)
    elif isinstance(value, dict):
        for key, child in value.items():
            yield key
            yield from _strings(child)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)
