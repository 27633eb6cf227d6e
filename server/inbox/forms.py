"""The forms on pages: their fields, such as those for a plan's inputs, and the values that the browser sends back.

A field that the browser returns unchanged keeps its exact value, although browsers normalize text.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, PlanwardenError
from planwarden.agent.core.plan.inputs import complete_inputs
from planwarden.server.inbox.request import Remark
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.fields import Field, JsonSchema, build_fields

MAX_FIELDS = 200
WHOLE_FORM_KEY = "content"
"""The key of the only field of a form that is not a flat object."""
MORE_KEY = "more"
"""The key of the field for inputs that the schema allows but does not declare."""
_MORE = Field(
    key=MORE_KEY,
    name="",
    label="Other inputs",
    kind="json",
    schema={"description": 'More inputs that the plan takes: an object such as {"name": "value"}. May be left empty.'},
)
_FAULT_PREFIX = "inputs: "
"""The beginning of each fault that `complete_inputs` reports."""


class FilledForm(msgspec.Struct, frozen=True, kw_only=True):
    """The values that a person sent."""

    values: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    texts: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The text of each field, by the field's key, to show it again."""
    faults: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The fault of each faulty field, by the field's key, escaped."""
    omitted: frozenset[str] = frozenset()
    """The keys of the fields that the person left out."""
    other_faults: tuple[str, ...] = ()
    """Faults that belong to no field, escaped."""

    @property
    def is_usable(self) -> bool:
        return not self.faults and not self.other_faults


def build_form_fields(
    form: Mapping[str, JsonValue], values: Mapping[str, JsonValue] = MappingProxyType({})
) -> tuple[Field, ...]:
    """Return the fields of a form, filled with its defaults and these values. Return one JSON field if the form is not
    an object with 1 to `MAX_FIELDS` fields."""
    fields = build_fields(form)
    if not 0 < len(fields) <= MAX_FIELDS or form.get("type", "object") != "object":
        label = escape_text(str(form.get("title") or "Answer"))
        whole = {"description": form.get("description")}
        return (Field(key=WHOLE_FORM_KEY, name="", label=label, kind="json", schema=whole, is_required=True),)
    defaults = {field.name: field.schema["default"] for field in fields if "default" in field.schema}
    return build_fields(form, {**defaults, **values})


def fill_form(
    fields: Sequence[Field], form_texts: Mapping[str, str], before: Mapping[str, JsonValue] = MappingProxyType({})
) -> FilledForm:
    """Return the sent values of all fields, and the values in `before` that have no field. A field that was not sent
    keeps its initial value."""
    names = {item.name for item in fields}
    values = {name: value for name, value in before.items() if name not in names}
    texts: dict[str, str] = {}
    faults: dict[str, str] = {}
    omitted: set[str] = set()
    for item in fields:
        initial = item.text
        text = texts[item.key] = form_texts.get(item.key, initial)
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


def refill_form(fields: Sequence[Field], values: dict[str, JsonValue]) -> FilledForm:
    """Return the form as if a person had filled it in with these values."""
    omitted = frozenset(item.key for item in fields if item.can_be_left_out and item.name not in values)
    texts = {
        item.key: item.write(values[item.name]) if item.name in values else item.text if item.key in omitted else ""
        for item in fields
    }
    return FilledForm(values=values, texts=texts, omitted=omitted)


def build_input_fields(
    inputs: JsonSchema | None, values: Mapping[str, JsonValue] = MappingProxyType({})
) -> tuple[Field, ...]:
    """Return the fields of the plan's inputs, in the plan's order; none for a plan that takes no inputs.

    The fields start with `values`, which are the inputs of an earlier run, or else with the plan's defaults.
    """
    if inputs is None:
        return ()
    declared = {field.name for field in build_fields(inputs)}
    fields: tuple[Field, ...] = ()
    if declared:
        # A person cannot leave out a field with a default, because the default would be filled in again.
        fields = tuple(
            replace(field, is_required=field.is_required or "default" in field.schema)
            for field in build_form_fields(inputs, {name: values[name] for name in values if name in declared})
        )
    takes_more = inputs.get("additionalProperties") not in (None, False) or bool(inputs.get("patternProperties"))
    if not takes_more:
        return fields
    others = {name: value for name, value in values.items() if name not in declared}
    return (*fields, replace(_MORE, is_present=bool(others), value=others))


def fill_inputs_form(
    inputs: JsonSchema | None, form_texts: Mapping[str, str], values: Mapping[str, JsonValue] = MappingProxyType({})
) -> FilledForm:
    """Return what was sent for the fields of `build_input_fields`, checked against the plan's schema; a fault that
    belongs to a field is listed at that field."""
    fields = build_input_fields(inputs, values)
    declared = [field for field in fields if field.key != MORE_KEY]
    filled = fill_form(declared, form_texts)
    more = fill_form([field for field in fields if field.key == MORE_KEY], form_texts)
    value, names = more.values.get(""), {field.name for field in declared}
    undeclared = value if isinstance(value, dict) else {}
    faults, others = {**filled.faults, **more.faults}, tuple[str, ...]()
    if value is not None and not isinstance(value, dict):
        faults[MORE_KEY] = "write an object"
    doubled = next((name for name in undeclared if name in names), None)
    if doubled is not None:
        faults[MORE_KEY] = f"{escape_text(doubled)} has a field of its own"
    inputs_sent = {**filled.values, **undeclared}
    try:
        if not faults:
            complete_inputs(inputs, inputs_sent)
    except (InvalidArguments, LimitExceeded) as error:
        listed = (error.details or {}).get("problems")
        problems = [str(problem) for problem in listed] if isinstance(listed, list) else [error.message]
        faults, others = _place_faults(declared, problems)
    texts = {**filled.texts, **more.texts}
    return replace(filled, values=inputs_sent, texts=texts, faults=faults, other_faults=others)


def build_fault_remark(inputs: FilledForm) -> Remark:
    """Return the remark above a form whose inputs do not fit the plan."""
    details = f" {'; '.join(inputs.other_faults[:5])}" if inputs.other_faults else ""
    return Remark(f"Some inputs need another look; nothing was started.{details}", 422, "bad")


def keep_texts(inputs: JsonSchema | None, form_texts: Mapping[str, str]) -> FilledForm:
    """Return the texts that were typed into fields that the plan still has; the texts are not checked."""
    keys = (field.key for field in build_input_fields(inputs))
    return FilledForm(texts={key: form_texts[key] for key in keys if key in form_texts})


def _place_faults(fields: Sequence[Field], problems: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the faults by the key of their field, and the faults that belong to no field, all escaped."""
    at_fields: dict[str, str] = {}
    others: list[str] = []
    for problem in problems:
        text = problem.removeprefix(_FAULT_PREFIX)
        target = next((field for field in fields if _is_about(field.name, text)), None)
        if target is None:
            others.append(escape_text(text))
        else:
            fault_text = escape_text(text.removeprefix(f"/{target.name}: "))
            at_fields[target.key] = f"{at_fields[target.key]}; {fault_text}" if target.key in at_fields else fault_text
    return at_fields, tuple(others)


def _is_about(name: str, fault: str) -> bool:
    missing = (f'"{name}" is a required property', f"{name!r} is a required property")
    return fault.startswith((f"/{name}: ", f"/{name}/")) or fault in missing
