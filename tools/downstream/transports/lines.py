"""Splits the output of a child process into lines of bounded size."""

import re

import msgspec

EDGE_BYTES = 512
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_RESULT = re.compile(rb'"(?:result|params|error)"\s*:')


class OversizedLine(msgspec.Struct, frozen=True):
    """A line beyond the limit, of which only the two ends are kept."""

    head: bytes
    tail: bytes

    @property
    def request_id(self) -> int | None:
        """The id of the request that it answers, if one of its ends contains it."""
        result = _RESULT.search(self.head)
        found = _ID.search(self.head[: result.start()] if result else b"")
        if found is None:
            *_, found = [None, *_ID.finditer(self.tail[self.tail.rfind(b'"jsonrpc"') :])]
        return int(found[1]) if found is not None else None


class LineReader:
    """Splits a stream of bytes into lines; buffers at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._head: bytes | None = None
        """The head of the current line, if the line is too long already."""

    def feed(self, chunk: bytes) -> list[bytes | OversizedLine]:
        *ended, rest = chunk.split(b"\n")
        lines: list[bytes | OversizedLine] = []
        for part in ended:
            self._append(part)
            lines.append(self._end_line())
        self._append(rest)
        return lines

    def _append(self, part: bytes) -> None:
        self._buffer += part
        if self._head is None and len(self._buffer) > self._limit:
            self._head = bytes(self._buffer[:EDGE_BYTES])
        if self._head is not None:
            del self._buffer[:-EDGE_BYTES]

    def _end_line(self) -> bytes | OversizedLine:
        line = bytes(self._buffer) if self._head is None else OversizedLine(self._head, bytes(self._buffer))
        self._buffer.clear()
        self._head = None
        return line
