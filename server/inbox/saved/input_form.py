"""The form of a plan's inputs: one field for each declared input, and JSON for what its schema lets in beyond them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.core.plan.inputs import fill_inputs
from planwarden.server.inbox.forms import FilledForm, build_form_fields, fill_form
from planwarden.server.inbox.request import Remark
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.fields import Field, JsonSchema, build_fields

MORE_KEY = "more"
"""The field of inputs that the schema lets in without declaring them."""
_MORE = Field(
    key=MORE_KEY,
    name="",
    label="Other inputs",
    kind="json",
    schema={"description": 'More inputs that the plan takes: an object such as {"name": "value"}. May be left empty.'},
)
_OF_ALL = "inputs: "
"""Begins each fault of `fill_inputs`."""


class GivenInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What a person gave a run."""

    values: dict[str, JsonValue]
    """As they were sent, without defaults."""
    filled: FilledForm
    """To show the form again, with the faults of its fields."""
    faults: tuple[str, ...] = ()
    """Faults that belong to no field, escaped."""

    @property
    def is_usable(self) -> bool:
        return not self.faults and not self.filled.faults


def build_input_fields(
    inputs: JsonSchema | None, values: Mapping[str, JsonValue] = MappingProxyType({})
) -> tuple[Field, ...]:
    """Return the fields of the plan's inputs, in their order; none for a plan that takes nothing.

    They begin with the values of a run, and with the plan's defaults.
    """
    if inputs is None:
        return ()
    declared = {field.name for field in build_fields(inputs)}
    fields: tuple[Field, ...] = ()
    if declared:
        # A field with a default cannot be left out: the default would come back.
        fields = tuple(
            replace(field, is_required=field.is_required or field.is_present)
            for field in build_form_fields(inputs, {name: values[name] for name in values if name in declared})
        )
    takes_more = inputs.get("additionalProperties") not in (None, False) or bool(inputs.get("patternProperties"))
    if not takes_more:
        return fields
    others = {name: value for name, value in values.items() if name not in declared}
    return (*fields, replace(_MORE, is_present=bool(others), value=others))


def read_given_inputs(inputs: JsonSchema | None, fields: Sequence[Field], form_texts: Mapping[str, str]) -> GivenInputs:
    """Return what the form holds, checked by the plan's schema; every fault is shown at its field where it has one."""
    filled = fill_form([field for field in fields if field.key != MORE_KEY], form_texts)
    values = dict(filled.values)
    if any(field.key == MORE_KEY for field in fields):
        more = fill_form([field for field in fields if field.key == MORE_KEY], form_texts)
        values |= _read_object(more.values.get(""))
        faults = {**filled.faults, **more.faults, **_find_faults_of_more(fields, more.values.get(""))}
        filled = replace(filled, texts={**filled.texts, **more.texts}, faults=faults)
    if filled.faults:
        return GivenInputs(values=values, filled=filled)
    try:
        fill_inputs(inputs, values)
    except (InvalidArguments, LimitExceeded) as error:
        listed = (error.details or {}).get("problems")
        problems = [str(problem) for problem in listed] if isinstance(listed, list) else [error.message]
        at_fields, others = _place_faults(fields, problems)
        return GivenInputs(values=values, filled=replace(filled, faults=at_fields), faults=others)
    return GivenInputs(values=values, filled=filled)


def _read_object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _find_faults_of_more(fields: Sequence[Field], value: JsonValue) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        return {MORE_KEY: "write an object"}
    declared = {field.name for field in fields if field.key != MORE_KEY}
    doubled = next((name for name in value if name in declared), None)
    return {} if doubled is None else {MORE_KEY: f"{escape_text(doubled)} has a field of its own"}


def build_fault_remark(inputs: GivenInputs) -> Remark:
    """Return what is above a form that holds what the plan does not take."""
    details = f" {'; '.join(inputs.faults[:5])}" if inputs.faults else ""
    return Remark(text=f"Some inputs need another look; nothing was started.{details}", tone="bad")


def keep_texts(fields: Sequence[Field], form_texts: Mapping[str, str]) -> FilledForm:
    """Return what was typed into the fields that are still there, without a check."""
    return FilledForm(texts={field.key: form_texts[field.key] for field in fields if field.key in form_texts})


def _place_faults(fields: Sequence[Field], problems: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the faults by the key of their field, and those of no field."""
    at_fields: dict[str, str] = {}
    others: list[str] = []
    for problem in problems:
        text = problem.removeprefix(_OF_ALL)
        target = next((field for field in fields if field.key != MORE_KEY and _is_about(field.name, text)), None)
        if target is None:
            others.append(escape_text(text))
        else:
            fault_text = escape_text(text.removeprefix(f"/{target.name}: "))
            at_fields[target.key] = f"{at_fields[target.key]}; {fault_text}" if target.key in at_fields else fault_text
    return at_fields, tuple(others)


def _is_about(name: str, fault: str) -> bool:
    return fault.startswith((f"/{name}: ", f"/{name}/")) or fault == f"{name!r} is a required property"
