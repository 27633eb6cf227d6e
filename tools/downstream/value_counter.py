"""Counts the values of JSON before it is parsed.

The SDK parses a message on the event loop, in native code. Text is parsed at hundreds of megabytes a second, but each
value becomes an object that is checked and copied several times afterwards: eight megabytes can be four million values,
and several seconds in which nothing else runs.
"""

import re
from collections.abc import Iterator

MAX_VALUES = 50_000
"""Of one message; parsing and checking as many takes the event loop 50 ms on an ordinary machine."""
SLICE_BYTES = 64 * 1024
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class ValueCounter:
    """Counts values in a text that arrives in pieces; counts a few too many, such as one for each empty list."""

    def __init__(self) -> None:
        self._in_string = False
        self._is_escaped = False
        self.count = 0

    @property
    def is_too_many(self) -> bool:
        return self.count > MAX_VALUES

    def feed(self, piece: bytes) -> None:
        """Count what the piece adds."""
        if self._is_escaped and piece:
            piece, self._is_escaped = piece[1:], False
        if b"\\" in piece:
            kept = len(piece) - len(piece.rstrip(b"\\"))
            piece = _ESCAPE.sub(b"", piece)
            # An odd number of backslashes at the end leaves one, which escapes what comes next.
            self._is_escaped = kept % 2 == 1
        parts = piece.split(b'"')
        outside = b"".join(parts[1 if self._in_string else 0 :: 2])
        self._in_string ^= len(parts) % 2 == 0
        self.count += outside.count(b",") + outside.count(b"[") + outside.count(b"{")


class EventCounter:
    """Counts the values of each event of a stream of server-sent events."""

    def __init__(self) -> None:
        self._values = ValueCounter()
        self._line_is_empty = True

    @property
    def is_too_many(self) -> bool:
        return self._values.is_too_many

    def feed(self, piece: bytes) -> None:
        """Count what the piece adds to the current event. An empty line ends an event."""
        first, *others = piece.replace(b"\r", b"").split(b"\n")
        self._feed_line(first)
        for line in others:
            if self._line_is_empty and not self.is_too_many:
                self._values = ValueCounter()
            self._line_is_empty = True
            self._feed_line(line)

    def _feed_line(self, part: bytes) -> None:
        if part:
            self._line_is_empty = False
            self._values.feed(part)


def exceeds(counter: ValueCounter | EventCounter, data: bytes) -> bool:
    """Counts the data, and returns whether there are too many values now."""
    for piece in slices(data):
        counter.feed(piece)
        if counter.is_too_many:
            return True
    return False


def slices(data: bytes) -> Iterator[bytes]:
    """Yields the data in slices that are short enough to count one without a pause."""
    for start in range(0, len(data), SLICE_BYTES):
        yield data[start : start + SLICE_BYTES]
