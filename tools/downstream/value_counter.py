"""Counts the values of JSON before it is parsed.

The SDK parses a message on the event loop, in native code that parses hundreds of megabytes of text a second. But each
value becomes an object that is checked and copied several times afterwards. Eight megabytes can have four million
values, and then nothing else runs for several seconds.
"""

import re

MAX_VALUES = 50_000
"""The most values in a message. Parsing and checking that many takes 50 ms of the event loop on an ordinary machine."""
SLICE_BYTES = 64 * 1024
"""The length of a slice that is short enough to be counted without a pause."""
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class ValueCounter:
    """Counts the values in a text that arrives in pieces. The count can be too high: empty lists and objects add 1."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Forget the text so far, and begin a new one."""
        self._is_in_string = self._is_escaped = False
        self.count = 0

    def feed(self, data: bytes) -> bool:
        """Count what the data adds, and return whether there are too many values now."""
        for start in range(0, len(data), SLICE_BYTES):
            if self.count > MAX_VALUES:
                break
            piece = data[start + self._is_escaped : start + SLICE_BYTES]
            # If the piece ends with an odd number of backslashes, the last one escapes the next character.
            self._is_escaped = (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1
            parts = _ESCAPE.sub(b"", piece).split(b'"')
            outside = b"".join(parts[1 if self._is_in_string else 0 :: 2])
            self._is_in_string ^= len(parts) % 2 == 0
            self.count += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        return self.count > MAX_VALUES


class EventValueCounter(ValueCounter):
    """Counts the values of each event of a stream of server-sent events. An empty line ends an event.

    A line ends with CR, LF or both (https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream).
    """

    _line_is_empty = True
    _is_after_cr = False

    def feed(self, data: bytes) -> bool:
        if not data:
            return False
        data = data.removeprefix(b"\n") if self._is_after_cr else data
        self._is_after_cr = data.endswith(b"\r")
        for number, part in enumerate(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")):
            if number:
                if self._line_is_empty:
                    self.start()
                self._line_is_empty = True
                # No JSON string spans two lines, and a quote in an SSE comment begins no string.
                self._is_in_string = self._is_escaped = False
            self._line_is_empty &= not part
            if super().feed(part):
                return True
        return False
