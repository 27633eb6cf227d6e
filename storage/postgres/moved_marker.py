"""The mark of a move in a PostgreSQL database.

A process may have the store open although nobody saw it, while its control connection was broken. So triggers belong to
the mark, which refuse what such a process writes next.
"""

from collections.abc import Iterable
from typing import Any

import psycopg

from planwarden.storage.moved_marker import MARKED, TABLE, MoveMark

REFUSED = "PWMOV"
"""The SQLSTATE with which the triggers refuse."""
_TRIGGER = "refuse_moved"
_FUNCTION = f"""
CREATE FUNCTION {_TRIGGER}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '{REFUSED}', MESSAGE = (
        SELECT CASE WHEN is_source THEN 'was moved to ' ELSE 'is being filled from ' END || place FROM {TABLE}
    );
END $$"""


def read_mark(connection: psycopg.Connection[tuple[Any, ...]]) -> MoveMark | None:
    """Return the mark, or None for a store that can be used."""
    if connection.execute(f"SELECT to_regclass('{TABLE}')".encode()).fetchone() == (None,):
        return None
    row = connection.execute(f"SELECT move_id, is_source, place FROM {TABLE}".encode()).fetchone()
    return None if row is None else MoveMark(*row)


def write_mark(connection: psycopg.Connection[tuple[Any, ...]], mark: MoveMark, tables: Iterable[str]) -> None:
    """Marks an unmarked store in the open transaction; from its commit on nothing is written to the tables."""
    connection.execute(f"CREATE TABLE {TABLE} (move_id text, is_source boolean, place text)".encode())
    values = (mark.move_id, mark.is_source, mark.place)
    connection.execute(f"INSERT INTO {TABLE} VALUES ($1, $2, $3)".encode(), values)
    connection.execute("INSERT INTO schema_versions VALUES ($1)", (MARKED,))
    connection.execute(_FUNCTION.encode())
    for table in tables:
        connection.execute(
            f"CREATE TRIGGER {_TRIGGER} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION {_TRIGGER}()".encode()
        )


def clear_mark(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Take the mark from a store in the open transaction."""
    connection.execute(f"DROP FUNCTION {_TRIGGER} CASCADE".encode())
    connection.execute(f"DROP TABLE {TABLE}".encode())
    connection.execute("DELETE FROM schema_versions WHERE version = $1", (MARKED,))
