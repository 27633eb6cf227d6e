"""What a process gets from its machine: time, ids and the secrets of the home."""

from contextlib import AbstractAsyncContextManager
from secrets import token_hex
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return Unix seconds. They jump when somebody sets the time."""
        ...

    def steady(self) -> float:
        """Return seconds for leases: equal in all processes of the store, with as few jumps as the machine allows."""
        ...


def new_id() -> str:
    """Return a new id of 128 random bits as hexadecimal digits, which people can type; no id helps to guess another."""
    return token_hex(16)


class SecretStore(Protocol):
    """Values by name, such as `downstream/mail.login`.

    Guarantees: the change is durable when a call returns; readers see a whole value, never half of one; if `create`
    calls race, one stores its value, and all return that value. Every method raises `StoreError` when the medium fails,
    and `UsageError` when this process lacks the key that a value needs.
    """

    async def check(self) -> None:
        """Make sure that values can be read and stored here; a process must call this before it serves requests."""
        ...

    async def read(self, name: str) -> bytes | None:
        """Return the value; None when there is none."""
        ...

    async def create(self, name: str, value: bytes) -> bytes:
        """Store the value unless the name already has one, and return the value that the name then has."""
        ...

    async def replace(self, name: str, value: bytes) -> None:
        """Store the value, which has at most 512 KiB, and replace the old one if there is one."""
        ...

    async def delete(self, name: str) -> bool:
        """Delete the value; return False when there was none."""
        ...

    async def version(self, name: str) -> str | None:
        """Return a text that differs after every change; None when there is no value. Needs no key."""
        ...

    def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        """Lock the name for the block; other processes that lock it wait. Not reentrant; killing a process unlocks it.

        Entering raises `StoreError` when another process held the lock for 45 s.
        """
        ...

    def locate(self, name: str) -> str:
        """Return where the value is kept, for messages."""
        ...
