"""The mark of a move in a SQLite file."""

import sqlite3

from planwarden.storage.moved_marker import MARKED, TABLE, MoveMark


def read_mark(connection: sqlite3.Connection) -> MoveMark | None:
    """Return the mark, or None for a store that can be used."""
    if int(connection.execute("PRAGMA user_version").fetchone()[0]) != MARKED:
        return None
    move_id, is_source, place, _ = connection.execute(f"SELECT * FROM {TABLE}").fetchone()
    return MoveMark(move_id, bool(is_source), place)


def write_mark(connection: sqlite3.Connection, mark: MoveMark) -> None:
    """Marks an unmarked store in the open transaction."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.execute(
        f"CREATE TABLE {TABLE} (move_id TEXT, is_source INTEGER, place TEXT, version INTEGER) STRICT",
    )
    values = (mark.move_id, mark.is_source, mark.place, version)
    connection.execute(f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?)", values)
    connection.execute(f"PRAGMA user_version = {MARKED}")


def clear_mark(connection: sqlite3.Connection) -> None:
    """Take the mark from a store in the open transaction, which gets back the version that it had."""
    version = int(connection.execute(f"SELECT version FROM {TABLE}").fetchone()[0])
    connection.execute(f"DROP TABLE {TABLE}")
    connection.execute(f"PRAGMA user_version = {version}")
