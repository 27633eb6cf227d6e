"""Text from outside, made harmless to show: escaped, on one line and cut, with values as JSON. Also shortens ids.

Values are JSON, so no text can start a new line or a new field; control, bidirectional, zero-width, tag and other
invisible characters become escapes and are counted (https://www.unicode.org/reports/tr36/). Right-to-left words are
isolated, so that they move no character beside them. Long values are cut, with their size and hash.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import msgspec

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.struct import JsonValue

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
"""Characters with the property Emoji except `#`, `*` and digits: U+FE0F changes those only if a keycap follows."""
PICTURE, KEYCAP = "\ufe0f", "\u20e3"
GOAL_CHARS = 300
VALUE_CHARS = 400
"""The most characters that are shown of an argument; a longer one is cut."""
OPEN_CHARS = 1_500
"""The most characters of a value that a page shows at once; a longer one is folded under its start, size and hash."""
OPEN_LINES = 40
LINE_CHARS = 72
"""The most characters of JSON on one line; longer lists and objects take several lines."""
_MARKS_IN_A_ROW = 3
_UNUSUAL = re.compile(f"(?:[#*0-9](?={PICTURE}{KEYCAP}))?[^ -~]+")
"""Runs of characters that are examined one by one; no other character has to be escaped."""
_LETTERS = re.compile(r"[^\W\d_]+")
_LATIN = re.compile("[A-Za-z]")
_LIKE_LATIN = re.compile("[ΑΒΕΖΗΙΚΜΝΟΡΤΥΧικνορυϲϳАВЕЅІЈКМНОРСТУХЬаеѕіїјорсухѵһԁԛԜԝԌӀӏ]")
"""Greek and Cyrillic letters that look like Latin ones. Letters for units and formulas, such as `μ` and `Δ`, do not."""
_LAYOUT = frozenset("\n\r\t")
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
_WORDS = re.compile("R[RM]*(?: +R[RM]*)*")
"""Right-to-left words as `_describe_direction` writes them: `R` is a letter or digit, `M` a mark on it."""
ISOLATE, END_ISOLATE = "\u2067", "\u2069"
"""RIGHT-TO-LEFT ISOLATE and POP DIRECTIONAL ISOLATE; such characters of the text itself are escaped."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
SHORT_CHARS = 8
"""How many characters of an id are shown; commands accept the beginning of an id."""
MAX_NAMED_IDS = 5
ID = re.compile("[0-9a-f]{32}")
"""An id that planwarden made."""


def _compile(ranges: str) -> re.Pattern[str]:
    ends = (part.partition("-") for part in ranges.split())
    return re.compile("[" + "".join(f"{chr(int(low, 16))}-{chr(int(high or low, 16))}" for low, _, high in ends) + "]")


_INVISIBLE = _compile(f"{_DEFAULT_IGNORABLE} {_DRAWN_AS_NOTHING}")
_PICTURED = _compile(_PICTURES)


def is_invisible(character: str, before: str) -> bool:
    """Return whether the character is invisible; `before` is the character before it, or empty.

    A digit before U+FE0F counts as part of a keycap: the caller has checked that U+20E3 follows.
    """
    if character == PICTURE and before:
        return not (_PICTURED.fullmatch(before) or before in "#*0123456789")
    return _INVISIBLE.fullmatch(character) is not None


def hash_text(text: str) -> str:
    """Return the hex SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_shown_whole(value: JsonValue) -> bool:
    """Return True if the value is neither cut nor escaped, so that a form may offer it for editing."""
    return len(_dump_json(value)) <= VALUE_CHARS and not any(map(count_hidden, iterate_strings(value)))


def format_value(value: JsonValue, limit: int | None = VALUE_CHARS) -> str:
    """Return the value as escaped JSON on one line; one longer than `limit` is cut, with its size and hash."""
    whole = _dump_json(value)
    if limit is None:
        return escape_text(whole)
    result = escape_text(whole[: limit + 1])
    if measure_text(result) <= limit:
        return result
    data = whole.encode("utf-8", "surrogatepass")
    return f"{cut_text(result, limit)}... [{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}]"


def escape_text(text: str) -> str:
    """Return the text on one line, with escapes for characters that are invisible or move others.

    Slashes, quotes and digits beside right-to-left words would move too (https://www.unicode.org/reports/tr9/): in
    `/a/\u05d0\u05d1/123` the last two parts would change places. Therefore each run of such words is isolated.
    """
    result = _UNUSUAL.sub(partial(_escape_run, allowed=frozenset(), escape=_escape), text)
    return result if result.isascii() else _isolate(result)


def escape_rest(text: str, escape: Callable[[str], str] | None = None) -> str:
    """Return a text that is about to leave planwarden, with its hidden characters escaped; keep tabs and line breaks.

    Text from `escape_text` stays as it is. `escape` returns the escape of a character, by default such as `\\u202e`.
    """
    if text.isascii() and text.isprintable():
        return text
    allowed = _LAYOUT | ({ISOLATE, END_ISOLATE} if text.count(ISOLATE) == text.count(END_ISOLATE) else set[str]())
    return _UNUSUAL.sub(partial(_escape_run, allowed=allowed, escape=escape or _escape), text)


def cut_text(text: str, limit: int) -> str:
    """Return the first `limit` characters of an escaped text; if they end inside an isolation, close it."""
    cut = text[:limit]
    return cut + END_ISOLATE if is_isolating(cut) else cut


def shorten_text(text: str, limit: int) -> str:
    """Return the text, escaped and on one line; cut a longer one to `limit` characters and add an ellipsis."""
    result = escape_text(text[: limit + 1])
    return result if measure_text(result) <= limit else f"{cut_text(result, limit)}…"


def measure_text(text: str) -> int:
    """Return the length of an escaped text without the characters that isolate its right-to-left words."""
    return len(text) - text.count(ISOLATE) - text.count(END_ISOLATE)


def is_isolating(text: str) -> bool:
    """Return True when the text ends inside right-to-left words."""
    return text.rfind(ISOLATE) > text.rfind(END_ISOLATE)


def continue_isolation(text: str) -> str:
    """Return the second part of an escaped text that was cut inside right-to-left words, in a form to show alone."""
    return text[1:] if text.startswith(END_ISOLATE) else ISOLATE + text


def count_hidden(text: str) -> int:
    """Return how many characters `escape_text` escapes."""
    return sum(hides for run in _UNUSUAL.findall(text) for _, hides in _find_hidden(run))


def count_hidden_in(value: JsonValue) -> int:
    """Return how many characters in the value's texts are escaped. Line breaks do not count, because they are shown."""
    return sum(count_hidden(text) - text.count("\n") for text in iterate_strings(value))


def find_mixed_words(value: JsonValue) -> Iterator[str]:
    """Yield the words in the value's texts that mix Latin letters with other letters that only look Latin."""
    for text in iterate_strings(value):
        for word in () if text.isascii() else _LETTERS.findall(text):
            if _LATIN.search(word) and _LIKE_LATIN.search(word):
                yield word


def format_argument_name(name: str, limit: int | None = VALUE_CHARS) -> str:
    """Return a plain name unchanged, any other name as JSON."""
    return name if name.isidentifier() and name.isascii() and len(name) <= 64 else format_value(name, limit)


def format_identifier(text: str) -> str:
    """Return a short identifier unchanged; quote every other text, which could pass for more than an identifier."""
    is_plain = text.isascii() and all(part.isalnum() or part in "_-./:@" for part in text)
    return text if is_plain and 0 < len(text) <= VALUE_CHARS else format_value(text)


def _find_hidden(run: str) -> Iterator[tuple[str, bool]]:
    """Yield each character of a run, and whether to escape it; too many marks on one letter need escapes too."""
    marks, before = 0, ""
    for character in run:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        yield character, category[0] in "CZ" or is_invisible(character, before) or marks > _MARKS_IN_A_ROW
        before = character


def _escape_run(match: re.Match[str], allowed: Collection[str], escape: Callable[[str], str]) -> str:
    pairs = _find_hidden(match[0])
    return "".join(escape(char) if hides and char not in allowed else char for char, hides in pairs)


def _isolate(text: str) -> str:
    kinds = "".join(map(_describe_direction, text))
    parts, after = list[str](), 0
    for match in _WORDS.finditer(kinds):
        parts += [text[after : match.start()], ISOLATE, text[match.start() : match.end()], END_ISOLATE]
        after = match.end()
    return "".join([*parts, text[after:]])


def _describe_direction(character: str) -> str:
    if character <= "~":
        return character if character == " " else "x"
    direction = unicodedata.bidirectional(character)
    return "R" if direction in _RIGHT_TO_LEFT else "M" if direction == "NSM" else "x"


def _escape(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}")


def iterate_strings(value: JsonValue) -> Iterator[str]:
    """Yield every string and key inside a value."""
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
    """Return the business key of a call in words, such as `once per payment_id = "p-7"`."""
    listed = (f"{escape_text(pointer.removeprefix('/'))} = {format_value(value)}" for pointer, value in values.items())
    return f"once per {', '.join(listed)}"


def capitalize(text: str) -> str:
    """Return the text with a capital first letter; leave all other letters as they are."""
    return text[:1].upper() + text[1:]


def name_some(names: Sequence[str], most: int) -> str:
    """Return at most `most` names from the start of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shorten_id(text: str) -> str:
    """Return the beginning of an id that planwarden made; every other text as it is."""
    return text[:SHORT_CHARS] if ID.fullmatch(text) else text


def complete_id(beginning: str, ids: Collection[str], kind: str = "id") -> str:
    """Return the id that begins with `beginning`; `beginning` itself if it is a whole id, or if no id begins with it.

    Raises:
        UsageError: several ids begin with it.
    """
    matching = [name for name in ids if beginning and name.startswith(beginning)]
    if len(matching) > 1 and beginning not in matching:
        names = ", ".join(map(escape_text, matching[:MAX_NAMED_IDS])) + (", …" if len(matching) > MAX_NAMED_IDS else "")
        raise UsageError(f"several {kind}s begin with {beginning[:64]!r}: {names}; write more of the one that you mean")
    return matching[0] if len(matching) == 1 else beginning


@dataclass(frozen=True)
class ValueView:
    """A JSON value for display. Lists show only the short form; the complete form is built only when it is first read.

    A text of several lines is shown as lines and every other value as JSON, so a text never looks like a number.
    """

    value: JsonValue

    @property
    def short(self) -> str:
        """The value on one line; a long value is cut and followed by its size and hash."""
        return format_value(self.value)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The complete value. A text is split only at its own line breaks; long lists and objects are indented JSON."""
        if isinstance(self.value, str) and self.is_text:
            return tuple(map(escape_text, self.value.split("\n")))
        whole = _dump_json(self.value)
        if not isinstance(self.value, str) and len(whole) > LINE_CHARS:
            whole = json.dumps(self.value, ensure_ascii=False, indent=2)
        return tuple(map(escape_text, whole.split("\n")))

    @property
    def is_text(self) -> bool:
        return isinstance(self.value, str) and "\n" in self.value

    @property
    def is_long(self) -> bool:
        return sum(map(len, self.lines)) > OPEN_CHARS or len(self.lines) > OPEN_LINES

    @property
    def hidden_count(self) -> int:
        """The number of escaped characters. Control characters, which JSON escapes, count too, except line breaks."""
        return count_hidden_in(self.value)


class ArgumentChange(msgspec.Struct, frozen=True, kw_only=True):
    """One argument before and after an edit; None if the argument is absent."""

    label: str
    before: ValueView | None
    after: ValueView | None


def find_changes(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> tuple[ArgumentChange, ...]:
    """Return the arguments that differ, in the order of `before`, then new ones in the order of `after`."""
    return tuple(
        ArgumentChange(
            label=format_name(name),
            before=ValueView(before[name]) if name in before else None,
            after=ValueView(after[name]) if name in after else None,
        )
        for name in dict.fromkeys([*before, *after])
        if not (name in before and name in after and is_same_json(before[name], after[name]))
    )


def format_name(name: str) -> str:
    """Return the name, whole and escaped; an empty one as two quotation marks."""
    return escape_text(name) or '""'
