"""Events as JSON and back.

An event is one list: its code, then its fields in the order of the dataclass, `null` for a default, trailing defaults left
out. Names would be half of the bytes of an execution. Nested facts (a plan, a question) are lists in the same way; values
from outside (arguments, results) stay as they are.

A row begins with the number of its form, 2; rows of form 1 have none, are read and no longer written. Form 2 does three
things more. Ids and digests are packed (`planwarden.storage.packing`). The seldom fields of steps and questions come last. And what the plan's parser fills in for a step that does not say it
(`implied`) is left out like a default.

Decoding goes through pydantic, because a stored row is input like any other: what does not fit is `StoreError`, never a
half-built event. A released code never changes its meaning; a new field goes to the end and has a default. Golden files in
the tests keep every released form decodable.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import JsonValue, TypeAdapter, ValidationError

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import Plan, PlannedCall, PlanStep
from planwarden.storage.packing import packed, unpacked

CODES: dict[str, type[ev.Event]] = {
    "EC": ev.ExecutionCreated,
    "ES": ev.ExecutionStarted,
    "EP": ev.ExecutionPlanned,
    "EW": ev.ExecutionSuspended,
    "XC": ev.ExecutionCompleted,
    "XR": ev.ExecutionRejected,
    "XF": ev.ExecutionFailed,
    "XB": ev.ExecutionExhausted,
    "XX": ev.ExecutionCancelled,
    "CR": ev.CancelRequested,
    "PA": ev.PlanAccepted,
    "PR": ev.PlanRefused,
    "PC": ev.PlanRevised,
    "PX": ev.RevisionRefused,
    "SB": ev.StepStarted,
    "SC": ev.StepCompleted,
    "SF": ev.StepFailed,
    "SR": ev.StepRejected,
    "SK": ev.StepSkipped,
    "VF": ev.ValidationFailed,
    "MR": ev.ModelReplied,
    "MF": ev.ModelFailed,
    "TI": ev.ToolCallIntended,
    "TR": ev.ToolReturned,
    "TF": ev.ToolFailed,
    "TU": ev.ToolOutcomeUnknown,
    "QA": ev.Suspended,
    "QR": ev.SuspensionRevised,
    "QD": ev.SuspensionDecided,
    "QE": ev.SuspensionEndorsed,
    "QN": ev.SuspensionReminded,
    "QT": ev.SuspensionTimedOut,
    "QW": ev.SuspensionWithdrawn,
}
"""First letter: Execution, its eXit, Plan, Step, Model, Tool call, Question."""

_CODE_OF = {kind: code for code, kind in CODES.items()}
_NESTED = frozenset(
    {
        ev.Options,
        ev.ProposedCall,
        ev.CoveredCall,
        ev.Alarm,
        ev.Question,
        ev.RecordedDecision,
        Plan,
        PlanStep,
        PlannedCall,
    }
)
_PACKED = frozenset({"suspension_id", "definition_digest", "digest", "rendered", "pins"})
"""Fields that hold ids and digests, wherever they are."""
_IMPLIED = ("dependencies", "required_tools", "step_type")
_LAST: dict[type, tuple[str, ...]] = {
    PlanStep: (
        *_IMPLIED,
        "expected_outcome",
        "tool_validation_mode",
        "confirms",
        "on_reject",
    ),
    ev.Question: (
        "revision",
        "expires_at",
        "on_timeout",
        "form",
        "prompt",
        "offered",
        "resume_payload",
        "covers",
        "quorum",
        "alarms",
        "asker",
    ),
}
"""Fields that come after the others in form 2, in this order; a new field of theirs has to be added at the end."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

Form = Literal[1, 2]
_Written = tuple[str, object, Callable[[Any], Any] | None]
"""Name and default of a field, and what makes JSON of it if it is not yet."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    default: object
    """What is left out; a field without a default never equals `MISSING`."""
    nested: type | None
    """The fact inside of the field, or inside of each entry of its tuple."""
    is_many: bool
    is_packed: bool
    """In form 2."""

    def written(self) -> Callable[[Any], Any] | None:
        """What makes JSON of the field's value; None when it is JSON already."""
        if self.nested is Plan:
            return _planned
        if self.nested is not None:
            return _all_folded if self.is_many else _folded
        if self.is_packed:
            return _all_packed if self.is_many else packed
        return list if self.is_many else None


def _fields(kind: type) -> tuple[_Field, ...]:
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    found: list[_Field] = []
    for entry in fields(kind):
        default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
        hint = hints[entry.name]
        nested = next((part for part in (hint, *get_args(hint)) if part in _NESTED), None)
        found.append(_Field(entry.name, default, nested, get_origin(hint) is tuple, entry.name in _PACKED))
    return tuple(found)


def _second(kind: type, first: tuple[_Field, ...]) -> tuple[_Field, ...]:
    last = _LAST.get(kind, ())
    by_name = {entry.name: entry for entry in first}
    return (*(entry for entry in first if entry.name not in last), *(by_name[name] for name in last))


_FIRST: dict[type, tuple[_Field, ...]] = {kind: _fields(kind) for kind in (*CODES.values(), *_NESTED)}
_SECOND: dict[type, tuple[_Field, ...]] = {kind: _second(kind, found) for kind, found in _FIRST.items()}
_FIELDS = {1: _FIRST, 2: _SECOND}


def encode_events(events: Iterable[ev.Event]) -> str:
    """The text of one transaction's events, as stored."""
    return _ENCODER.encode([2, *[encode_event(event) for event in events]])


def encode_event(event: ev.Event) -> list[JsonValue]:
    """The event as a JSON list of form 2; equal events give equal lists."""
    return [_CODE_OF[type(event)], *_folded(event)]


def decode_events(text: str) -> tuple[ev.Event, ...]:
    """The events of one stored transaction.

    Raises:
        StoreError: the text is not what `encode_events` writes, in this or any released form.
    """
    try:
        found: JsonValue = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a stored event is damaged: {error}") from error
    if not isinstance(found, list):
        raise StoreError("a stored event is damaged: not a list")
    if found and type(found[0]) is int and found[0] == 2:
        return tuple(map(decode_event, found[1:]))
    return tuple(decode_event(entry, form=1) for entry in found)


def decode_event(entry: JsonValue, *, form: Form = 2) -> ev.Event:
    """The event of one stored list; see `decode_events`."""
    code = entry[0] if isinstance(entry, list) and entry else None
    kind = CODES.get(code) if isinstance(code, str) else None
    if kind is None or not isinstance(entry, list):
        raise StoreError(
            f"a stored event has an unknown type; was it written by a newer planwarden? {str(entry)[:80]!r}"
        )
    try:
        return _adapter(kind).validate_python(_unfolded(kind, entry[1:], form))
    except ValidationError as error:
        raise StoreError(
            f"a stored {kind.__name__} is damaged: {error.errors(include_input=False)[0]['msg']}"
        ) from error


@cache
def _adapter(kind: type[ev.Event]) -> TypeAdapter[ev.Event]:
    return TypeAdapter(kind)


def _folded(value: object) -> list[Any]:
    found: list[Any] = []
    length = 0
    for name, default, make in _WRITTEN[type(value)]:
        held: Any = getattr(value, name)
        if held is default or held == default:
            found.append(None)
            continue
        found.append(held if make is None else make(held))
        length = len(found)
    del found[length:]
    return found


def _all_folded(values: Iterable[Any]) -> list[Any]:
    return [_folded(value) for value in values]


def _planned(plan: Plan) -> list[Any]:
    """The steps of a plan, each without what is implied."""
    steps: list[Any] = []
    previous: str | None = None
    for step in plan.steps:
        found = _folded(step)
        said = (step.dependencies, step.required_tools, step.step_type)
        fills = implied(previous, [call.tool_name for call in step.tool_calls], step.required_tools)
        for place, value, fill in zip(_PLACES, said, fills, strict=True):
            if value == fill:
                found[place] = None
            elif found[place] is None:
                found[place] = []
        while found[-1] is None:
            found.pop()
        steps.append(found)
        previous = step.step_id
    return [steps]


def implied(previous: str | None, called: list[str], required: object) -> tuple[Any, ...]:
    """What the fields `_IMPLIED` of a step are when they are left out; see `planwarden.agent.core.plan`.

    `previous` is the id of the step before it, `called` names the tools of its calls, `required` is what it does say.
    """
    tools = tuple(called if len(called) < 2 else dict.fromkeys(called))
    is_tool = tools if required is None else required
    return () if previous is None else (previous,), tools, "tool" if is_tool else "reasoning"


def _all_packed(texts: Iterable[str]) -> list[str]:
    return [packed(text) for text in texts]


def _unpacked(value: JsonValue) -> JsonValue:
    """Whatever is not text or a list of it is left to the validation."""
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    return unpacked(value) if isinstance(value, str) else value


def _unfolded(kind: type, listed: JsonValue, form: Form) -> dict[str, Any]:
    """Field names with values; `null` stands for the default."""
    known = _FIELDS[form][kind]
    if not isinstance(listed, list) or len(listed) > len(known):
        raise StoreError(f"a stored {kind.__name__} is damaged, or was written by a newer planwarden")
    found = {
        entry.name: _read(entry, value, form) for entry, value in zip(known, listed, strict=False) if value is not None
    }
    if kind is Plan and form != 1:
        _add_implied(found.get("steps", []))
    return found


def _read(entry: _Field, value: JsonValue, form: Form) -> Any:
    if entry.nested is None:
        return _unpacked(value) if entry.is_packed and form != 1 else value
    if entry.is_many and isinstance(value, list):
        return [_unfolded(entry.nested, item, form) for item in value]
    return _unfolded(entry.nested, value, form)


def _add_implied(steps: list[dict[str, Any]]) -> None:
    previous: str | None = None
    for step in steps:
        called = [str(call.get("tool_name")) for call in step.get("tool_calls", ())]
        for name, value in zip(_IMPLIED, implied(previous, called, step.get("required_tools")), strict=True):
            step.setdefault(name, value)
        previous = step.get("step_id")


_WRITTEN: dict[type, tuple[_Written, ...]] = {
    kind: tuple((entry.name, entry.default, entry.written()) for entry in known) for kind, known in _SECOND.items()
}
_PLACES = [[entry.name for entry in _SECOND[PlanStep]].index(name) for name in _IMPLIED]
