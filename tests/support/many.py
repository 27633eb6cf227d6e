"""Many executions at once, made with SQL: ten thousand take a second."""

import sqlite3
from contextlib import closing
from pathlib import Path

_TABLES = {
    "executions": ("number", {"execution_id": "'copy ' || i", "thread_id": "'thread of copy ' || i"}),
    "synopses": ("execution", {"title": "title || ' ' || i", "search": "search || ' ' || i"}),
    "events": ("execution", {"position": None, "body": "replace(body, :asked, :asked || ' ' || i)"}),
    "suspensions": ("execution", {"number": None, "suspension_id": "suspension_id || ' ' || i"}),
}
"""Each with the column that has the execution's number, and what is different in a copy."""


def copy_execution(database: Path, execution_id: str, count: int) -> None:
    """Copies an execution that no process runs so often, with its question if it has one, whose id must occur nowhere
    else in its log; nobody may have the file open for writing meanwhile.
    """
    with closing(sqlite3.connect(database)) as db, db:
        [number] = db.execute("SELECT number FROM executions WHERE execution_id = ?", (execution_id,)).fetchone()
        found = db.execute("SELECT suspension_id FROM suspensions WHERE execution = ?", (number,)).fetchone()
        asked = found[0] if found else "no question has this id"
        [first] = db.execute("SELECT max(number) + 1 FROM executions").fetchone()
        db.execute("CREATE TEMP TABLE copies (i INTEGER PRIMARY KEY)")
        db.executemany("INSERT INTO copies VALUES (?)", ((i,) for i in range(first, first + count)))
        for table, (key, changed) in _TABLES.items():
            values = {str(row[1]): str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}
            values |= {key: "i", **{name: value or "" for name, value in changed.items()}}
            kept = {name: value for name, value in values.items() if value}
            db.execute(
                f"INSERT INTO {table} ({', '.join(kept)}) SELECT {', '.join(kept.values())} FROM copies, {table} "
                f"WHERE {key} = :number",
                {"number": number, "asked": asked},
            )
