"""Time and ids, which the core takes as arguments."""

from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds. They jump when somebody sets the time."""
        ...

    def steady(self) -> float:
        """Return seconds for leases, the same for all processes of the store. They jump as little as the machine
        allows."""
        ...


class Ids(Protocol):
    def new(self) -> str:
        """At least 128 random bits, derived from nothing."""
        ...
