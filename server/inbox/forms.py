"""Forms built from a JSON Schema: one input per flat property, JSON for the rest, and the values that come back.

A field that the browser returns unchanged keeps its exact value, so browsers cannot alter text by normalizing it. A
text with characters that an input would hide is edited as JSON with escapes. Inputs are named by hashes of the property
names, because property names are foreign text and the schema may change after the page was rendered.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import is_same_json, read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.views.facts import count_hidden, escape_text
from planwarden.server.views.suspension import read_titles

Kind = Literal["text", "lines", "number", "choice", "json"]

MAX_FIELDS = 200
LINE_CHARS = 80
MAX_OPTIONS = 100
HINT_CHARS = 200
WHOLE_FORM_KEY = "content"
"""The key of the only field of a form that is not a flat object."""


class InputField(msgspec.Struct, frozen=True, kw_only=True):
    """One input."""

    key: str
    name: str
    """The name of the property in the schema; not for display."""
    label: str
    kind: Kind
    text: str
    """The initial text of the input."""
    title: str = ""
    """What the schema calls it, if that says more than its name; the schema's claim."""
    options: tuple[tuple[str, str], ...] = ()
    """For `choice`: pairs of a JSON text and its label."""
    is_required: bool = False
    is_present: bool = False
    """The property has an initial value."""
    value: JsonValue = None
    hint: str = ""

    @property
    def can_be_left_out(self) -> bool:
        """The field needs a checkbox to leave it out, because an empty text is a value too."""
        return self.is_present and not self.is_required and self.kind in ("text", "lines")

    @property
    def rows(self) -> int:
        return max(2, min(14, self.text.count("\n") + 1 + len(self.text) // 90))


class FilledForm(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a person sent."""

    values: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    texts: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The texts of the inputs by key, to show them again."""
    faults: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The faults of the inputs by key."""
    omitted: frozenset[str] = frozenset()
    """The keys of the inputs that are left out."""


def build_argument_fields(
    schema: Mapping[str, JsonValue], arguments: Mapping[str, JsonValue]
) -> tuple[InputField, ...]:
    """One field for every property of the schema and every other argument; at most `MAX_FIELDS`."""
    properties, required = _read_properties(schema), _read_required(schema)
    names = list(dict.fromkeys([*properties, *arguments]))[:MAX_FIELDS]
    return tuple(_build_field(name, properties.get(name), arguments, is_required=name in required) for name in names)


def build_form_fields(form: Mapping[str, JsonValue]) -> tuple[InputField, ...]:
    """The fields of a question's form with its defaults; one JSON field if the form is not a flat object."""
    properties = _read_properties(form)
    if not properties or len(properties) > MAX_FIELDS or form.get("type", "object") != "object":
        label = escape_text(str(form.get("title") or "Answer"))
        return (
            InputField(
                key=WHOLE_FORM_KEY, name="", label=label, kind="json", text="", is_required=True, hint=_read_hint(form)
            ),
        )
    defaults = {
        name: entry["default"] for name, entry in properties.items() if isinstance(entry, dict) and "default" in entry
    }
    return build_argument_fields(form, defaults)


def fill_form(fields: Sequence[InputField], sent: Mapping[str, str]) -> FilledForm:
    """The values of all fields. A field that was not sent keeps its initial value."""
    values: dict[str, JsonValue] = {}
    texts: dict[str, str] = {}
    faults: dict[str, str] = {}
    omitted: set[str] = set()
    for item in fields:
        text = sent.get(item.key, item.text).replace("\r\n", "\n")
        texts[item.key] = text
        if sent.get(f"omit.{item.key}") and item.can_be_left_out:
            omitted.add(item.key)
            continue
        if text == item.text and item.is_present:
            values[item.name] = item.value
            continue
        if not text and not (item.is_present and item.kind in ("text", "lines")):
            if item.is_required:
                faults[item.key] = "this field is required"
            continue
        try:
            values[item.name] = _parse(item, text)
        except PlanwardenError as error:
            faults[item.key] = escape_text(error.message)
        except ValueError as error:
            faults[item.key] = str(error)
    return FilledForm(values=values, texts=texts, faults=faults, omitted=frozenset(omitted))


def read_answer(fields: Sequence[InputField], filled: FilledForm) -> JsonValue:
    """The `content` of a decision from the values of the form."""
    if len(fields) == 1 and fields[0].key == WHOLE_FORM_KEY:
        return filled.values.get("")
    return filled.values


def derive_key(name: str) -> str:
    """A safe name for the input of a property, whatever the tool calls the property."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def refill_form(fields: Sequence[InputField], values: dict[str, JsonValue]) -> FilledForm:
    """The form as somebody filled it in before, for values other than the initial ones."""
    omitted = frozenset(item.key for item in fields if item.can_be_left_out and item.name not in values)
    texts = {
        item.key: _format_text(item.kind, values[item.name])
        if item.name in values
        else item.text
        if item.key in omitted
        else ""
        for item in fields
    }
    return FilledForm(values=values, texts=texts, omitted=omitted)


def is_changed(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> bool:
    return not is_same_json(dict(before), dict(after))


def format_editable_json(value: JsonValue) -> str:
    """The value as JSON over several lines, with hidden characters escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return json.dumps(value, ensure_ascii=True, indent=2) if count_hidden(text.replace("\n", "")) else text


def _build_field(name: str, schema: JsonValue, values: Mapping[str, JsonValue], *, is_required: bool) -> InputField:
    entry = schema if isinstance(schema, dict) else {}
    is_present = name in values
    value = values.get(name)
    options = _list_options(entry, value, is_present=is_present)
    kind = "choice" if options else _choose_kind(entry, value, is_present=is_present)
    return InputField(
        key=f"arg.{derive_key(name)}",
        name=name,
        label=escape_text(name) or '""',
        title=_read_title(name, entry),
        kind=kind,
        text=_format_text(kind, value) if is_present else "",
        options=options,
        is_required=is_required,
        is_present=is_present,
        value=value,
        hint=_read_hint(entry),
    )


def _format_text(kind: Kind, value: JsonValue) -> str:
    if isinstance(value, str) and kind in ("text", "lines"):
        return value
    return json.dumps(value) if kind == "choice" else format_editable_json(value)


def _choose_kind(entry: Mapping[str, JsonValue], value: JsonValue, *, is_present: bool) -> Kind:
    wanted = entry.get("type")
    if is_present and isinstance(value, str):
        return (
            "json"
            if count_hidden(value.replace("\n", "")) or wanted not in (None, "string")
            else _choose_text_kind(value)
        )
    if is_present and type(value) in (int, float):
        return "number" if wanted in (None, "integer", "number") else "json"
    if is_present:
        return "json"
    if wanted == "string":
        longest = entry.get("maxLength")
        return "lines" if isinstance(longest, int) and longest > LINE_CHARS else "text"
    return "number" if wanted in ("integer", "number") else "json"


def _choose_text_kind(value: str) -> Kind:
    return "lines" if "\n" in value or len(value) > LINE_CHARS else "text"


def _list_options(entry: Mapping[str, JsonValue], value: JsonValue, *, is_present: bool) -> tuple[tuple[str, str], ...]:
    """The options of an enumeration; empty if there is none or the value is not one of its options."""
    listed = entry.get("enum")
    if entry.get("type") == "boolean":
        listed = [True, False]
    elif not isinstance(listed, list) or not 0 < len(listed) <= MAX_OPTIONS or any(map(_is_compound, listed)):
        return ()
    texts = [json.dumps(option) for option in listed]
    if is_present and json.dumps(value) not in texts:
        return ()
    # A text that looks like another JSON value, such as "true", keeps its quotes.
    labels = [option if isinstance(option, str) and _is_plain_word(option) else json.dumps(option) for option in listed]
    return tuple(zip(texts, labels, strict=True))


def _is_plain_word(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return bool(text.strip())
    return False


def _is_compound(value: JsonValue) -> bool:
    return isinstance(value, list | dict) or (isinstance(value, str) and bool(count_hidden(value)))


def _parse(item: InputField, text: str) -> JsonValue:
    """Raises `InvalidArguments`, or `ValueError` with what to write instead."""
    if item.kind in ("text", "lines"):
        return text
    if item.kind == "choice":
        if all(text != option for option, _ in item.options):
            raise ValueError("choose an option from the list")
        return read_json(text)
    try:
        value = read_json(text)
    except PlanwardenError:
        if item.kind == "number":
            raise ValueError("write a number") from None
        raise
    if item.kind == "number" and type(value) not in (int, float):
        raise ValueError("write a number")
    return value


def _read_hint(entry: Mapping[str, JsonValue]) -> str:
    text = entry.get("description") or ""
    hint = escape_text(str(text)[: HINT_CHARS + 1])
    return hint if len(hint) <= HINT_CHARS else hint[:HINT_CHARS] + "..."


def _read_title(name: str, entry: Mapping[str, JsonValue]) -> str:
    return escape_text(read_titles({"properties": {name: dict(entry)}}).get(name, ""))


def _read_properties(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _read_required(schema: Mapping[str, JsonValue]) -> list[JsonValue]:
    required = schema.get("required")
    return required if isinstance(required, list) else []
