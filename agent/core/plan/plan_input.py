"""The form of a plan as callers and models hand it in; nothing else in the project defines it.

Derived from these models: the check in `parse_plan`, the JSON Schemas that models and MCP clients see, and the tables
in docs/reference/plans.md. The string below a field is its text in the reference. A field's `description` goes into
the schema for MCP; it is short, because every conversation pays for it.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from planwarden.agent.common.form import SentForm
from planwarden.agent.core.plan.plan import (
    MAX_CALLS_PER_STEP,
    MAX_CONDITIONS,
    MAX_ID_CHARS,
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    STEPS_KEYS,
    OnItemFailure,
    OnReject,
    StepType,
    ValidationMode,
)

MAX_NUMBER_BITS = 64
"""The longest number that is taken as an id."""
_SCHEMA_KEYWORDS = ("type", "enum", "required", "minItems")
"""Keywords that models and clients see; `parse_plan` names the others, such as lengths, when a plan violates them."""


def _read_name(value: object) -> object:
    """Return an id that is a number as text."""
    return str(value) if type(value) is int and value.bit_length() <= MAX_NUMBER_BITS else value


def _read_names(value: object) -> object:
    return [_read_name(name) for name in cast("list[object]", value)] if isinstance(value, list) else value


def _read_sources(value: object) -> object:
    """Return the value with each number that a `$from` names as text."""
    if isinstance(value, list):
        return [_read_sources(part) for part in cast("list[object]", value)]
    if isinstance(value, dict):
        parts = cast("dict[str, object]", value)
        return {key: _read_name(part) if key == "$from" else _read_sources(part) for key, part in parts.items()}
    return value


_Id = Annotated[str, BeforeValidator(_read_name), Field(min_length=1, max_length=MAX_ID_CHARS, pattern=r"^[^\s:/]+$")]
_Names = Annotated[list[str], BeforeValidator(_read_names)]


class CallInput(BaseModel):
    """One call of a step."""

    # The schema makes writers send `arguments`, even if they are empty; the reader takes a call without them.
    model_config = ConfigDict(
        strict=True, extra="ignore", defer_build=True, json_schema_extra={"required": ["toolName", "arguments"]}
    )
    toolName: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    """Name in the catalogue."""
    arguments: Annotated[
        dict[str, JsonValue],
        BeforeValidator(_read_sources),
        Field(
            description='{"$from": stepId, "pointer": "/json/pointer"} takes a value of an earlier result; with '
            '"parse": "json" if that is JSON text, and "default" for a value that is not there. '
            '{"$text": "Dear {name}", "with": {"name": {"$from": ...}}} makes text'
        ),
    ] = Field(default_factory=dict)
    """Values, [bindings](#bindings): `{"$from": STEP, "pointer": "/json/pointer"}` takes a part of an earlier result,
    and [templates](#templates): `{"$text": "Dear {name}", "with": {"name": BINDING}}`."""


class ConditionInput(BaseModel):
    """A condition of a step."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)
    value: Annotated[
        dict[str, JsonValue], Field(description='{"$from": stepId, "pointer": ...}'), BeforeValidator(_read_sources)
    ]
    """A [binding](#bindings). A value that is not there matches nothing."""
    matches: Annotated[
        dict[str, JsonValue],
        Field(
            description='JSON Schema that the value must fit: {"minimum": 5000} for a number, {"minItems": 1} for '
            "a list"
        ),
    ]
    """JSON Schema that the value has to fit."""


class RetryInput(BaseModel):
    """Further attempts of a step's calls."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)
    attempts: Annotated[int, Field(ge=1, le=20, description="Calls in all")]
    """Calls in all, the first one included."""
    delayS: Annotated[float, Field(ge=0, le=86_400)] = 1.0
    """Seconds before the second attempt."""
    factor: Annotated[float, Field(ge=1, le=10)] = 2.0
    """Multiplies each further wait."""
    maxDelayS: Annotated[float, Field(ge=0, le=86_400)] = 3_600.0
    """The longest wait, in seconds."""


def _list_conditions(value: object) -> object:
    """Return a single condition as a list of one."""
    return [cast("object", value)] if isinstance(value, dict) else value


class StepInput(BaseModel):
    """One step of a plan."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)
    id: _Id
    """The name that other steps refer to; no spaces, colons or slashes."""
    description: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
    """What the step has to do."""
    stepType: Annotated[
        StepType | None, Field(description="tool: calls its requiredTools; reasoning: thinks and writes")
    ] = None
    """`tool` or `reasoning`; a step with `requiredTools` is always a tool step."""
    requiredTools: Annotated[
        list[str], Field(description="Must really be called; default: the tools of toolCalls")
    ] = []
    """Tools that must each have a recorded, successful result; default: those of `toolCalls`."""
    expectedOutcome: Annotated[
        Annotated[str, Field(max_length=MAX_TEXT_CHARS)] | None, Field(description="What is known or true afterwards")
    ] = None
    """What the step should lead to; the model reads it."""
    toolValidationMode: ValidationMode | None = None
    """`strict` fails a step without its required calls, `advisory` warns; default `strict`."""
    dependencies: Annotated[_Names | None, Field(description="Default: the step before")] = None
    """Ids of steps. Absent: the step before; `[]`: none. A `$from` always adds its step."""
    toolCalls: Annotated[
        list[CallInput],
        Field(max_length=MAX_CALLS_PER_STEP, description="Without it you are asked for the calls when the step begins"),
    ] = []
    """Calls with their arguments; the engine makes them without asking a model."""
    confirms: Annotated[
        _Names, Field(description="Steps with toolCalls that the answer to this displayConfirmation covers")
    ] = []
    """Later steps that this step's confirmation covers."""
    onReject: Annotated[
        OnReject | None,
        Field(description="After a person's no: skip (default) the steps that depend on it, stop all, or continue"),
    ] = None
    """After a rejection: `skip` (default) the steps that depend on it, `stop` all not yet begun, or `continue`."""
    when: Annotated[
        list[ConditionInput],
        Field(
            max_length=MAX_CONDITIONS, description="One condition or a list; all must hold, else the step is skipped"
        ),
        BeforeValidator(_list_conditions, json_schema_input_type=ConditionInput | list[ConditionInput]),
    ] = []
    """[Conditions](#conditions) that must all hold, else the step is skipped; one, or a list."""
    forEach: Annotated[
        JsonValue,
        Field(
            description="A list, or a binding to one: toolCalls are made once for each entry, and a person is asked "
            'once for all. In them {"$from": "item", "pointer": ...} is the entry, {"$from": "item", "call": 0, ...} '
            "the result of the first call for it. The result is a list with one entry an item (a list of results where "
            "the step has several calls)"
        ),
        BeforeValidator(_read_sources, json_schema_input_type=dict[str, JsonValue] | list[JsonValue] | None),
    ] = None
    """A binding to a list, or a list: `toolCalls` are made once for each item, see [loops](#loops)."""
    maxItems: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """The most items of `forEach`; default 100, at most 10,000. A loop makes at most 20,000 calls in all."""
    maxConcurrent: Annotated[int, Field(ge=1, le=32)] | None = None
    """Items of `forEach` at the same time; default 1, at most 32."""
    onItemFailure: OnItemFailure | None = None
    """After an item that failed: `stop` (default), or `continue` with the others."""
    retry: Annotated[RetryInput | None, Field(description='Repeat failed calls: {"attempts": 3}')] = None
    """Further [attempts](#attempts) of calls that failed."""


class PlanInput(BaseModel):
    """A plan."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)
    inputs: Annotated[
        dict[str, JsonValue] | None,
        Field(
            description='JSON Schema of an object: what a run is given; {"$from": "inputs", "pointer": "/customer"} '
            "takes a value"
        ),
    ] = None
    """JSON Schema of an object: what a run of the plan is given. `{"$from": "inputs", "pointer": "/customer"}` takes a
    part of it."""
    todoList: Annotated[list[StepInput], Field(min_length=1)]
    """The steps, in order."""


PLAN_KEYS = (*STEPS_KEYS, "inputs")
ENGINE_KEYS = frozenset({"status", "result", "thoughts", "toolResults", "actualToolCalls", "validationStatus"})
"""Keys that only the engine may fill in; accepted from older plans and ignored, so no model can complete a step."""
STEP_KEYS = (*StepInput.model_fields, *ENGINE_KEYS)
CALL_KEYS = tuple(CallInput.model_fields)
CONDITION_KEYS = tuple(ConditionInput.model_fields)
RETRY_KEYS = tuple(RetryInput.model_fields)


@cache
def plan_schema(*, described: bool = False) -> dict[str, JsonValue]:
    """Return the JSON Schema of a plan for its writer, with the fields' short descriptions if `described`."""
    whole = _whole_schema()
    return _shorten(whole, whole["$defs"], described=described)


@cache
def call_schema() -> dict[str, JsonValue]:
    """Return the JSON Schema of one call, without descriptions."""
    definitions = _whole_schema()["$defs"]
    return _shorten(definitions["CallInput"], definitions, described=False)


@cache
def _whole_schema() -> dict[str, Any]:
    """Return pydantic's schema of a plan, built once: nothing else before a server's first answer takes longer."""
    return PlanInput.model_json_schema()


def _shorten(node: Mapping[str, Any], definitions: Mapping[str, Any], *, described: bool) -> dict[str, JsonValue]:
    """Return the schema without references, titles, defaults, limits and null, which no writer needs."""
    if "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]]
    choices: list[JsonValue] = [
        _shorten(choice, definitions, described=described)
        for choice in node.get("anyOf", ())
        if choice != {"type": "null"}
    ]
    if len(choices) == 1 and isinstance(choices[0], dict):
        return choices[0]
    if choices:
        return {"anyOf": choices}
    short: dict[str, JsonValue] = {key: node[key] for key in _SCHEMA_KEYWORDS if key in node}
    if "items" in node:
        short["items"] = _shorten(node["items"], definitions, described=described)
    if "properties" in node:
        properties: dict[str, JsonValue] = {}
        for name, field in node["properties"].items():
            note = {"description": field["description"]} if described and "description" in field else {}
            properties[name] = {**_shorten(field, definitions, described=described), **note}
        short["properties"] = properties
    return short


@cache
def plan_form() -> dict[str, JsonValue]:
    """Return the JSON Schema of a plan for its reader, who accepts both names of the list of steps."""
    properties = plan_schema()["properties"]
    assert isinstance(properties, dict)
    lists = dict.fromkeys(STEPS_KEYS, properties["todoList"])
    return {"type": "object", "properties": {**lists, "inputs": properties["inputs"]}}


@cache
def sent_plan() -> SentForm:
    """Return the form by which a plan is tidied before it is checked."""
    return SentForm(plan_form())
