"""What a move needs of each of its two stores, whatever database it is."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from planwarden.storage.moved_marker import MoveMark
from planwarden.storage.moving.tables import Row


class StoreSide(Protocol):
    """A store that nobody else uses while it is open.

    What the methods do is one transaction until `commit`, and then another one; what was not committed is undone at the
    end. All of them raise `StoreError` when the medium fails.
    """

    name: str
    """The store as messages name it."""
    place: str
    """The store as a URL without a password."""

    def read_mark(self) -> MoveMark | None: ...

    def write_mark(self, mark: MoveMark) -> None:
        """Mark the store: it cannot be opened, and processes that have it open cannot write to it."""
        ...

    def clear_mark(self) -> None: ...

    def columns(self, table: str) -> Sequence[str]: ...

    def count(self, table: str) -> int: ...

    def read(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the rows, one at a time from the database to the caller; flags are 0 or 1."""
        ...

    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Store rows as `read` yields them, one at a time."""
        ...

    def read_audit_end(self) -> tuple[int, str]:
        """Return the highest number that a row of the audit ever had, and the head as `audit verify` prints it."""
        ...

    def write_audit_end(self, number: int) -> None: ...

    def clear(self) -> None:
        """Delete every row."""
        ...

    def commit(self) -> None:
        """Return when what was done is on the disk."""
        ...
