"""Moves a store in one pass: copies it and reads it back in one transaction of the target, then marks the source.

No commit can span two databases, so the target stays marked as unfinished until the source is marked as moved:

    committed          source      target
    (start)            is used     empty
    copied, verified   is used     whole, marked as unfinished
    source marked      marked      whole, marked as unfinished
    (end)              marked      is used

During the move no other process uses either store, and at no time can both be used. If a move breaks off, running
the same command again removes the marks, empties the target, and copies everything anew.
"""

import hashlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from secrets import token_hex

import msgspec

from planwarden.agent.common.errors import InvalidArguments, StoreError, UsageError
from planwarden.storage.location import MoveMark, StoreLocation
from planwarden.storage.moving.sqlite import open_sqlite_side
from planwarden.storage.moving.tables import FIXED, OWNED, TABLES, Row, StoreSide


class MoveReport(msgspec.Struct, frozen=True):
    """What was moved, and where it is now."""

    source: str
    target: str
    """Like `source`, a URL without a password."""
    rows: dict[str, int]
    """The number of rows of each table."""
    audit_head: str
    """The head of the audit, the same on both sides, as `planwarden audit verify` prints it."""


def move(source: StoreLocation, target: StoreLocation) -> MoveReport:
    """Move everything from one store into an empty one. Blocks until it is done.

    Raises:
        InvalidArguments: both are the same store.
        StoreError: the source does not exist, a store is in use, damaged or unreachable, or the target is not empty.
        UsageError: the packages that PostgreSQL needs are not installed.
    """
    if not source.is_made:
        raise StoreError(f"there is no store at {source} yet; nothing to move")
    if source.safe_url == target.safe_url or _is_same_file(source, target):
        raise InvalidArguments(f"the store is at {source} already; name another place with --to")
    with _open_side(source) as old, _open_side(target) as new:
        _prepare(old, new)
        rows = {table: _copy(old, new, table) for table in TABLES}
        end = old.read_audit_end()
        new.write_audit_end(end[0])
        if new.read_audit_end() != end:
            raise _describe_difference(old, new, "end of the audit")
        move_id = token_hex(8)
        new.write_mark(MoveMark(move_id, is_source=False, location=old.location))
        new.commit()
        try:
            old.write_mark(MoveMark(move_id, is_source=True, location=new.location))
            old.commit()
            new.clear_mark()
            new.commit()
        except StoreError as error:
            raise StoreError(f"{error.message}; run the same move again") from error
        return MoveReport(old.location, new.location, rows, end[1])


def _is_same_file(source: StoreLocation, target: StoreLocation) -> bool:
    one, other = source.path, target.path
    return one is not None and other is not None and other.exists() and one.samefile(other)


@contextmanager
def _open_side(location: StoreLocation) -> Generator[StoreSide]:
    if location.path is not None:
        with open_sqlite_side(location) as side:
            yield side
        return
    try:
        from planwarden.storage.moving.postgres import PostgresSide
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise UsageError("PostgreSQL needs more packages: pip install 'planwarden[postgres]'") from error
    with closing(PostgresSide(location)) as side:
        yield side


def _prepare(old: StoreSide, new: StoreSide) -> None:
    """Undo what an interrupted run of this move left behind. Raises `StoreError` if another move marked a store, or if
    the target holds anything else."""
    moved, unfinished = old.read_mark(), new.read_mark()
    if moved is not None:
        if not moved.is_source or unfinished is None or unfinished.move_id != moved.move_id:
            raise StoreError(moved.explain(old.name))
        old.clear_mark()
    if unfinished is not None:
        if unfinished.is_source:
            raise StoreError(
                f"{new.name} still holds what was moved to {unfinished.location}; name a new file or an empty database"
            )
        if unfinished.location != old.location:
            raise StoreError(unfinished.explain(new.name))
        new.clear_mark()
        new.clear()
    contents = [f"{noun}: {count}" for table, noun in TABLES.items() if (count := new.count(table))]
    if contents:
        raise StoreError(f"{new.name} is not empty ({', '.join(contents)}); name a new file or an empty database")


def _copy(old: StoreSide, new: StoreSide, table: str) -> int:
    """Copy a table and read it back; return the number of rows."""
    there = new.columns(table)
    columns = [name for name in old.columns(table) if name in there and f"{table}.{name}" not in OWNED]
    fixed = {name: FIXED[f"{table}.{name}"] for name in there if name not in columns and f"{table}.{name}" in FIXED}
    row_sum, values = RowSum(), tuple(fixed.values())
    new.write(table, [*columns, *fixed], ((*row, *values) for row in row_sum.pass_on(old.read(table, columns))))
    if RowSum.of(new.read(table, columns)) != row_sum:
        raise _describe_difference(old, new, TABLES[table])
    return row_sum.count


def _describe_difference(old: StoreSide, new: StoreSide, what: str) -> StoreError:
    return StoreError(f"read back from {new.name}, the {what} did not match {old.name}, which is unchanged")


@dataclass
class RowSum:
    """The number of rows, and a digest of them that does not depend on their order."""

    count: int = 0
    digest: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "RowSum":
        total = cls()
        for _ in total.pass_on(rows):
            pass
        return total

    def pass_on(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows, and add each to the count and the digest."""
        for row in rows:
            self.count += 1
            hashed = hashlib.sha256(msgspec.msgpack.encode(row)).digest()
            self.digest = (self.digest + int.from_bytes(hashed, "big")) % 2**256
            yield row
