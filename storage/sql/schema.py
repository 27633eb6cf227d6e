"""Loads statements and migrations, and checks upgrades. Both databases use the SQL of this folder, in their dialects.

Every statement is in a `statements.sql`, with its purpose. Shared statements write parameters as `$1`, with casts, and
name an index with `INDEXED BY`; `clock($1)` is the given time or, if that is NULL, the time of PostgreSQL itself.

Before an upgrade is committed, the log of every execution that can go on must replay under the new code.
"""

import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from planwarden.agent.common.errors import LogUnreadable, StoreError
from planwarden.agent.core.control.replay import ReplayFault, can_go_on, find_replay_fault
from planwarden.agent.core.execution.state import new_execution
from planwarden.agent.ports.store import Header
from planwarden.storage.sql.database import Rows
from planwarden.storage.sql.rows import read_header, read_log

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--.*\n)*", re.MULTILINE)
_SHARED = Path(__file__).parent

Dialect = Sequence[tuple[str, str]]
"""Patterns, each with what a database has in its place; they are replaced in this order."""


def load_statements(folder: Path, dialect: Dialect) -> dict[str, str]:
    """Return, by name, the shared statements and those in `folder`, which only one database has."""
    statements: dict[str, str] = {}
    for source in (_SHARED, folder):
        parts = _NAMED.split(_translate(source / "statements.sql", dialect))
        statements.update((name, body.strip().rstrip(";")) for name, body in zip(parts[1::2], parts[2::2], strict=True))
    return statements


def load_migrations(folder: Path, dialect: Dialect) -> list[str]:
    """Return the scripts from one schema to the next, oldest first; in each script, the shared part comes first."""
    paths = [path for source in (_SHARED, folder) for path in (source / "migrations").glob("*.sql")]
    names = sorted({path.name for path in paths})
    return ["\n".join(_translate(path, dialect) for path in paths if path.name == name) for name in names]


def _translate(path: Path, dialect: Dialect) -> str:
    text = path.read_text(encoding="utf-8")
    for pattern, replacement in dialect:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


PAGE = 200
MAX_NAMED = 5

Fetch = Callable[[str, Sequence[object]], Rows]
"""A function that runs a named statement in the transaction of the upgrade."""


def refuse_unreplayable(fetch: Fetch, store_name: str) -> None:
    """Raise `StoreError`, naming the first faults, if the log of an execution that can go on does not replay."""
    faults: list[str] = []
    after, page = "", fetch("walk", ("", PAGE))
    while page and len(faults) < MAX_NAMED:
        for header in map(read_header, page):
            after = header.execution_id
            fault = _find_fault(fetch, header) if can_go_on(header.status) else None
            if fault is not None:
                faults.append(f"execution {header.execution_id!r} (thread {header.thread_id!r}) {fault.describe()}")
        page = fetch("walk", (after, PAGE))
    if faults:
        raise StoreError(
            f"{store_name} was not upgraded and nothing was written: planwarden {version('planwarden')} cannot "
            f"continue {'; '.join(faults[:MAX_NAMED])}; install the version before it, and finish or cancel these there"
        )


def _find_fault(fetch: Fetch, header: Header) -> ReplayFault | None:
    execution = new_execution(header.execution_id, header.thread_id, header.principal)
    try:
        recorded = read_log(header.execution_id, 0, fetch("read_events", (header.execution_id, 1)))
    except LogUnreadable as error:
        return ReplayFault.of_unreadable(error)
    return find_replay_fault(execution, recorded)
