"""Conditions of rules: what one value in the arguments of a call must be like.

A condition is a JSON Schema that may partly be written in short forms: `min max in prefix domain under matches
length only`. Each of them also implies a type, so text never counts as a number. A missing value never fits. `domain`
and `under` are not JSON Schema; see `planwarden.agent.approval.path_and_host_rules`.
"""

import os.path
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, cast

import msgspec
from pydantic import JsonValue

from planwarden.agent.approval.path_and_host_rules import (
    find_host,
    is_in_folder,
    is_on_domain,
    normalise_host,
    normalise_path,
)
from planwarden.agent.common.canonical import canonical_json, exceeds
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.ports.policy import RealPaths

MAX_TEXT_CHARS = 4_096
"""The most characters of one text in a short form."""
MAX_VALUES = 1_000
"""The most entries of a list in a short form."""
SHOWN_CHARS = 80
"""The most characters of a value that a sentence shows."""
TEXT_WORK = 250
"""Units of work for finding the host or the folder of a text; see `planwarden.agent.common.schema_cost`."""
_OF_ONE = ("not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames")
_OF_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_OF_NAMED = ("properties", "patternProperties", "dependentSchemas")
_PLAIN = (
    *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "minContains", "maxContains"),
    *("required", "minProperties", "maxProperties", "dependentRequired", "title", "description", "$comment"),
)
KEYWORDS = (*_PLAIN, *_OF_ONE, *_OF_MANY, *_OF_NAMED)
"""Keywords of JSON Schema. Other keys are faults: the library would ignore a typo, so the rule could match too much."""

Verdict = Literal["yes", "no", "unknown"]
MISSING = object()


class RuleFault(ValueError):
    """What the operator wrote makes no sense; the message continues a sentence that begins with the entry's name."""


class RuleCondition(msgspec.Struct, frozen=True, kw_only=True):
    """What the value at one place in the arguments must be like."""

    pointer: str
    """The pointer as written, without the slash at the start; `the arguments` if it leads to all of them."""
    parts: tuple[str, ...]
    """The pointer's parts; none for the arguments as a whole."""
    schema: Schema
    domains: tuple[str, ...] = ()
    """Hosts: the value must be an address on one of them or on a host below it; empty if the condition names none."""
    folders: tuple[str, ...] = ()
    """Folders: the value must be a path below one of them; empty if the condition names none."""
    words: str
    note: str | None = None
    """What the operator may have forgotten, in a sentence."""

    def find_value(self, arguments: Mapping[str, JsonValue]) -> object:
        """Return the value at the pointer, or `MISSING`."""
        value: object = arguments
        for part in self.parts:
            if isinstance(value, Mapping):
                value = cast("Mapping[str, object]", value).get(part, MISSING)
            elif isinstance(value, list) and _INDEX.fullmatch(part):
                values = cast("list[object]", value)
                value = values[int(part)] if int(part) < len(values) else MISSING
            else:
                return MISSING
        return value

    def judge(
        self, value: JsonValue, limit: int, paths: RealPaths | None, *, loosens: bool | None
    ) -> tuple[Verdict, int]:
        """Return whether the value meets the condition, and the work spent. `is_in_folder` explains `loosens`.

        Raises:
            PathsNeeded: as in `is_in_folder`.
        """
        fits, work = self.schema.fits(value, limit)
        if fits and isinstance(value, str):
            if self.domains:
                host = find_host(value)
                fits = None if host is None else is_on_domain(host, self.domains)
                work += TEXT_WORK
            if self.folders and fits is not False:
                inside = is_in_folder(value, self.folders, paths, loosens=loosens)
                fits = inside if inside is not True else fits
                work += TEXT_WORK
        return "unknown" if fits is None else "yes" if fits else "no", work


_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


def compile_condition(pointer: str, content: object) -> RuleCondition:
    """Return the condition that the operator wrote for the value at `pointer`.

    Raises:
        RuleFault: the condition makes no sense.
    """
    parts = tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.removeprefix("/").split("/"))
    if re.search(r"~(?![01])", pointer):
        raise RuleFault("is not a JSON Pointer: '~' is written '~0', and '/' in a name '~1'")
    if pointer in ("", "/"):
        parts = ()
    if not isinstance(content, dict):
        raise RuleFault(
            f"must be a table such as {{ max = 100 }}, not {_show(content)}; a value itself is {{ in = [...] }}"
        )
    table = cast("dict[str, object]", content)
    if not table:
        raise RuleFault(f"is empty, so it says nothing; it takes {', '.join(_SHORT_FORMS)}, or JSON Schema")
    short = {key: value for key, value in table.items() if key in _SHORT_FORMS}
    rest = {key: value for key, value in table.items() if key not in _SHORT_FORMS}
    _check_keywords(rest, 0, can_be_short=True)
    schemas = [read(short[key]) for key, (_, read) in _SHORT_FORMS.items() if key in short and read is not None]
    if rest:
        schemas.append(cast("dict[str, JsonValue]", rest))
    domains = tuple(map(_read_domain, _read_texts("domain", short["domain"]))) if "domain" in short else ()
    folders = tuple(map(_read_folder, _read_texts("under", short["under"]))) if "under" in short else ()
    if domains or folders:
        schemas.append({"type": "string"})
    if "min" in short and "max" in short and cast("float", short["min"]) > cast("float", short["max"]):
        raise RuleFault(f"has min {_show(short['min'])} above max {_show(short['max'])}, so nothing matches")
    try:
        schema = Schema(schemas[0] if len(schemas) == 1 else {"allOf": list[JsonValue](schemas)})
    except ValueError as error:
        raise RuleFault(f"is not usable as JSON Schema: {error}") from None
    name = pointer.removeprefix("/") or "the arguments"
    says = [_describe(key, short[key]) for key in _SHORT_FORMS if key in short]
    if rest:
        says.append(f"fits {canonical_json(cast('JsonValue', rest))}")
    words = f"{name} {' and '.join(says)}"
    open_end = {"min": "no upper end", "max": "no lower end, so negative numbers match too"}
    ends = [key for key in open_end if key in short]
    note = f"{name} has {open_end[ends[0]]}; bind both ends with min and max" if len(ends) == 1 else None
    return RuleCondition(
        pointer=name, parts=parts, schema=schema, domains=domains, folders=folders, words=words, note=note
    )


def show_value(value: JsonValue) -> str:
    """Return the beginning of the value as JSON in ASCII, for a sentence."""
    if isinstance(value, str):
        return canonical_json(value) if len(value) <= SHOWN_CHARS else canonical_json(value[:SHOWN_CHARS]) + "..."
    if exceeds(value, SHOWN_CHARS, 4 * SHOWN_CHARS):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(cast('list[JsonValue]', value))} values"
    try:
        text = canonical_json(value)
    except InvalidArguments:
        return "a number that is not JSON"
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


def _show(value: Any) -> str:
    """Return what the operator wrote, for a message about it."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."


def _check_keywords(schema: object, depth: int, *, can_be_short: bool = False) -> None:
    """Raise `RuleFault` for keys that are not in `KEYWORDS`, and for values that are not JSON."""
    if depth > 20:
        raise RuleFault("is nested deeper than 20 levels")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise RuleFault(f"must be a JSON Schema instead of {_show(schema)}")
    for key, value in cast("dict[str, object]", schema).items():
        if key not in KEYWORDS:
            raise RuleFault(f"has the unknown key {key[:64]!r}{_hint_at(key, value, can_be_short=can_be_short)}")
        children = list(_list_schemas(key, value))
        for child in children:
            _check_keywords(child, depth + 1)
        if not children:
            _check_json(key, value)


def _list_schemas(key: str, value: object) -> Iterator[object]:
    if key in _OF_ONE:
        yield value
    elif key in _OF_MANY and isinstance(value, list):
        yield from cast("list[object]", value)
    elif key in _OF_NAMED and isinstance(value, dict):
        yield from cast("dict[str, object]", value).values()


def _hint_at(key: str, value: object, *, can_be_short: bool) -> str:
    if key in _SHORT_FORMS:
        return "; short forms work only at the top"
    hint = did_you_mean(key, (*_SHORT_FORMS, *KEYWORDS) if can_be_short else KEYWORDS)
    if not hint and isinstance(value, dict):
        return '; a nested place is written as one name with slashes, such as "to/iban"'
    return hint or (f"; the short forms are {', '.join(_SHORT_FORMS)}" if can_be_short else "")


def _check_json(key: str, value: object) -> None:
    """Raise `RuleFault` for dates, NaN and infinities, which TOML has and JSON does not have."""
    try:
        canonical_json(cast("JsonValue", value))
    except (InvalidArguments, TypeError, RecursionError):
        raise RuleFault(f"has {key} = {_show(value)}, which is not JSON; write dates as text") from None


def _read_bound(keyword: str) -> Callable[[object], dict[str, JsonValue]]:
    def read(value: object) -> dict[str, JsonValue]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RuleFault(f"has {keyword[:3]} = {_show(value)}, which is not a number")
        _check_json(keyword[:3], value)
        return {"type": "number", keyword: value}

    return read


def _read_values(value: object) -> dict[str, JsonValue]:
    if not isinstance(value, list) or not value:
        raise RuleFault(f"has in = {_show(value)}, which is not a list of values")
    values = cast("list[JsonValue]", value)
    if len(values) > MAX_VALUES:
        raise RuleFault(f"has {len(values)} values in 'in', the limit is {MAX_VALUES}")
    _check_json("in", values)
    return {"enum": values}


def _read_texts(key: str, value: object) -> tuple[str, ...]:
    """Return the texts of a condition: a value fits if it fits one of them."""
    texts: list[object] = list(cast("list[object]", value)) if isinstance(value, list) else [value]
    if not texts or len(texts) > MAX_VALUES:
        raise RuleFault(f"has {len(texts)} texts in {key!r}; use 1 to {MAX_VALUES}")
    valid_texts = [text for text in texts if isinstance(text, str) and 0 < len(text) <= MAX_TEXT_CHARS]
    if len(valid_texts) < len(texts):
        raise RuleFault(f"has {key} = {_show(value)}, which is not a text of 1 to {MAX_TEXT_CHARS} characters")
    return tuple(valid_texts)


def _read_prefixes(value: object) -> dict[str, JsonValue]:
    starts = "|".join("".join(map(_escape, text)) for text in _read_texts("prefix", value))
    return {"type": "string", "pattern": f"^(?:{starts})"}


def _escape(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\u{{{ord(char):x}}}"


def _read_pattern(value: object) -> dict[str, JsonValue]:
    if not isinstance(value, str):
        raise RuleFault(f"has matches = {_show(value)}, which is not a regular expression as text")
    [pattern] = _read_texts("matches", value)
    # Compile it alone first: a pattern such as `a)|(b` would close the group below and escape its anchors.
    try:
        Schema({"pattern": pattern})
    except ValueError as error:
        raise RuleFault(f"has a 'matches' that is not usable: {error}") from None
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def _read_length(value: object) -> dict[str, JsonValue]:
    ends = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if not ends or ends.keys() - {"min", "max"} or not all(type(end) is int and 0 <= end for end in ends.values()):
        raise RuleFault(f"has length = {_show(value)}; write {{ min = 1, max = 200 }}, or one of the two")
    low, high = (cast("int | None", ends.get(key)) for key in ("min", "max"))
    if low is not None and high is not None and low > high:
        raise RuleFault(f"has a length of at least {low} and at most {high}, so nothing matches")
    schema: dict[str, JsonValue] = {"type": ["string", "array"]}
    if low is not None:
        schema |= {"minLength": low, "minItems": low}
    if high is not None:
        schema |= {"maxLength": high, "maxItems": high}
    return schema


def _read_names(value: object) -> dict[str, JsonValue]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in cast("list[object]", value)):
        raise RuleFault(f"has only = {_show(value)}, which is not a list of names")
    names = cast("list[JsonValue]", value)
    if len(names) > MAX_VALUES:
        raise RuleFault(f"has {len(names)} names in 'only', the limit is {MAX_VALUES}")
    return {"type": "object", "additionalProperties": False, "properties": {str(name): {} for name in names}}


def _read_domain(text: str) -> str:
    host = normalise_host(text)
    if host is None:
        raise RuleFault(
            f"has domain = {_show(text)}, which is not a host name in ASCII such as 'example.com'; write no "
            "'*.', scheme, port or path, because a domain covers the hosts below it too"
        )
    return host


def _read_folder(text: str) -> str:
    path = os.path.expanduser(text)
    if not os.path.isabs(path) or "\0" in path:
        raise RuleFault(f"has under = {_show(text)}, which is not an absolute folder such as '/srv/data' or '~/in'")
    return normalise_path(path)


class _ShortForm(NamedTuple):
    verb: str
    read: Callable[[object], dict[str, JsonValue]] | None
    """Returns the form as JSON Schema; None if JSON Schema cannot say it."""


_SHORT_FORMS: Mapping[str, _ShortForm] = {
    "min": _ShortForm("is at least", _read_bound("minimum")),
    "max": _ShortForm("is at most", _read_bound("maximum")),
    "in": _ShortForm("is", _read_values),
    "prefix": _ShortForm("begins with", _read_prefixes),
    "domain": _ShortForm("is on", None),
    "under": _ShortForm("is below", None),
    "matches": _ShortForm("matches", _read_pattern),
    "length": _ShortForm("has", _read_length),
    "only": _ShortForm("has no names but", _read_names),
}


def _describe(key: str, value: object) -> str:
    """Return what a short form says of the value, as the rest of a sentence."""
    verb = _SHORT_FORMS[key].verb
    if isinstance(value, dict):
        ends = cast("dict[str, int]", value)
        bounds = (f"{_SHORT_FORMS[end].verb.removeprefix('is ')} {ends[end]}" for end in ("min", "max") if end in ends)
        return f"{verb} {' and '.join(bounds)} characters or items"
    values = cast("list[JsonValue]", value if isinstance(value, list) else [value])
    if key == "only":
        return f"{verb} {', '.join(map(show_value, values)) or 'none'}"
    text = " or ".join(map(show_value, values[:5]))
    return f"{verb} {text} or {len(values) - 5} more" if len(values) > 5 else f"{verb} {text}"
