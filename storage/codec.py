"""Events as JSON and back.

An event is one list: its code, then its fields in the order of the dataclass, `null` for a default, trailing defaults left
out. Names would be half of the bytes of an execution. Nested facts (a plan, a question) are lists in the same way; values
from outside (arguments, results) stay as they are.

Decoding goes through pydantic, because a stored row is input like any other: what does not fit is `StoreError`, never a
half-built event. A released code never changes its meaning; a new field goes to the end and has a default. Golden files in
the tests keep every released form decodable.
"""

import json
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from pydantic import JsonValue, TypeAdapter, ValidationError

from planwarden.agent import events as ev
from planwarden.agent.errors import StoreError
from planwarden.agent.plan import Plan, PlannedCall, Step

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
    {ev.Options, ev.ProposedCall, ev.CoveredCall, ev.Alarm, ev.Question, ev.Decision, Plan, Step, PlannedCall}
)
_JSON_TYPES = frozenset({str, int, float, bool, dict, list, type(None)})
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    default: object
    """What is left out; a field without a default never equals `MISSING`."""
    nested: type | None
    """The fact inside of the field, or inside of each entry of its tuple."""
    is_many: bool


def _fields(kind: type) -> tuple[_Field, ...]:
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    found: list[_Field] = []
    for entry in fields(kind):
        default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
        hint = hints[entry.name]
        nested = next((part for part in (hint, *get_args(hint)) if part in _NESTED), None)
        found.append(_Field(entry.name, default, nested, get_origin(hint) is tuple))
    return tuple(found)


_FIELDS: dict[type, tuple[_Field, ...]] = {kind: _fields(kind) for kind in (*CODES.values(), *_NESTED)}


def encode_events(events: Iterable[ev.Event]) -> str:
    """The text of one transaction's events, as stored."""
    return _ENCODER.encode([encode_event(event) for event in events])


def encode_event(event: ev.Event) -> list[JsonValue]:
    """The event as a JSON list; equal events give equal lists."""
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
    return tuple(map(decode_event, found))


def decode_event(entry: JsonValue) -> ev.Event:
    """The event of one stored list; see `decode_events`."""
    code = entry[0] if isinstance(entry, list) and entry else None
    kind = CODES.get(code) if isinstance(code, str) else None
    if kind is None or not isinstance(entry, list):
        raise StoreError(
            f"a stored event has an unknown type; was it written by a newer planwarden? {str(entry)[:80]!r}"
        )
    try:
        return _adapter(kind).validate_python(_unfolded(kind, entry[1:]))
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
    for entry in _FIELDS[type(value)]:
        held: Any = getattr(value, entry.name)
        if held is entry.default or held == entry.default:
            found.append(None)
            continue
        found.append(held if type(held) in _JSON_TYPES else _plain(held))
        length = len(found)
    del found[length:]
    return found


def _plain(value: Any) -> Any:
    if type(value) in _FIELDS:
        return _folded(value)
    if type(value) is tuple:
        return [item if type(item) in _JSON_TYPES else _plain(item) for item in cast("tuple[Any, ...]", value)]
    return value


def _unfolded(kind: type, listed: JsonValue) -> dict[str, Any]:
    """Field names with values; `null` stands for the default."""
    known = _FIELDS[kind]
    if not isinstance(listed, list) or len(listed) > len(known):
        raise StoreError(f"a stored {kind.__name__} is damaged, or was written by a newer planwarden")
    return {
        entry.name: value if entry.nested is None else _nested(entry.nested, value, is_many=entry.is_many)
        for entry, value in zip(known, listed, strict=False)
        if value is not None
    }


def _nested(kind: type, value: JsonValue, *, is_many: bool) -> Any:
    if is_many and isinstance(value, list):
        return [_unfolded(kind, item) for item in value]
    return _unfolded(kind, value)
