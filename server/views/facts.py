"""Renders the facts of a question as text: the tool, its arguments, what else the decision covers, the risk.

Facts come only from the stored question: the tool, every argument, what else the decision covers, the risk. Values are
JSON, so no text can start a new line or a new field; control, bidirectional, zero-width, tag and other invisible
characters become escapes and are counted (https://www.unicode.org/reports/tr36/). Right-to-left words are isolated, so
that they move no character beside them. Long values are cut, with their size and hash. What a tool's source says of it
is quoted under the name of that source. The same question always renders the same text.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from planwarden.agent.common.struct import JsonValue
from planwarden.server.views.instants import format_instant
from planwarden.server.views.suspension import Background, Endorsement, Suspension

_DEFAULT_IGNORABLE = (
    "ad 34f 61c 115f-1160 17b4-17b5 180b-180f 200b-200f 202a-202e 2060-206f 3164 fe00-fe0f feff ffa0 fff0-fff8 "
    "1bca0-1bca3 1d173-1d17a e0000-e0fff"
)
"""Ranges of code points in hexadecimal."""
_DRAWN_AS_NOTHING = "2800"
"""BRAILLE PATTERN BLANK, which Unicode calls a symbol."""
_PICTURES = (
    "a9 ae 203c 2049 2122 2139 2194-2199 21a9-21aa 231a-231b 2328 23cf 23e9-23f3 23f8-23fa 24c2 25aa-25ab 25b6 25c0 "
    "25fb-25fe 2600-2604 260e 2611 2614-2615 2618 261d 2620 2622-2623 2626 262a 262e-262f 2638-263a 2640 2642 "
    "2648-2653 265f-2660 2663 2665-2666 2668 267b 267e-267f 2692-2697 2699 269b-269c 26a0-26a1 26a7 26aa-26ab "
    "26b0-26b1 26bd-26be 26c4-26c5 26c8 26ce-26cf 26d1 26d3-26d4 26e9-26ea 26f0-26f5 26f7-26fa 26fd 2702 2705 "
    "2708-270d 270f 2712 2714 2716 271d 2721 2728 2733-2734 2744 2747 274c 274e 2753-2755 2757 2763-2764 2795-2797 "
    "27a1 27b0 27bf 2934-2935 2b05-2b07 2b1b-2b1c 2b50 2b55 3030 303d 3297 3299 1f004 1f0cf 1f170-1f171 1f17e-1f17f "
    "1f18e 1f191-1f19a 1f1e6-1f1ff 1f201-1f202 1f21a 1f22f 1f232-1f23a 1f250-1f251 1f300-1f321 1f324-1f393 "
    "1f396-1f397 1f399-1f39b 1f39e-1f3f0 1f3f3-1f3f5 1f3f7-1f4fd 1f4ff-1f53d 1f549-1f54e 1f550-1f567 1f56f-1f570 "
    "1f573-1f57a 1f587 1f58a-1f58d 1f590 1f595-1f596 1f5a4-1f5a5 1f5a8 1f5b1-1f5b2 1f5bc 1f5c2-1f5c4 1f5d1-1f5d3 "
    "1f5dc-1f5de 1f5e1 1f5e3 1f5e8 1f5ef 1f5f3 1f5fa-1f64f 1f680-1f6c5 1f6cb-1f6d2 1f6d5-1f6d7 1f6dc-1f6e5 1f6e9 "
    "1f6eb-1f6ec 1f6f0 1f6f3-1f6fc 1f7e0-1f7eb 1f7f0 1f90c-1f93a 1f93c-1f945 1f947-1f9ff 1fa70-1fa7c 1fa80-1fa89 "
    "1fa8f-1fac6 1face-1fadc 1fadf-1fae9 1faf0-1faf8"
)
"""Characters with the property Emoji, without digits, which are seen no other way with U+FE0F unless a keycap follows.
"""
PICTURE, KEYCAP = "\ufe0f", "\u20e3"


def _compile(ranges: str) -> re.Pattern[str]:
    ends = (part.partition("-") for part in ranges.split())
    return re.compile("[" + "".join(f"{chr(int(low, 16))}-{chr(int(high or low, 16))}" for low, _, high in ends) + "]")


_INVISIBLE = _compile(f"{_DEFAULT_IGNORABLE} {_DRAWN_AS_NOTHING}")
_PICTURED = _compile(_PICTURES)


def is_invisible(character: str, before: str) -> bool:
    """Return whether nobody sees the character; `before` is the one before it, or empty.

    A digit before U+FE0F is meant as part of a keycap: the caller has seen that U+20E3 follows.
    """
    if character == PICTURE and before:
        return not (_PICTURED.fullmatch(before) or before in "#*0123456789")
    return _INVISIBLE.fullmatch(character) is not None


VALUE_CHARS = 400
"""Longest argument; longer ones are cut."""
CLAIM_CHARS = 200
"""Longest quotation of what a tool's source says of it."""
_SAID_OF_A_STEP = ("id", "description", "expectedOutcome")
"""Keys of a step that stand elsewhere: its id in the heading, and the writer's words under their name."""
_MARKS_IN_A_ROW = 3
_UNUSUAL = re.compile(f"(?:[#*0-9](?={PICTURE}{KEYCAP}))?[^ -~]+")
"""Runs of characters that are looked at one by one; in all others there is nothing to escape."""
_LAYOUT = frozenset("\n\r\t")
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
_WORDS = re.compile("R[RM]*(?: +R[RM]*)*")
"""Right-to-left words, with `M` for a mark on the letter before it, as `_isolate` describes characters."""
_ISOLATE, _END = "\u2067", "\u2069"
"""RIGHT-TO-LEFT ISOLATE and POP DIRECTIONAL ISOLATE; such characters of the text itself are escaped."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def format_facts(suspension: Suspension, *, limit: int | None = VALUE_CHARS, is_form_shown: bool = False) -> list[str]:
    """Returns one fact a line. Indentation shows what belongs together; no value spans lines.

    Values are cut to `limit`, or not at all. Where the fields of a form are shown, they are not repeated as a value.
    """
    lines: list[str] = []
    call, background = suspension.tool_call, suspension.background
    if call is not None:
        lines.append(f"Tool: {escape_text(call.tool_name)}")
        if claim := format_claim(background):
            lines.append(f"  {claim}")
        form = suspension.answer_schema if is_form_shown else None
        lines.extend(_format_arguments(call.arguments, "  ", limit, form, background.titles))
    for step in list_planned_steps(suspension):
        lines.append(step.heading)
        lines.extend(f"  {line}" for line in _format_planned_step(step, limit))
    if suspension.kind == "review" and suspension.confirms:
        lines.append(f"Approving can cover {len(suspension.confirms)} call(s) at once, if you say so:")
        for covered in suspension.confirms:
            lines.append(f"  {escape_text(covered.tool_name)} (step {escape_text(covered.step_id)})")
            lines.extend(_format_arguments(covered.arguments, "    ", limit))
    elif suspension.covered:
        also, where = ("also ", "step ") if suspension.confirms else ("", "")
        lines.append(f"The same decision {also}covers {len(suspension.covered)} call(s):")
        for covered in suspension.covered:
            lines.extend(format_call(covered.tool_name, f"{where}{covered.step_id}", covered.arguments, limit))
    lines.extend(_format_remote_calls(suspension, limit))
    if is_form_shown and (titles := find_form_titles(suspension)):
        lines.append(f"The form says of itself: {format_value(titles, limit)}")
    return [*lines, *_format_conditions(suspension, limit)]


def format_call(tool_name: str, place: str, arguments: Mapping[str, JsonValue], limit: int | None) -> Iterator[str]:
    """Yields a call that a decision covers, indented: its tool and its place, then its arguments."""
    yield f"  {escape_text(tool_name)} ({escape_text(place)})"
    yield from _format_arguments(arguments, "    ", limit)


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a plan under review, without the words of whoever wrote it."""

    heading: str
    """Its place and its id, escaped."""
    facts: dict[str, JsonValue]
    """Everything else that the plan says of it, by the keys of a plan."""
    calls: list[tuple[str, dict[str, JsonValue]]]
    """Tool and arguments of its calls; arguments may hold bindings."""

    @property
    def shown(self) -> dict[str, JsonValue]:
        """The facts that the calls do not show, without what is usual."""
        return {
            key: value
            for key, value in self.facts.items()
            if key != "toolCalls" and value not in ([], "tool") and not (key == "requiredTools" and self.calls)
        }


def list_planned_steps(suspension: Suspension) -> list[PlannedStep]:
    """Returns the steps of the plan that a review is about, in plan order; none for any other question."""
    listed = (suspension.background.plan or {}).get("todoList")
    steps = [step for step in listed if isinstance(step, dict)] if isinstance(listed, list) else []
    return [_build_planned_step(step, number, len(steps)) for number, step in enumerate(steps, 1)]


def _build_planned_step(step: dict[str, JsonValue], number: int, count: int) -> PlannedStep:
    written = step.get("toolCalls")
    calls = [
        (str(call.get("toolName")), arguments)
        for call in (written if isinstance(written, list) else [])
        if isinstance(call, dict) and isinstance(arguments := call.get("arguments"), dict)
    ]
    return PlannedStep(
        heading=f"Step {number} of {count}: {escape_text(str(step.get('id')))}",
        facts={key: value for key, value in step.items() if key not in _SAID_OF_A_STEP},
        calls=calls,
    )


def _format_planned_step(step: PlannedStep, limit: int | None) -> Iterator[str]:
    for tool_name, arguments in step.calls:
        yield f"Tool: {escape_text(tool_name)}"
        yield from _format_arguments(arguments, "  ", limit)
    yield from (f"{key} = {format_value(value, limit)}" for key, value in step.shown.items())


def format_claim(background: Background) -> str:
    """Returns what the tool's source says of it, quoted, under its name; empty for tools of planwarden."""
    said = " ".join(background.tool_description.split())
    if background.tool_source in (None, "builtin") or not said:
        return ""
    shown = said if len(said) <= CLAIM_CHARS else f"{said[: CLAIM_CHARS - 3]}..."
    return f"{describe_claimant(background.tool_source)} says of it: {format_value(shown, None)}"


def describe_source(source: str | None) -> str:
    """Returns where a tool comes from, in words."""
    if source is None:
        return "no longer registered"
    return {"builtin": "built into planwarden", "python": "Python tool"}.get(source) or f"server {format_value(source)}"


def describe_claimant(source: str | None) -> str:
    """Returns who describes a tool: its server, or the author of a Python tool."""
    return "Its author" if source == "python" else f"Server {format_value(source)}"


def _format_remote_calls(suspension: Suspension, limit: int | None) -> Iterator[str]:
    """Yields what an approval releases at another agent."""
    if suspension.releases:
        asker = escape_text(suspension.asker or "")
        yield f"Approving it lets {len(suspension.releases)} call(s) run there, as {asker} says:"
    for call in suspension.releases:
        yield f"  {escape_text(call.tool_name)}"
        yield from _format_arguments(call.arguments, "    ", limit)


def find_form_titles(suspension: Suspension) -> dict[str, JsonValue]:
    """Returns what the form says of itself, which no field shows."""
    form = suspension.answer_schema or {}
    return {key: form[key] for key in ("title", "description") if key in form}


def _format_conditions(suspension: Suspension, limit: int | None) -> list[str]:
    """Returns what else decides about the question: its risk, who approved, and its end."""
    lines: list[str] = []
    if suspension.risk is not None:
        lines.append(f"Risk: {suspension.risk}")
    if suspension.quorum > 1:
        given = ", ".join(_format_vote(vote, limit) for vote in suspension.endorsements) or "nobody yet"
        lines.append(f"Needs {suspension.quorum} different people; approved by: {given}")
    if suspension.expires_at is not None:
        lines.append(f"Without an answer until {format_instant(suspension.expires_at)}: {suspension.on_timeout}")
    return lines


def _format_vote(vote: Endorsement, limit: int | None) -> str:
    answer = "" if vote.content is None else f" (who answered {format_value(vote.content, limit)})"
    return f"{escape_text(vote.principal)}{answer}"


def hash_text(text: str) -> str:
    """Returns the hex SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_shown_whole(value: JsonValue) -> bool:
    """Returns True if the value is neither cut nor escaped, so that a form may offer it for editing."""
    return len(_dump_json(value)) <= VALUE_CHARS and not any(map(count_hidden, iterate_strings(value)))


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


def escape_rest(text: str, escape: Callable[[str], str] | None = None) -> str:
    """Return a text that leaves planwarden, with escapes for what is hidden in it still; lines stay lines.

    What `escape_text` returned stays as it is. `escape` writes the escape of a character, as `\\u202e` if left out.
    """
    if text.isascii() and text.isprintable():
        return text
    allowed = _LAYOUT | ({_ISOLATE, _END} if text.count(_ISOLATE) == text.count(_END) else set[str]())

    def replace(found: re.Match[str]) -> str:
        pairs = _find_hidden(found[0])
        return "".join((escape or _escape)(char) if hides and char not in allowed else char for char, hides in pairs)

    return _UNUSUAL.sub(replace, text)


def cut_text(shown: str, limit: int) -> str:
    """Returns the first `limit` characters of an escaped text; nothing that follows them is isolated with them."""
    cut = shown[:limit]
    return cut + _END if is_isolating(cut) else cut


def shorten_text(text: str, limit: int) -> str:
    """Returns the text on one line, escaped; the first `limit` characters of a longer one, with three dots."""
    shown = escape_text(text[: limit + 1])
    return shown if measure_text(shown) <= limit else f"{cut_text(shown, limit)}…"


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
    """Return how many characters `escape_text` escapes."""
    return sum(hides for run in _UNUSUAL.findall(text) for _, hides in _find_hidden(run))


def count_hidden_in(value: JsonValue) -> int:
    """Return how many characters of its texts are escaped; line breaks show as such and do not count."""
    return sum(count_hidden(text) - text.count("\n") for text in iterate_strings(value))


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
    marks, before = 0, ""
    for character in run:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        yield character, category[0] in "CZ" or is_invisible(character, before) or marks > _MARKS_IN_A_ROW
        before = character


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


def _escape(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}")


def _format_arguments(
    arguments: Mapping[str, JsonValue],
    indent: str,
    limit: int | None,
    form: JsonValue = None,
    titles: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    for name, value in arguments.items():
        shown = "(the fields below)" if form is not None and value == form else format_value(value, limit)
        title = f" (titled {format_value(titles[name])})" if name in titles else ""
        yield f"{indent}{format_argument_name(name, limit)}{title} = {shown}"
    if not arguments:
        yield f"{indent}(no arguments)"


def iterate_strings(value: JsonValue) -> Iterator[str]:
    """Yields every string and key inside a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for child in value:
            yield from iterate_strings(child)
    elif isinstance(value, dict):
        for key, child in value.items():
            yield key
            yield from iterate_strings(child)


def _dump_json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def format_once(values: Mapping[str, JsonValue]) -> str:
    """Returns the business key of a call in words, such as `once per payment_id = "p-7"`."""
    listed = (f"{escape_text(pointer.removeprefix('/'))} = {format_value(value)}" for pointer, value in values.items())
    return f"once per {', '.join(listed)}"


SHORT_CHARS = 8
"""Of an id; commands take the beginning of one."""
ID = re.compile("[0-9a-f]{32}")
"""An id that planwarden made."""


def shorten_id(text: str) -> str:
    """Return the beginning of an id that planwarden made; every other text as it is."""
    return text[:SHORT_CHARS] if ID.fullmatch(text) else text
