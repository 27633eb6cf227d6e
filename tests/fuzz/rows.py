"""The stored file: a value of a row changed, a row deleted, or bytes of the file damaged; then opened and read."""

import json
import shutil
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, cast

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.server.settings.configuration import DATABASE, Settings
from planwarden.storage.sql.rows import checksum_of
from tests.fuzz.entrance import Wrong, check_error
from tests.fuzz.inputs import ODD_NUMBERS, PLANS, Mutator
from tests.kit import Authority, Decision, Ledger, Warden, decide, plan, read_audit_page, tool_step, verify_audit

TABLES = ("events",) * 6 + ("executions",) * 3 + ("suspensions",) * 3 + ("audit", "audit", "artifacts", "grants")
"""Changed as often as they occur here."""
JSON_COLUMNS = frozenset({"body", "facts", "arguments"})
FILE_TOKENS = (b"\0", b"\xff" * 8, b"[", b'"', b"SQLite format 3\0")
MAX_INT = 2**63


class Rows:
    """A file with executions in every state; each input changes a copy."""

    def __init__(self, home: Path, template: Path) -> None:
        self._home = home
        self._template = template

    async def send(self, mutator: Mutator) -> str:
        for name in ("", "-wal", "-shm"):
            self._home.joinpath(DATABASE + name).unlink(missing_ok=True)
        path = self._home / DATABASE
        shutil.copy(self._template, path)
        if mutator.chance(0.1):
            path.write_bytes(mutator.damage(path.read_bytes(), FILE_TOKENS))
            mutator.sent = "bytes of the file"
        else:
            with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.IntegrityError):
                mutator.sent = _spoil(mutator, connection)
                connection.commit()
        outcomes = await self._read_all()
        return next((found for found in outcomes if found != "ok"), "ok")

    async def check_alive(self) -> None:
        self._home.joinpath(DATABASE).unlink(missing_ok=True)
        shutil.copy(self._template, self._home / DATABASE)
        outcomes = await self._read_all()
        if set(outcomes) != {"ok"}:
            raise Wrong(f"the unchanged file cannot be read: {outcomes}")

    async def _read_all(self) -> list[str]:
        threads, suspensions, artifacts = _list_ids(self._template)
        warden = _build_warden(self._home)
        try:
            async with warden:
                service, store = warden.service, warden.service.store
                reads: list[Callable[[], Awaitable[object]]] = [
                    lambda: service.list_suspensions(limit=100, principal=None),
                    lambda: store.executions(None, 100),
                    lambda: store.list_executions(ExecutionFilter(), limit=100),
                    store.list_hosts,
                    lambda: store.decided(limit=20),
                    lambda: store.grants(only_open=False),
                    lambda: verify_audit(store),
                    lambda: read_audit_page(store, limit=100),
                ]
                for thread in threads:
                    reads.append(lambda t=thread: service.get_execution(t, observations_after=0, principal=LOCAL))
                for thread, artifact in artifacts:
                    reads.append(lambda t=thread, a=artifact: service.read_artifact(t, a, principal=LOCAL))
                for thread, found in suspensions:
                    reads.append(lambda t=thread, s=found: service.answer(t, s, NO, TERMINAL, principal=LOCAL))
                return [await _attempt(read) for read in reads]
        except PlanwardenError as error:
            return [check_error(error.code, error.message)]


NO = Decision(approved=False, reason="no")
TERMINAL = Authority(assurance="human", channel="terminal", principal="ann")


async def _attempt(read: Callable[[], Awaitable[object]]) -> str:
    try:
        await read()
    except PlanwardenError as error:
        return check_error(error.code, error.message)
    # What a caller would be told is an internal error.
    except Exception as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error
    return "ok"


def _build_warden(home: Path) -> Warden:
    return Warden(settings=Settings(home=home), tools=Ledger().tools())


def _list_ids(path: Path) -> tuple[list[str], list[tuple[str, str]], list[tuple[str, str]]]:
    of_execution = "JOIN executions e ON e.number = x.execution"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        threads = [row[0] for row in connection.execute("SELECT DISTINCT thread_id FROM executions")]
        suspensions = connection.execute(
            f"SELECT thread_id, suspension_id FROM suspensions x {of_execution} WHERE x.status = 'pending' "
            "AND addressee = 'human'"
        ).fetchall()
        artifacts = connection.execute(f"SELECT thread_id, artifact_id FROM artifacts x {of_execution}").fetchall()
    return threads, suspensions, artifacts


def _spoil(mutator: Mutator, connection: sqlite3.Connection) -> str:
    table: str = mutator.pick(TABLES)
    numbers = [row[0] for row in connection.execute(f"SELECT rowid FROM {table}")]
    columns = [(row[1], row[2]) for row in connection.execute(f"PRAGMA table_info({table})")]
    if not numbers:
        return f"{table} is empty"
    number: int = mutator.pick(numbers)
    if mutator.chance(0.05):
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
        return f"{table} {number} deleted"
    column, kind = mutator.pick(columns)
    if table == "events" and mutator.chance(0.6):
        column, kind = "body", "TEXT"
    old = connection.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (number,)).fetchone()[0]
    others = [row[0] for row in connection.execute(f"SELECT {column} FROM {table}")]
    new = _spoil_value(mutator, column, kind, old, others)
    target = "CAST(? AS TEXT)" if isinstance(new, bytes) and kind == "TEXT" else "?"
    connection.execute(f"UPDATE {table} SET {column} = {target} WHERE rowid = ?", (new, number))
    if table == "events" and mutator.chance(0.8):
        _correct_checksum(connection, number)
    return f"{table}.{column} {number}: {old!r} -> {new!r}"


def _spoil_value(mutator: Mutator, column: str, kind: str, old: Any, others: list[Any]) -> Any:
    if mutator.chance(0.15):
        return mutator.pick([*others, None])
    if column in JSON_COLUMNS and mutator.chance(0.85):
        parts = [json.loads(other) for other in others if other]
        document = mutator.mutate(json.loads(old), parts)
        return mutator.encode(document)
    if kind in ("INTEGER", "REAL"):
        number = mutator.pick((*ODD_NUMBERS, (old or 0) + 1, (old or 0) - 1))
        is_whole = kind == "INTEGER" and abs(number) < MAX_INT
        return int(number) if is_whole else float(min(number, 1e308))
    data = old if isinstance(old, bytes) else str(old).encode()
    return mutator.damage(data) if mutator.chance(0.5) else mutator.odd_text().encode("utf-8", "surrogatepass")


def _correct_checksum(connection: sqlite3.Connection, position: int) -> None:
    """As somebody would who edits the log on purpose."""
    query = "SELECT execution_id, first, at, body FROM events JOIN executions ON number = execution WHERE position = ?"
    with suppress(sqlite3.OperationalError):
        row = cast("tuple[str, int, float, str] | None", connection.execute(query, (position,)).fetchone())
        if row is not None:
            values = (checksum_of(*row), position)
            connection.execute("UPDATE events SET checksum = ? WHERE position = ?", values)


@asynccontextmanager
async def open_rows(home: Path) -> AsyncGenerator[Rows]:
    async with _build_warden(home) as warden:
        for document in (*PLANS[:5], *PLANS[6:], plan(tool_step("big", "find", {"topic": "x", "limit": 30_000}))):
            view = await warden.execute_plan(document, wait_seconds=2)
            for question in view.suspensions[:1] if document is PLANS[3] else ():
                await decide(warden, question, YES, TERMINAL, principal=LOCAL)
    template = home / "template.db"
    with closing(sqlite3.connect(home / DATABASE)) as source, closing(sqlite3.connect(template)) as copy:
        source.backup(copy)
    rows = Rows(home, template)
    await rows.check_alive()
    yield rows


YES = Decision(approved=True)
