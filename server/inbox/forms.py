"""Forms of pages: the fields that a page shows, and the values that come back.

A field that the browser returns unchanged keeps its exact value, so browsers cannot alter text by normalizing it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.fields import Field, build_fields

MAX_FIELDS = 200
WHOLE_FORM_KEY = "content"
"""The key of the only field of a form that is not a flat object."""


class FilledForm(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a person sent."""

    values: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    texts: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The texts of the inputs by key, to show them again."""
    faults: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The faults of the inputs by key."""
    omitted: frozenset[str] = frozenset()
    """The keys of the inputs that are left out."""


def build_argument_fields(schema: Mapping[str, JsonValue], arguments: Mapping[str, JsonValue]) -> tuple[Field, ...]:
    """Return one field for every property of the schema and every other argument; at most `MAX_FIELDS`."""
    return build_fields(schema, arguments)[:MAX_FIELDS]


def build_form_fields(
    form: Mapping[str, JsonValue], values: Mapping[str, JsonValue] = MappingProxyType({})
) -> tuple[Field, ...]:
    """Return the fields of a form with these values and its defaults; one JSON field if the form is not a flat
    object."""
    fields = build_fields(form)
    if not 0 < len(fields) <= MAX_FIELDS or form.get("type", "object") != "object":
        label = escape_text(str(form.get("title") or "Answer"))
        whole = {"description": form.get("description")}
        return (Field(key=WHOLE_FORM_KEY, name="", label=label, kind="json", schema=whole, is_required=True),)
    defaults = {field.name: field.schema["default"] for field in fields if "default" in field.schema}
    return build_fields(form, {**defaults, **values})


def fill_form(fields: Sequence[Field], form_texts: Mapping[str, str]) -> FilledForm:
    """Return the values of all fields. A field that was not sent keeps its initial value."""
    values: dict[str, JsonValue] = {}
    texts: dict[str, str] = {}
    faults: dict[str, str] = {}
    omitted: set[str] = set()
    for item in fields:
        initial = item.text
        text = texts[item.key] = form_texts.get(item.key, initial).replace("\r\n", "\n")
        if form_texts.get(f"omit.{item.key}") and item.can_be_left_out:
            omitted.add(item.key)
        elif text == initial and item.is_present:
            values[item.name] = item.value
        elif text or (item.is_present and item.is_text):
            try:
                values[item.name] = item.read(text)
            except PlanwardenError as error:
                faults[item.key] = escape_text(error.message)
        elif item.is_required:
            faults[item.key] = "this field is required"
    return FilledForm(values=values, texts=texts, faults=faults, omitted=frozenset(omitted))


def read_answer(fields: Sequence[Field], filled: FilledForm) -> JsonValue:
    """Return the `content` of a decision from the values of the form."""
    if len(fields) == 1 and fields[0].key == WHOLE_FORM_KEY:
        return filled.values.get("")
    return filled.values


def refill_form(fields: Sequence[Field], values: dict[str, JsonValue]) -> FilledForm:
    """Return the form as somebody filled it in before, for values other than the initial ones."""
    omitted = frozenset(item.key for item in fields if item.can_be_left_out and item.name not in values)
    texts = {
        item.key: item.write(values[item.name]) if item.name in values else item.text if item.key in omitted else ""
        for item in fields
    }
    return FilledForm(values=values, texts=texts, omitted=omitted)


def is_changed(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> bool:
    return not is_same_json(dict(before), dict(after))
