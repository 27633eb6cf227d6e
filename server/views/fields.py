"""Fields of forms from a JSON Schema: what each field asks for, and how its text becomes a value and back.

A page, a terminal, the form of a host and typed `NAME=VALUE` all use the same fields. `read` makes a value of what a
person typed, `write` makes the text again. The schema checks whether the value fits; this module does not.
Names, titles and descriptions are foreign text: `label`, `title` and `help` are escaped, `name` is not for display.

People count rows from 1 and write them as `1,3,6-10`; programs count from 0.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Literal, cast

import msgspec
from jsonpointer import JsonPointer, JsonPointerException

from planwarden.agent.common.canonical import is_same_json, read_json
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.struct import JsonValue
from planwarden.server.views.escaping import count_hidden, escape_text, format_name, shorten_text

Kind = Literal["text", "lines", "number", "boolean", "choice", "json"]
JsonSchema = Mapping[str, JsonValue]

LINE_CHARS = 80
MAX_CHOICES = 100
HELP_CHARS = 200
MAX_TITLE_CHARS = 80
MAX_DIGITS = 6
_PRIMITIVE = ("string", "integer", "number", "boolean")
_TRUE, _FALSE = ("true", "yes", "y", "1"), ("false", "no", "n", "0")
_NOTHING: JsonSchema = MappingProxyType({})


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One value that a form asks for."""

    name: str
    """The name of the property in the schema; not for display."""
    key: str
    """The name of the field's input on a page: a hash of `name`, because names are foreign text."""
    label: str
    kind: Kind
    schema: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """The property's schema; one reference to another part of the whole schema has been followed."""
    choices: tuple[JsonValue, ...] = ()
    """The values to choose from, if the kind is `choice` or `boolean`."""
    is_required: bool = False
    is_present: bool = False
    """Whether the property has an initial value."""
    value: JsonValue = None
    """The initial value."""

    @property
    def title(self) -> str:
        """The property's title as the schema claims it; empty if it only repeats the name."""
        return escape_text(find_title(self.name, self.schema))

    @property
    def help(self) -> str:
        return shorten_text(str(self.schema.get("description") or ""), HELP_CHARS)

    @property
    def description(self) -> str:
        """The schema's description of the property, or else its title; not escaped."""
        text = self.schema.get("description", self.schema.get("title"))
        return text if isinstance(text, str) else ""

    @property
    def must_be_given(self) -> bool:
        """Whether the value is required and the schema has no default."""
        return self.is_required and "default" not in self.schema

    @property
    def text(self) -> str:
        """The initial text of the input."""
        return self.write(self.value) if self.is_present else ""

    @property
    def is_text(self) -> bool:
        """Whether the text itself is the value, so that an empty text is a value too."""
        return self.kind in ("text", "lines")

    @property
    def can_be_left_out(self) -> bool:
        """Whether the form needs a checkbox with which a person leaves the field out."""
        return self.is_present and not self.is_required and self.is_text

    def write(self, value: JsonValue) -> str:
        """Return the text from which `read` makes this value."""
        if isinstance(value, str) and (self.is_text or (self.kind == "choice" and _is_plain_word(value))):
            return value
        return json.dumps(value) if self.choices else format_editable_json(value)

    def label_choice(self, choice: JsonValue) -> str:
        """Return the choice as a list shows it: what `read` takes, and the title that the schema claims for it."""
        titles = (option.get("title") for option in _read_options(self.schema) if is_same_json(option["const"], choice))
        title = next(titles, None)
        return self.write(choice) + (f" ({shorten_text(title, MAX_TITLE_CHARS)})" if isinstance(title, str) else "")

    def read(self, text: str) -> JsonValue:
        """Return the value of a text. Raises `InvalidArguments`, which says what to write, or `LimitExceeded`."""
        if self.is_text:
            return text
        if self.kind == "boolean" and text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        if self.choices:
            # A choice may be typed as the field writes it, as JSON, or as a text without quotes that looks like JSON.
            for write in (self.write, json.dumps, str):
                for choice in self.choices:
                    if write(choice) == text:
                        return choice
            raise InvalidArguments("choose an option from the list")
        if self.kind == "json":
            return read_json(text)
        try:
            value = read_json(text)
        except (InvalidArguments, LimitExceeded):
            value = None
        if type(value) not in (int, float):
            raise InvalidArguments("write a number")
        return value

    def read_typed(self, text: str) -> JsonValue:
        """Return the value from `read`; the text itself if the schema takes text, or if `read` refuses the text."""
        if _takes_text(self.schema):
            return text
        try:
            return self.read(text)
        except (InvalidArguments, LimitExceeded):
            return text


def build_fields(schema: JsonSchema | None, values: JsonSchema = _NOTHING) -> tuple[Field, ...]:
    """Return a field for each property and each other name in `values`, which maps names to initial values."""
    schema = schema or {}
    properties, required = read_properties(schema), schema.get("required")
    required = required if isinstance(required, list) else []
    return tuple(
        build_field(name, _follow(properties.get(name), schema), values, is_required=name in required)
        for name in dict.fromkeys([*properties, *values])
    )


def build_field(
    name: str, schema: JsonSchema = _NOTHING, values: JsonSchema = _NOTHING, *, is_required: bool = False
) -> Field:
    """Return the field of one property; `values` may have its initial value, under its name."""
    is_present, value = name in values, values.get(name)
    choices = _list_choices(schema)
    if is_present and all(json.dumps(value) != json.dumps(choice) for choice in choices):
        choices = ()
    kind = "boolean" if choices and schema.get("type") == "boolean" else "choice" if choices else None
    return Field(
        name=name,
        key=f"arg.{derive_key(name)}",
        label=format_name(name),
        kind=kind or (_choose_kind(schema, value) if is_present else _choose_empty_kind(schema)),
        schema=dict(schema),
        choices=choices,
        is_required=is_required,
        is_present=is_present,
        value=value,
    )


def read_flat_fields(form: JsonSchema) -> tuple[Field, ...] | None:
    """Return the fields of a form of texts, numbers, booleans and choices; None for a form with anything else."""
    properties = form.get("properties")
    if not isinstance(properties, dict):
        return None
    # A list of texts needs no type in a schema, but the form of a host does.
    typed = {
        name: {"type": "string", **schema} if _list_choices(schema) and _takes_text(schema) else schema
        for name, schema in properties.items()
        if isinstance(schema, dict)
    }
    is_flat = all(schema.get("type") in _PRIMITIVE and "$ref" not in schema for schema in typed.values())
    return build_fields({**form, "properties": {**typed}}) if is_flat and typed.keys() == properties.keys() else None


def read_inputs(inputs: JsonSchema | None, typed: Iterable[tuple[str, str]]) -> dict[str, JsonValue]:
    """Return the values of typed texts, with the types that the inputs of a plan take."""
    fields = {field.name: field for field in build_fields(inputs)}
    return {name: fields.get(name, build_field(name)).read_typed(text) for name, text in typed}


def find_title(name: str, schema: JsonSchema) -> str:
    """Return the title in the schema of a property, cut if it is long; empty for a title that only repeats the name."""
    title = schema.get("title")
    says_more = isinstance(title, str) and title.replace(" ", "_").lower() != name.lower()
    return title[:MAX_TITLE_CHARS] if isinstance(title, str) and says_more else ""


def derive_key(name: str) -> str:
    """Return a safe name for the input of a property, whatever the property is called."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def format_editable_json(value: JsonValue) -> str:
    """Return the value as JSON over several lines, with hidden characters escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return json.dumps(value, ensure_ascii=True, indent=2) if count_hidden(text.replace("\n", "")) else text


def _list_choices(schema: JsonSchema) -> tuple[JsonValue, ...]:
    """Return the values of a boolean, enumeration or `oneOf` of constants; empty if a list cannot show them all."""
    constants = [option["const"] for option in _read_options(schema)]
    choices = [True, False] if schema.get("type") == "boolean" else schema.get("enum", constants or None)
    if not isinstance(choices, list) or len(choices) > MAX_CHOICES or any(map(_is_unfit_for_a_list, choices)):
        return ()
    return tuple(choices)


def _read_options(schema: JsonSchema) -> list[dict[str, JsonValue]]:
    """Return the alternatives of `oneOf` if each of them is a constant; otherwise an empty list."""
    listed = schema.get("oneOf")
    options = [option for option in listed if isinstance(option, dict)] if isinstance(listed, list) else []
    return options if all("const" in option for option in options) else []


def _is_unfit_for_a_list(value: JsonValue) -> bool:
    return isinstance(value, list | dict) or (isinstance(value, str) and bool(count_hidden(value)))


def _choose_kind(schema: JsonSchema, value: JsonValue) -> Kind:
    """Return the kind of input for an initial value. The input must neither hide nor change a part of the value."""
    kind = schema.get("type")
    if isinstance(value, str) and kind in (None, "string") and not count_hidden(value.replace("\n", "")):
        return "lines" if "\n" in value or len(value) > LINE_CHARS else "text"
    return "number" if type(value) in (int, float) and kind in (None, "integer", "number") else "json"


def _choose_empty_kind(schema: JsonSchema) -> Kind:
    kind, longest = schema.get("type"), schema.get("maxLength")
    if kind == "string":
        return "lines" if isinstance(longest, int) and longest > LINE_CHARS else "text"
    return "number" if kind in ("integer", "number") else "json"


def _is_plain_word(text: str) -> bool:
    """Return False for a text that looks like another JSON value, such as "true", or that is blank."""
    try:
        json.loads(text)
    except ValueError:
        return bool(text.strip())
    return False


def _takes_text(schema: JsonSchema) -> bool:
    kind = schema.get("type")
    if kind is None:
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choices, list) and choices:
            return all(isinstance(choice, str) for choice in choices)
        groups = (schema.get(keyword) for keyword in ("anyOf", "oneOf", "allOf"))
        parts = (part for group in groups if isinstance(group, list) for part in group)
        return any(isinstance(part, dict) and _takes_text(part) for part in parts)
    return kind == "string" or (isinstance(kind, list) and "string" in kind)


def _follow(schema: JsonValue, root: JsonSchema) -> JsonSchema:
    """Follow a reference within the root once, and return the schema; keywords beside the reference win."""
    if not isinstance(schema, dict):
        return {}
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    try:
        target = JsonPointer(reference[1:]).resolve(root)
    except JsonPointerException:
        return schema
    return {**cast("JsonSchema", target), **schema} if isinstance(target, dict) else schema


def read_number(text: str) -> int | None:
    """Return the number in a text of at most `MAX_DIGITS` digits; None for every other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def read_ranges(text: str, count: int) -> list[int] | None:
    """Return the sorted indexes of the rows that the text names; None if it is not a list of rows from 1 to `count`."""
    rows: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        begin, end = read_number(first), read_number(last if dash else first)
        if begin is None or end is None or not 1 <= begin <= end <= count:
            return None
        rows.update(range(begin - 1, end))
    return sorted(rows)


def format_ranges(rows: Collection[int]) -> str:
    """Return the shortest text that `read_ranges` reads as these places; empty for none."""
    parts: list[str] = []
    first = last = 0
    for number in [*(index + 1 for index in sorted(rows)), 0]:
        if number == last + 1 and last:
            last = number
            continue
        if first:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    return ",".join(parts)


def name_rows(rows: Collection[int]) -> str:
    """Return these places as people name them, such as `rows 1, 3-5`."""
    return f"{'row' if len(rows) == 1 else 'rows'} {format_ranges(rows).replace(',', ', ')}"
