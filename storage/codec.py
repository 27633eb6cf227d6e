"""Encodes events as JSON text and decodes them.

The types in `agent.core.execution.events` define the JSON: a transaction is a list of events, and an event is a list of
its tag and its fields. Decoding checks every type, because a stored row is hostile input: a value that does not fit
raises `LogUnreadable` and never becomes a half-built event. Fields that a stored event lacks take their defaults.

Encoding decodes its own text and compares the events, so that nothing is stored that would be read as something else.
If they differ or msgspec fails, the standard library encodes instead: it writes lone surrogates (from undecodable file
names), which UTF-8 does not have, as ASCII escapes, turns tuples into lists, and refuses numbers that are not finite.
Decoding uses it too, where msgspec cannot parse the text. Text that decoding would refuse is never written.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from functools import reduce
from types import GenericAlias
from typing import Any, cast

import msgspec

from planwarden.agent.common.canonical import parse_finite_float, refuse_constant
from planwarden.agent.common.errors import LogUnreadable, NotStorable
from planwarden.agent.common.struct import plain_value
from planwarden.agent.core.execution import events as ev

Transaction = tuple[ev.Event, ...]
_ANY_EVENT = reduce(lambda union, kind: union | kind, cast("tuple[Any, ...]", ev.EVENT_TYPES))
_STORED: type[Transaction] = cast("Any", GenericAlias(tuple, (_ANY_EVENT, ...)))
_ENCODER = msgspec.json.Encoder(enc_hook=plain_value)
_DECODER = msgspec.json.Decoder(_STORED)


def encode_events(events: Iterable[ev.Event]) -> str:
    """Return the text of one transaction's events, on one line.

    Raises:
        NotStorable: a number is not finite, or a value does not fit its field, so it could not be read back.
    """
    listed = tuple(events)
    try:
        with suppress(UnicodeEncodeError, msgspec.DecodeError):
            whole = _ENCODER.encode(listed)
            if _DECODER.decode(whole) == listed:
                return whole.decode()
        text = json.dumps(msgspec.to_builtins(listed, enc_hook=plain_value), separators=(",", ":"), allow_nan=False)
        _decode(text)
        return text
    except (ValueError, TypeError, RecursionError) as error:
        raise NotStorable(f"a value cannot be recorded, because it could not be read back: {error}") from error


def decode_events(text: str) -> Transaction:
    """Return the events of one stored transaction.

    Raises:
        LogUnreadable: the text is not what `encode_events` writes.
    """
    try:
        return _decode(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).replace("NoneType", "null")
        raise LogUnreadable(f"a stored event is damaged, or was written by a newer planwarden: {reason}") from error


def _decode(text: str) -> Transaction:
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        document = json.loads(text, parse_constant=refuse_constant, parse_float=parse_finite_float)
        return msgspec.convert(document, _STORED)


def count_readable(text: str) -> int:
    """Return how many events of a stored transaction come before the first that cannot be decoded."""
    count = 0
    with suppress(ValueError, TypeError, RecursionError):
        for stored in json.loads(text):
            msgspec.convert((stored,), _STORED)
            count += 1
    return count
