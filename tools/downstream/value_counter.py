"""Counts the values of JSON before it is parsed.

The SDK parses a message on the event loop, in native code. Text is parsed at hundreds of megabytes a second, but each
value becomes an object that is checked and copied several times afterwards: eight megabytes can be four million values,
and several seconds in which nothing else runs.
"""

import re

MAX_VALUES = 50_000
"""The limit of one message; parsing and checking so many holds the event loop for 50 ms on an ordinary machine."""
SLICE_BYTES = 64 * 1024
"""Short enough to be counted without a pause."""
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class ValueCounter:
    """Counts values in a text that arrives in pieces; counts a few too many, such as one for each empty list."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin with another text."""
        self._is_in_string = self._is_escaped = False
        self.count = 0

    def feed(self, data: bytes) -> bool:
        """Count what the data adds, and return whether there are too many values now."""
        for start in range(0, len(data), SLICE_BYTES):
            if self.count > MAX_VALUES:
                break
            piece = data[start + self._is_escaped : start + SLICE_BYTES]
            # An odd number of backslashes at the end leaves one, which escapes what comes next.
            self._is_escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
            parts = _ESCAPE.sub(b"", piece).split(b'"')
            outside = b"".join(parts[1 if self._is_in_string else 0 :: 2])
            self._is_in_string ^= len(parts) % 2 == 0
            self.count += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        return self.count > MAX_VALUES


class EventCounter(ValueCounter):
    """Counts the values of each event of a stream of server-sent events. An empty line ends an event."""

    _line_is_empty = True

    def feed(self, data: bytes) -> bool:
        for number, part in enumerate(data.replace(b"\r", b"").split(b"\n")):
            if number:
                if self._line_is_empty:
                    self.start()
                self._line_is_empty = True
            self._line_is_empty &= not part
            if super().feed(part):
                return True
        return False
