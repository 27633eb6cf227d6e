"""Moves a store: the order in which two databases change, so that never both can be used.

There is no commit over two databases, so there is a moment in which neither can be used, and running `move` again ends
it:

    step         source      target
    (start)      is used     empty
    stored       is used     whole, marked as unfinished
    verified     is used     whole, marked as unfinished
    marked       marked      whole, marked as unfinished
    (end)        marked      is used

Nobody else uses the two meanwhile. Broken off before `marked`, the next run empties the target and begins again,
because the source may have changed. Broken off after it, the next run only ends what was begun.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Literal

import msgspec

from planwarden.agent.common.errors import InvalidArguments, StoreError, UsageError
from planwarden.storage.location import StoreLocation
from planwarden.storage.mark import MoveMark
from planwarden.storage.moving.side import StoreSide
from planwarden.storage.moving.sqlite import open_sqlite_side
from planwarden.storage.moving.tables import TABLES, MovedTable, Row

Stage = Literal["copied", "stored", "verified", "marked"]


class MoveReport(msgspec.Struct, frozen=True):
    """What was moved, and where it is now."""

    source: str
    target: str
    """URLs without passwords."""
    rows: dict[str, int]
    """Of each table."""
    audit_head: str
    """As `planwarden audit verify` prints it, on both sides."""


def move(source: StoreLocation, target: StoreLocation, reached: Callable[[Stage], None] = lambda _: None) -> MoveReport:
    """Moves everything from one store into an empty one, or ends a move that was broken off. Blocks until it is done.

    `reached` is called after each step.

    Raises:
        InvalidArguments: both are the same store.
        StoreError: one of them is in use, damaged or not reachable, or the target holds something.
        UsageError: what PostgreSQL needs is not installed.
    """
    if not source.is_made:
        raise StoreError(f"there is no store at {source} yet; nothing to move")
    if source.safe_url == target.safe_url or _is_same_file(source, target):
        raise InvalidArguments(f"the store is at {source} already; name another place with --to")
    with _open_side(source) as old, _open_side(target) as new:
        tables = [table.drop(old.lacks | new.lacks) for table in TABLES]
        mark = old.read_mark()
        if mark is None:
            _make_room(new, old.place)
            mark, sums = _copy(old, new, tables, reached)
            with _saying_again():
                old.write_mark(mark)
                old.commit()
                reached("marked")
        else:
            _check_unfinished(old, new, mark)
            sums = {table.name: RowSum.of(old.read(table)) for table in tables}
            _verify(old, new, tables, sums)
        _, head = new.read_audit_end()
        with _saying_again():
            new.clear_mark()
            new.commit()
        return MoveReport(old.place, new.place, {name: found.count for name, found in sums.items()}, head)


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


@contextmanager
def _saying_again() -> Generator[None]:
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{error.message}; everything is copied, run the same move again to finish it") from error


def _make_room(new: StoreSide, old_place: str) -> None:
    """Refuses a target that holds anything; deletes what an unfinished move of the same source left there."""
    mark = new.read_mark()
    if mark is not None and mark.is_source:
        raise StoreError(f"{new.name} still holds what was moved to {mark.place}; name a new file or an empty database")
    if mark is not None and mark.place != old_place:
        raise StoreError(mark.explain(new.name))
    if mark is not None:
        new.clear_mark()
        new.clear()
    held = [f"{table.noun}: {count}" for table in TABLES if (count := new.count(table))]
    if held:
        raise StoreError(f"{new.name} is not empty ({', '.join(held)}); name a new file or an empty database")


def _copy(
    old: StoreSide, new: StoreSide, tables: Iterable[MovedTable], reached: Callable[[Stage], None]
) -> tuple[MoveMark, dict[str, "RowSum"]]:
    """Stores everything at the target, which is marked as unfinished, and reads it back; returns the source's mark."""
    move_id, sums = token_hex(8), dict[str, RowSum]()
    for table in tables:
        sums[table.name] = RowSum()
        new.write(table, sums[table.name].pass_on(old.read(table)))
    new.write_audit_end(old.read_audit_end()[0])
    new.write_mark(MoveMark(move_id, is_source=False, place=old.place))
    reached("copied")
    new.commit()
    reached("stored")
    new.begin()
    _verify(old, new, tables, sums)
    reached("verified")
    return MoveMark(move_id, is_source=True, place=new.place), sums


def _check_unfinished(old: StoreSide, new: StoreSide, mark: MoveMark) -> None:
    """Raises `StoreError` unless only the last step is missing: the same move has marked both."""
    found = new.read_mark()
    if not mark.is_source or found is None or found.move_id != mark.move_id:
        raise StoreError(mark.explain(old.name))


def _verify(old: StoreSide, new: StoreSide, tables: Iterable[MovedTable], sums: dict[str, "RowSum"]) -> None:
    """Raises `StoreError` when the target does not hold the same rows, and the audit with the same end."""
    wrong = [table.noun for table in tables if RowSum.of(new.read(table)) != sums[table.name]]
    if old.read_audit_end() != new.read_audit_end():
        wrong.append("end of the audit")
    if wrong:
        raise StoreError(
            f"read back from {new.name}, the {', '.join(wrong)} differ from {old.name}, which is as it was"
        )


@dataclass
class RowSum:
    """A number and a digest of rows, whatever their order."""

    count: int = 0
    digest: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "RowSum":
        found = cls()
        for _ in found.pass_on(rows):
            pass
        return found

    def pass_on(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows and counts them."""
        for row in rows:
            self.count += 1
            hashed = hashlib.sha256(msgspec.msgpack.encode(row)).digest()
            self.digest = (self.digest + int.from_bytes(hashed, "big")) % 2**256
            yield row
