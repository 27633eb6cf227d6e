"""Ids: 128 random bits as 32 lower-case hexadecimal digits; people can type them, and none starts with a dash."""

import os

BYTES = 16
DRAWN = 64
"""Ids for which the system is asked at a time: asking takes longer than everything else about an id."""


class RandomIds:
    """Independent random ids: knowing some of them does not help to guess others."""

    def __init__(self) -> None:
        self._drawn: list[str] = []
        self._process = 0
        """Which process drew them: one that was forked from it must not give them, too."""

    def new(self) -> str:
        if not self._drawn or self._process != os.getpid():
            self._process = os.getpid()
            drawn = os.urandom(BYTES * DRAWN).hex()
            self._drawn = [drawn[start : start + 2 * BYTES] for start in range(0, len(drawn), 2 * BYTES)]
        return self._drawn.pop()
