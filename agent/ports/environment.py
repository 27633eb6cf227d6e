"""Time and ids, which the core takes as arguments."""

from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds."""
        ...


class Ids(Protocol):
    def new(self) -> str:
        """At least 128 random bits, derived from nothing."""
        ...
