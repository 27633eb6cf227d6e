"""Events as JSON text and back.

The types in `planwarden.agent.core.events` define the JSON: a transaction is a list of events, an event a list of its
tag and its fields. Decoding checks every type, because a stored row is hostile input: what does not fit is a
`StoreError`, never a half-built event.

Text that a tool returned may hold lone surrogates (undecodable file names), which have no UTF-8. Those rows, and only
those, are written by the standard library in ASCII, and read by it.
"""

import json
from collections.abc import Iterable

import msgspec

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev

Transaction = tuple[ev.Event, ...]


def _plain(value: object) -> object:
    """What JSON has for a subclass of text or number that a tool returned."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER = msgspec.json.Decoder(Transaction)


def encode_events(events: Iterable[ev.Event]) -> str:
    """The text of one transaction's events, on one line."""
    listed = tuple(events)
    try:
        return _ENCODER.encode(listed).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(listed, enc_hook=_plain), separators=(",", ":"))


def decode_events(text: str) -> Transaction:
    """The events of one stored transaction.

    Raises:
        StoreError: the text is not what `encode_events` writes.
    """
    try:
        try:
            return _DECODER.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return msgspec.convert(json.loads(text), Transaction)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a stored event is damaged, or was written by a newer planwarden: {error}") from error
