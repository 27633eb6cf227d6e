"""What a move needs of each of its two stores, whatever database it is."""

from collections.abc import Iterable, Iterator
from typing import ClassVar, Protocol

from planwarden.storage.mark import MoveMark
from planwarden.storage.moving.tables import MovedTable, Row


class StoreSide(Protocol):
    """A store that nobody else uses while it is open.

    What the methods do is one transaction until `commit`, and another one after `begin`. All of them raise `StoreError`
    when the medium fails.
    """

    lacks: ClassVar[frozenset[str]]
    """`TABLE.COLUMN`s that this kind of database does not have."""

    @property
    def name(self) -> str:
        """The store as messages name it."""
        ...

    @property
    def place(self) -> str:
        """The store as a URL without a password."""
        ...

    def read_mark(self) -> MoveMark | None: ...

    def write_mark(self, mark: MoveMark) -> None:
        """Nobody can open a marked store, and nobody who has it open can write to it."""
        ...

    def clear_mark(self) -> None: ...

    def count(self, table: MovedTable) -> int: ...

    def read(self, table: MovedTable) -> Iterator[Row]:
        """Yields the rows, one at a time from the database to the caller."""
        ...

    def write(self, table: MovedTable, rows: Iterable[Row]) -> None:
        """Stores rows as `read` yields them, one at a time."""
        ...

    def read_audit_end(self) -> tuple[int, str]:
        """Returns the highest number that a row of the audit ever had, and the head as `audit verify` prints it."""
        ...

    def write_audit_end(self, number: int) -> None: ...

    def clear(self) -> None:
        """Deletes every row."""
        ...

    def commit(self) -> None:
        """Returns when what was done is on the disk."""
        ...

    def begin(self) -> None:
        """What is read from now on is what was stored."""
        ...

    def close(self) -> None:
        """Undoes what was not committed."""
        ...
