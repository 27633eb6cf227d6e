"""Forms made from a JSON Schema: one input per flat property, JSON for the rest, and the values that come back.

A field that comes back as it was sent keeps its exact value, so that nothing is lost in a browser's idea of text. Text with
characters that an input would hide is edited as JSON with escapes. Names are never used as names of inputs: they are other
people's text, and a schema may have changed since the page was made.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from planwarden.agent.common.canonical import canonical_json, read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.views.facts import count_hidden, escape_text

Kind = Literal["text", "lines", "number", "choice", "json"]

MAX_FIELDS = 200
LINE_CHARS = 80
MAX_OPTIONS = 100
HINT_CHARS = 200
WHOLE_FORM_KEY = "content"
"""Key of the only field of a form that is not a flat object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputField:
    """One input."""

    key: str
    name: str
    """As the tool calls it; not for display."""
    label: str
    kind: Kind
    text: str
    """What the input holds at first."""
    options: tuple[tuple[str, str], ...] = ()
    """For `choice`: a JSON text and its label."""
    is_required: bool = False
    is_present: bool = False
    """There is a value to begin with."""
    value: JsonValue = None
    hint: str = ""

    @property
    def can_be_left_out(self) -> bool:
        """An empty text is a text, so leaving it out needs a choice of its own."""
        return self.is_present and not self.is_required and self.kind in ("text", "lines")

    @property
    def rows(self) -> int:
        return max(2, min(14, self.text.count("\n") + 1 + len(self.text) // 90))


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledForm:
    """What came back."""

    values: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What stood in the inputs, by key, to show it again."""
    faults: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is wrong with an input, by key."""


def build_argument_fields(
    schema: Mapping[str, JsonValue], arguments: Mapping[str, JsonValue]
) -> tuple[InputField, ...]:
    """One field for every property of the schema and every argument beside it, at most `MAX_FIELDS`."""
    properties, required = _read_properties(schema), _read_required(schema)
    names = list(dict.fromkeys([*properties, *arguments]))[:MAX_FIELDS]
    return tuple(_build_field(name, properties.get(name), arguments, is_required=name in required) for name in names)


def build_form_fields(form: Mapping[str, JsonValue]) -> tuple[InputField, ...]:
    """The fields of a question's own form, filled with its defaults; one JSON field when it is not a flat object."""
    properties = _read_properties(form)
    if not properties or len(properties) > MAX_FIELDS or form.get("type", "object") != "object":
        label = escape_text(str(form.get("title") or "Answer"))[:HINT_CHARS]
        return (
            InputField(
                key=WHOLE_FORM_KEY, name="", label=label, kind="json", text="", is_required=True, hint=_read_hint(form)
            ),
        )
    defaults = {
        name: entry["default"] for name, entry in properties.items() if isinstance(entry, dict) and "default" in entry
    }
    return build_argument_fields(form, defaults)


def fill_form(fields: Sequence[InputField], given: Mapping[str, str]) -> FilledForm:
    """The values of all fields. A field that was not sent keeps its value."""
    values: dict[str, JsonValue] = {}
    texts: dict[str, str] = {}
    faults: dict[str, str] = {}
    for found in fields:
        text = given.get(found.key, found.text).replace("\r\n", "\n")
        texts[found.key] = text
        if given.get(f"omit.{found.key}") and found.can_be_left_out:
            continue
        if text == found.text and found.is_present:
            values[found.name] = found.value
            continue
        if not text and not (found.is_present and found.kind in ("text", "lines")):
            if found.is_required:
                faults[found.key] = "this is needed"
            continue
        try:
            values[found.name] = _parse(found, text)
        except PlanwardenError as error:
            faults[found.key] = escape_text(error.message)
        except ValueError as error:
            faults[found.key] = str(error)
    return FilledForm(values=values, texts=texts, faults=faults)


def read_answer(fields: Sequence[InputField], filled: FilledForm) -> JsonValue:
    """The `content` that the fields of a form make up."""
    if len(fields) == 1 and fields[0].key == WHOLE_FORM_KEY:
        return filled.values.get("")
    return filled.values


def derive_key(name: str) -> str:
    """A name for an input that is always fit to be one, whatever the tool calls its argument."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def format_texts(fields: Sequence[InputField], values: Mapping[str, JsonValue]) -> dict[str, str]:
    """What the inputs hold for other values than those that the fields were made with, by key."""
    return {found.key: _format_text(found.kind, values[found.name]) if found.name in values else "" for found in fields}


def is_changed(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> bool:
    return canonical_json(dict(before)) != canonical_json(dict(after))


def format_editable_json(value: JsonValue) -> str:
    """The value as JSON over several lines, in which every character can be seen."""
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
        label=escape_text(name)[:HINT_CHARS] or '""',
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
        return "lines" if isinstance(longest, int) and longest > LINE_CHARS * 3 else "text"
    return "number" if wanted in ("integer", "number") else "json"


def _choose_text_kind(value: str) -> Kind:
    return "lines" if "\n" in value or len(value) > LINE_CHARS else "text"


def _list_options(entry: Mapping[str, JsonValue], value: JsonValue, *, is_present: bool) -> tuple[tuple[str, str], ...]:
    """What to choose from; empty when the value is not one of them or there is no closed list."""
    listed = entry.get("enum")
    if entry.get("type") == "boolean":
        listed = [True, False]
    elif not isinstance(listed, list) or not 0 < len(listed) <= MAX_OPTIONS or any(map(_is_compound, listed)):
        return ()
    texts = [json.dumps(option) for option in listed]
    if is_present and json.dumps(value) not in texts:
        return ()
    # A text looks like itself, unless it could be taken for another value.
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


def _parse(found: InputField, text: str) -> JsonValue:
    """Raises `ValueError` with what to write instead, or `InvalidArguments`."""
    if found.kind in ("text", "lines"):
        return text
    if found.kind == "choice":
        if all(text != option for option, _ in found.options):
            raise ValueError("choose one of the list")
        return read_json(text)
    value = read_json(text)
    if found.kind == "number" and type(value) not in (int, float):
        raise ValueError("write a number")
    return value


def _read_hint(entry: Mapping[str, JsonValue]) -> str:
    text = entry.get("description") or entry.get("title") or ""
    shown = escape_text(str(text)[: HINT_CHARS + 1])
    return shown if len(shown) <= HINT_CHARS else shown[:HINT_CHARS] + "..."


def _read_properties(schema: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _read_required(schema: Mapping[str, JsonValue]) -> list[JsonValue]:
    found = schema.get("required")
    return found if isinstance(found, list) else []
