"""Placeholders, which are values for something that the writer did not know; and lists that seem empty by mistake.

A whole value can be a placeholder, or a text for people can contain one. In code, markup and data, some placeholders
have another meaning. So they do not count in a text with other signs of code, or in an argument whose name means code.
A model may write an example address or a note such as `TODO: call Ann` if the goal or the inputs have it word for word.
A template such as `[Name]` stays a placeholder, because the goal may have it for the model to fill in.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import read_own_words

MAX_CHARS = 2_000
"""The most characters of a text that can be a placeholder as a whole."""
MAX_TEXT_CHARS = 10_000
"""The most characters of a text that is searched."""
MAX_VALUES = 10_000
"""The most texts that one search looks at."""
MAX_SEARCHED_CHARS = 60_000
"""The most characters that one search reads in texts that match `_HINT`; planwarden does nothing else in that time."""
MAX_QUOTED = 80
MAX_NAMED = 5
"""The most placeholders of one text to name."""
MAX_NOTES = 20
"""The most notes of the goal and the inputs that a model may repeat."""

Owner = TypeVar("Owner")


class _Pattern(NamedTuple):
    pattern: str
    says: str
    """What a sentence says about the value; the placeholder replaces `{}`."""
    is_code: bool = True
    """Whether text that matches can mean something in code."""
    may_repeat: Callable[["_Given", str], bool] | None = None
    """The test whether a model may repeat the text from the goal or the inputs; None if it must not."""


class _Given(NamedTuple):
    """What a model may repeat from the goal and the inputs."""

    addresses: frozenset[str]
    notes: tuple[str, ...]

    def has_addresses(self, text: str) -> bool:
        """Return whether all addresses and URLs of the text were given."""
        return self.addresses >= _list_addresses(text)

    def has_note(self, text: str) -> bool:
        """Return whether the text, which must be more than `TODO`, was given as it is."""
        ends = (note[len(text) :] for note in self.notes if note.startswith(text))
        return re.match(_NOTE, text) is not None and any(not end[:1].isalnum() for end in ends)


def _list_addresses(text: str) -> frozenset[str]:
    words = (word.strip(_AROUND) for word in re.split(_BETWEEN, text))
    return frozenset(word for word in words if "@" in word or "example." in word.lower())


_AROUND, _BETWEEN = "./!?:'()[]", r"[\s,;<>\"]+"
_NOTE = r"\b(?:TODO|TBD|FIXME|PLACEHOLDER)\b\W{1,5}\w.*"
_ENVIRONMENT = r"(?:HOME|PATH|USER|PWD|OLDPWD|SHELL|TMPDIR|TMP|TEMP|LANG|HOSTNAME|EDITOR|TERM|XDG_\w+|LC_\w+)\b"
_NOUN = r"(?:name|number|date|address|amount|e-?mail|phone|total|id|title|price|company|link|url)"
_WHOSE = r"(?:your|recipient|customer|company|client|contact|invoice|order|first|last|full|due|account|product)"
_IN_BRACKETS = (
    rf"(?:(?:your|insert|enter|add your|put)\b[^\[\]<>\n]{{0,60}}|{_WHOSE}(?:'s|’s)?[ _-]{_NOUN}[^\[\]<>\n]{{0,20}})"
)
_YOURS = r"your[._-]?(?:e-?mail|name|address)?[\w.-]{0,20}(?<!yours)(?<!yourself)@[\w.-]+"
_EXAMPLE_HOST = r"(?:[\w-]+\.)*example\.(?:com|org|net)\.?"
_ADDRESS = r"[^@<>,;\s]+@[^@<>,;\s]+"
_RECIPIENT = rf"""(?:\s*{_ADDRESS}|(?:\s*"[^"]*"\s*|[^@<>,;"?!]{{0,60}})<{_ADDRESS}>)\s*"""
"""An address, perhaps with a person's name. To keep the time linear, no two adjacent parts match the same characters,
and `WHOLE` checks that a value is a list of addresses before it looks for an example among them."""
_IS_A_VALUE = "is {}, not a value"
_IS_A_PLACEHOLDER = "is the placeholder {}"
_IS_AN_EXAMPLE = "is {}, an example address, not a real one"
_HAS_WORDS = "has {} in it"
_HAS = _HAS_WORDS + '; {{"$text": ..., "with": ...}} puts a value there'

WHOLE = (
    _Pattern(
        rf"(?is)(?:(?:[a-z][a-z\d+.-]{{0,30}}:)?//(?:[^/?#@\s]*@)?)?{_EXAMPLE_HOST}(?::\d+)?(?:[/?#].*)?"
        rf"|(?=(?:{_RECIPIENT}[,;])*{_RECIPIENT}\Z).*?@{_EXAMPLE_HOST}(?=[\s,;>]|\Z).*"
        rf"|<?(?:{_YOURS}|(?:user|name|e-?mail|someone|recipient|customer)@"
        r"(?:your)?(?:domain|company|e?mail)\.\w+)>?",
        _IS_AN_EXAMPLE,
        is_code=False,
        may_repeat=_Given.has_addresses,
    ),
    _Pattern(r"<(?![!?/]|https?:|(?:br|hr|p)>)[^<>@]{1,200}(?<!/)>|<<[^<>@]{1,200}>>", _IS_A_PLACEHOLDER),
    _Pattern(
        rf"\{{\{{[^{{}}]{{1,200}}\}}\}}|\$\{{(?!{_ENVIRONMENT})[^{{}}]{{1,200}}\}}|\{{[A-Za-z_][\w .-]{{0,100}}\}}",
        _IS_A_PLACEHOLDER,
    ),
    _Pattern(rf"\[(?:[A-Z]{{3,}}[A-Z0-9 _-]{{0,60}}|(?i:{_IN_BRACKETS}))\]", _IS_A_PLACEHOLDER),
    _Pattern(
        r"(?s)(?:TODO|TBD|FIXME|PLACEHOLDER)(?:\W.*)?|Lorem ipsum\b.*",
        _IS_A_VALUE,
        is_code=False,
        may_repeat=_Given.has_note,
    ),
    _Pattern(
        r"(?i)(?:change|replace|fill)[_ -]?me|to be (?:determined|decided|announced|filled(?: in)?)"
        r"|insert[_-]\w+[_-]here"
        rf"|your[_-](?:\w+[_-])?(?:{_NOUN}|key|token|password|domain)(?:[_-]here)?|(?:\w+[_-])?goes[_-]here",
        _IS_A_VALUE,
        is_code=False,
    ),
    _Pattern(
        r"(?i)\(?(?:the )?(?:result|output|value)s? (?:of|from) (?:the )?(?:previous )?step\b[ _-]?[\w-]*\)?",
        _IS_A_VALUE,
        is_code=False,
    ),
)
"""Placeholders that are the whole value."""
INSIDE = (
    _Pattern(r"(?<!\$)\{{2,3}[ ]?[\w .'\"/:\[\]-]{1,80}\}{2,3}", _HAS),
    _Pattern(
        r"\[(?:(?:[A-Z]{2,20}[ _-]){0,2}(?:NAME|AMOUNT|DATE|E-?MAIL|PHONE|ADDRESS|NUMBER|TOTAL|TBD)|XX+"
        rf"|(?i:{_IN_BRACKETS}))\](?!\()",
        _HAS_WORDS,
    ),
    _Pattern(r"(?i)\b(?:dear|hello|hi) \[[^\[\]\n]{1,40}\](?!\()", _HAS_WORDS),
    _Pattern(
        rf"(?i)<(?:{_NOUN}|recipient|customer|sender|{_IN_BRACKETS}|[^<>\n]{{1,60}} from [^<>\n]{{1,60}})>",
        _HAS_WORDS,
    ),
    _Pattern(rf"(?i)\b{_YOURS}", _HAS_WORDS, is_code=False, may_repeat=_Given.has_addresses),
)
"""Placeholders within a text for people."""
INSIDE_SENTENCES = (_Pattern(r"\$?\{[A-Za-z][\w.\[\]-]{0,60}(?: [\w.-]{1,60}){0,4}\}", _HAS),)
"""As `INSIDE`, but searched for only in sentences, because a line of code can look the same."""
_CODE_NAMES = (
    r"(?i)(?:^|_)(?:command|cmd|code|script|sql|template|pattern|regexp?|css|html|expression|formula|latex|tex|diff|patch"
    r"|format|source|markup|xml|yaml|json|schema|glob)s?$"
)
_CODE = r"(?m)[{}<>=\\|`^~]|;\s*$|\b[fFrRbB]{1,2}[\"']|^[^\S\n]*(?:import|def|return|echo|export|SELECT)\b"
_PROSE_NAMES = r"(?i)(?:^|_)(?:body|message|subject|e?mail|action|comment|greeting|text|title|note)$"
"""Names of arguments whose text is for people: markup in such text does not count as code, and no capital begins it."""
_MARKUP = r"(?i)</?(?:a|b|body|br|div|em|h[1-6]|html|i|img|li|ol|p|span|strong|table|t[dhr]|u|ul)\b[^<>{}]*>"
_URL = r"\b[a-z][a-z\d+.-]{0,30}://\S+"
_GREETING = r"(?i)(?:dear|hello|hi)\b"
_ORDINARY = r"[\w.+-]{1,64}@[\w.-]+|\d+/\d+(?:/\d+)?|\[\d{1,3}\]|\"[\w ,.!?'-]{1,80}\""
"""Addresses, dates, footnote marks and quoted words: parts of a sentence that `_NO_SENTENCE` would match."""
_NO_SENTENCE = r"[\[\]\"/;_]|&&|(?:^|\s)-{1,2}\w"
_SENTENCE = r"(?s)(?:[^\W\d_]).*\s"
_HINT = r"(?i)[{\[<]|example\.|your|me\b|here\b|TODO|TBD|FIXME|PLACEHOLDER|Lorem|to be|step|@(?:domain|company|e?mail)"
"""A pattern that every text with a placeholder matches. Most texts do not match, so they are not searched further."""


def find_placeholders(arguments: JsonValue, goal_and_inputs: JsonValue = None) -> Iterator[str]:
    """Yield one sentence for each value that is a placeholder or contains one.

    Addresses and notes from `goal_and_inputs` are not reported. Pass None to report these too, as for a person.
    A URL on example.com is a placeholder; a sentence that mentions example.com is not. In a binding, only the default
    is searched; in a template, only its own words.
    """
    return (fault for _, fault in search(((None, path, text) for path, text in list_texts(arguments)), goal_and_inputs))


def search(texts: Iterable[tuple[Owner, str, str]], goal_and_inputs: JsonValue = None) -> Iterator[tuple[Owner, str]]:
    """Yield, for each text with a placeholder, its owner and a sentence on the fault, without the full stop.

    `texts` are triples of an owner, a path and a text. The search ends at the limits of this module.
    """
    chars_left = MAX_SEARCHED_CHARS
    source = "\n".join(text for _, text in islice(list_texts(goal_and_inputs), MAX_VALUES))[:MAX_SEARCHED_CHARS]
    notes = tuple(match.group() for match in islice(re.finditer(_NOTE, source), MAX_NOTES))
    goal = _Given(_list_addresses(source), notes)
    for owner, path, text in islice(texts, MAX_VALUES):
        if len(text) > MAX_TEXT_CHARS or not re.search(_HINT, text):
            continue
        chars_left -= len(text)
        if chars_left < 0:
            return
        if (fault := _find_in(path.rpartition("/")[2], text.strip(), goal)) is not None:
            yield owner, f"{path} {fault}"


def _find_in(name: str, text: str, goal: _Given) -> str | None:
    may_be_code = re.search(_CODE_NAMES, name) is not None
    for pattern in WHOLE if len(text) <= MAX_CHARS else ():
        if (may_be_code and pattern.is_code) or not re.fullmatch(pattern.pattern, text):
            continue
        if pattern.may_repeat is None or not pattern.may_repeat(goal, text):
            return pattern.says.format(repr(text[:MAX_QUOTED]))
    text = re.sub(_MARKUP, " ", text).strip() if re.search(_PROSE_NAMES, name) else text
    rest, matches = text, list[tuple[_Pattern, str]]()
    for pattern in (*INSIDE, *INSIDE_SENTENCES):
        if pattern in INSIDE_SENTENCES:
            rest = re.sub(_URL, " ", rest)
        matches += [(pattern, match.group()) for match in re.finditer(pattern.pattern, rest)]
        rest = re.sub(pattern.pattern, "", rest)
    is_code = may_be_code or re.search(_CODE, rest) is not None
    is_sentence = not is_code and _is_sentence(name, text, rest)
    matches = [
        (pattern, words)
        for pattern, words in matches
        if not (is_code and pattern.is_code)
        and (is_sentence or pattern in INSIDE)
        and not (pattern.may_repeat and pattern.may_repeat(goal, words))
    ]
    names = list(dict.fromkeys(repr(words[:MAX_QUOTED]) for _, words in matches))
    if not names:
        return None
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    noun = "the placeholders" if names[1:] else "the placeholder"
    says = _HAS if any(pattern.says == _HAS for pattern, _ in matches) else _HAS_WORDS
    return says.format(f"{noun} {', '.join(names[:MAX_NAMED])}{more}")


def _is_sentence(name: str, text: str, rest: str) -> bool:
    """Return whether the text of an argument is for people; `rest` is the text without its placeholders."""
    is_prose = re.search(_PROSE_NAMES, name) is not None and re.search(r"\s", text) is not None
    if not is_prose and re.match(_SENTENCE, text) is None:
        return False
    if re.match(_GREETING, text):
        return True
    return (is_prose or text[:1].isupper()) and re.search(_NO_SENTENCE, re.sub(_ORDINARY, " ", rest)) is None


def list_texts(value: JsonValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in the value, in order, with its path; in a binding its default, in a template its own words."""
    parts = ()
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict) and "$text" in value:
        yield path, read_own_words(value)
    elif isinstance(value, dict) and "$from" in value:
        yield from list_texts(value.get("default"), path)
    elif isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    for key, child in parts:
        yield from list_texts(child, f"{path}/{key}")


def find_empty_lists(arguments: JsonValue, results: Iterable[JsonValue]) -> Iterator[str]:
    """Yield one sentence for each empty list in the arguments, if one of the results has a list with entries in it."""
    paths = tuple(_list_empty_lists(arguments))
    if paths and _has_entries(results):
        yield from (f"{path} is empty although earlier calls returned data for it" for path in paths)


def _list_empty_lists(value: JsonValue, path: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for index, child in enumerate(value):
            yield from _list_empty_lists(child, f"{path}/{index}") if child != [] else ()
    elif isinstance(value, dict) and "$from" not in value and "$text" not in value:
        for key, child in value.items():
            yield from (f"{path}/{key}",) if child == [] else _list_empty_lists(child, f"{path}/{key}")


def _has_entries(results: Iterable[JsonValue]) -> bool:
    waiting = [*results]
    for _ in range(MAX_VALUES):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, list) and value:
            return True
        if isinstance(value, dict):
            waiting += value.values()
    return False
