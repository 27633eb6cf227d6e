"""Time and ids, which the core takes as arguments."""

from secrets import token_hex
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


class RandomIds:
    """Independent random ids, as digits that people can type: knowing some of them does not help to guess others."""

    def new(self) -> str:
        return token_hex(16)
