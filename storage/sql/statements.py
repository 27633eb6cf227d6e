"""Statements by name, and schemas: what both databases share is in this folder, in words that each makes its own.

Every statement is in a `statements.sql`, with its purpose. The shared ones have parameters `$1` and casts, and name an
index with `INDEXED BY`; `clock($1)` is the store's time, which PostgreSQL reads itself where it is given none.
"""

import re
from collections.abc import Sequence
from pathlib import Path

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--.*\n)*", re.MULTILINE)
_SHARED = Path(__file__).parent

Dialect = Sequence[tuple[str, str]]
"""Patterns, and what a database has in their place, in the order in which they are replaced."""


def load_statements(folder: Path, dialect: Dialect) -> dict[str, str]:
    """Return the shared statements and those of the folder, which only one database has."""
    statements: dict[str, str] = {}
    for place in (_SHARED, folder):
        parts = _NAMED.split(_translate(place / "statements.sql", dialect))
        statements.update((name, body.strip().rstrip(";")) for name, body in zip(parts[1::2], parts[2::2], strict=True))
    return statements


def load_migrations(folder: Path, dialect: Dialect) -> list[str]:
    """Return the scripts from one schema to the next, oldest first: of each what both have, then its own."""
    paths = [path for place in (_SHARED, folder) for path in (place / "migrations").glob("*.sql")]
    names = sorted({path.name for path in paths})
    return ["\n".join(_translate(path, dialect) for path in paths if path.name == name) for name in names]


def _translate(path: Path, dialect: Dialect) -> str:
    text = path.read_text(encoding="utf-8")
    for pattern, replacement in dialect:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text
