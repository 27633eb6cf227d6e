"""Rows that somebody edited in the database: what was not approved does not run."""

import sqlite3
from pathlib import Path
from zlib import crc32

import pytest

import planwarden
from planwarden.agent.approval.answers import Authority
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import decide
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio

YES = planwarden.Decision(approved=True)


def forge(path: Path, code: str, old: str, new: str) -> None:
    """Edit the transaction that holds an event of that kind, checksum and all."""
    connection = sqlite3.connect(path)
    position, first, at, body, execution_id = connection.execute(
        "SELECT position, first, at, body, execution_id FROM events JOIN executions ON number = execution "
        "WHERE body LIKE ? ORDER BY position DESC LIMIT 1",
        (f'%"{code}"%',),
    ).fetchone()
    assert old in body
    body = body.replace(old, new)
    checksum = crc32(f"{execution_id} {first} {at!r} {body}".encode())
    connection.execute("UPDATE events SET body = ?, checksum = ? WHERE position = ?", (body, checksum, position))
    connection.commit()
    connection.close()


@requirement("approval:tampered")
@pytest.mark.parametrize(
    ("old", "new"),
    [('"ids":[1]', '"ids":[1,2,3]'), ('"dangerous","human"', '"dangerous","client"')],
    ids=["arguments", "what it needs"],
)
async def test_a_question_edited_in_the_database_halts_instead_of_running(tmp_path: Path, old: str, new: str) -> None:
    ledger, path = Ledger(), tmp_path / "planwarden.db"
    store = SqliteStore.open(path)
    async with warden(ledger, store=store) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
    await store.close()
    forge(path, "QA", old, new)
    store = SqliteStore.open(path)
    [question] = asked.suspensions
    person = Authority(assurance="human", channel="terminal", principal="ann", digest=question.digest)
    async with warden(ledger, store=store) as w:
        done = await decide(w, question, YES, person)
    await store.close()
    assert done.status == "failed" and done.error is not None and done.error.code == "digest_mismatch"
    assert ledger.lines == []
