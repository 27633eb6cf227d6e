"""Events as JSON and back.

An event is one small object: its type under `e`, and every field that differs from its default. Decoding goes through
pydantic in strict mode, because a stored row is input like any other: what does not fit is `StoreError`, never a
half-built event. Golden files in the tests keep every released form decodable.
"""

import json
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, cast, get_args

from pydantic import JsonValue, TypeAdapter, ValidationError

from planwarden.agent import events as ev
from planwarden.agent.errors import StoreError
from planwarden.agent.plan import Plan, PlannedCall, Step

_EVENTS: dict[str, type[ev.Event]] = {kind.__name__: kind for kind in get_args(ev.Event)}
_NESTED: tuple[type, ...] = (
    ev.Options,
    ev.ProposedCall,
    ev.CoveredCall,
    ev.Question,
    ev.Decision,
    Plan,
    Step,
    PlannedCall,
)

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _defaults(kind: type) -> tuple[tuple[str, object], ...]:
    """Field names with the value that is left out; a field without a default never equals `MISSING`."""
    assert is_dataclass(kind)
    return tuple(
        (entry.name, entry.default_factory() if entry.default_factory is not MISSING else entry.default)
        for entry in fields(kind)
    )


_JSON_TYPES = frozenset({str, int, float, bool, dict, list, type(None)})

_FIELDS: dict[type, tuple[tuple[str, object], ...]] = {kind: _defaults(kind) for kind in (*_EVENTS.values(), *_NESTED)}


def encode_events(events: Iterable[ev.Event]) -> str:
    """The text of one transaction's events, as stored."""
    return _ENCODER.encode([encode_event(event) for event in events])


def encode_event(event: ev.Event) -> dict[str, JsonValue]:
    """The event as a JSON object; equal events give equal objects."""
    return {"e": type(event).__name__, **_object(event)}


def decode_events(text: str) -> tuple[ev.Event, ...]:
    """The events of one stored transaction.

    Raises:
        StoreError: the text is not what `encode_events` writes, in this or any released form.
    """
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a stored event is damaged: {error}") from error
    if not isinstance(found, list):
        raise StoreError("a stored event is damaged: not a list")
    return tuple(decode_event(entry) for entry in cast("list[JsonValue]", found))


def decode_event(entry: JsonValue) -> ev.Event:
    """The event of one stored object; see `decode_events`."""
    kind = _EVENTS.get(str(entry.get("e"))) if isinstance(entry, dict) else None
    if kind is None or not isinstance(entry, dict):
        raise StoreError(
            f"a stored event has an unknown type; was it written by a newer planwarden? {str(entry)[:80]!r}"
        )
    try:
        return _adapter(kind).validate_python({key: value for key, value in entry.items() if key != "e"})
    except ValidationError as error:
        raise StoreError(
            f"a stored {kind.__name__} is damaged: {error.errors(include_input=False)[0]['msg']}"
        ) from error


@cache
def _adapter(kind: type[ev.Event]) -> TypeAdapter[ev.Event]:
    return TypeAdapter(kind)


def _object(value: object) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for name, default in _FIELDS[type(value)]:
        held: Any = getattr(value, name)
        if held is default or held == default:
            continue
        found[name] = held if type(held) in _JSON_TYPES else _plain(held)
    return found


def _plain(value: Any) -> Any:
    if type(value) in _FIELDS:
        return _object(value)
    if type(value) is tuple:
        return [item if type(item) in _JSON_TYPES else _plain(item) for item in cast("tuple[Any, ...]", value)]
    return value
