"""The audit: what it tells, that it is chained, and that whoever changes it is found out."""

import json
import sqlite3
from pathlib import Path

import anyio
import pytest

import planwarden
from planwarden.agent.approval.answers import Authority
from planwarden.agent.common.errors import StoreError
from planwarden.server.api.audit import AuditReader
from planwarden.storage.sql.rows import checksum_of
from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.server.cli.support import Cli
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

YES = planwarden.Decision(approved=True, reason="checked")
STEPS = plan(confirm("a"), tool_step("b", "erase", {"ids": [1]}), tool_step("c", "erase", {"ids": [2]}))


async def audited(path: Path) -> str:
    """Fills a store with one execution, two approvals and a rejection; returns its thread."""
    store = SqliteStore.open(path)
    try:
        async with warden(Ledger(), store=store) as w:
            asked = await w.execute_plan(STEPS)
            while asked.suspensions:
                [question] = asked.suspensions
                approved = question.step_id != "c"
                person = Authority(
                    assurance="human", channel="inbox", principal="ann", digest=question.digest, rendered="5ee0"
                )
                asked = await w.service.answer(
                    asked.thread_id,
                    question.suspension_id,
                    YES if approved else planwarden.Decision(approved=False),
                    person,
                    principal="local",
                )
        return asked.thread_id
    finally:
        await store.close()


async def problems(path: Path, head: str | None = None) -> tuple[str, ...]:
    store = SqliteStore.open(path)
    try:
        return (await AuditReader(store).verify(head)).problems
    finally:
        await store.close()


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.anyio
@requirement("store:audit")
async def test_the_audit_holds_every_question_and_decision_with_who_how_and_what_was_shown(tmp_path: Path) -> None:
    thread_id = await audited(tmp_path / "planwarden.db")
    store = SqliteStore.open(tmp_path / "planwarden.db")
    try:
        audit = AuditReader(store)
        rows = (await audit.read_page(thread_id=thread_id)).rows
        policy = (await audit.read_page(limit=1)).rows[0]
        verdict = await audit.verify()
        await store.prune(store.clock.now() + 1)
        after = await audit.verify()
    finally:
        await store.close()
    assert [row.kind for row in rows] == ["asked", "decided"] * 3
    asked, decided = rows[2], rows[3]
    assert asked.facts["tool"] == "erase" and asked.facts["needs"] == "human"
    assert decided.facts == {
        "approved": True,
        "assurance": "human",
        "channel": "inbox",
        "principal": "ann",
        "digest": asked.facts["digest"],
        "rendered": "5ee0",
        "reason": "checked",
        "event": decided.facts["event"],
        "policy": asked.facts["policy"],
    }
    assert policy.kind == "policy" and str(policy.facts["digest"]).startswith(str(asked.facts["policy"]))
    assert verdict.is_whole and after.is_whole and after.rows - 1 == verdict.rows == 7
    assert "ids" not in json.dumps([row.facts for row in rows]), "arguments have no place in it"


@pytest.mark.anyio
@requirement("audit:names-the-row")
@pytest.mark.parametrize(
    ("statements", "named"),
    [
        (["UPDATE audit SET facts = replace(facts, 'ann', 'bob') WHERE sequence = 3"], "row 3 is not what was written"),
        (["UPDATE audit SET at = at - 1 WHERE sequence = 2"], "row 2 is not what was written"),
        (["DELETE FROM audit WHERE sequence = 4"], "row 4 is missing"),
        (["DELETE FROM audit WHERE sequence >= 6"], "rows 6 to 7 are missing at the end"),
        (
            [
                "UPDATE audit SET sequence = 99 WHERE sequence = 3",
                "UPDATE audit SET sequence = 3 WHERE sequence = 5",
                "UPDATE audit SET sequence = 5 WHERE sequence = 99",
            ],
            "row 3 is not what was written, or not where it was written",
        ),
    ],
    ids=["edited", "moved in time", "removed", "cut off", "reordered"],
)
async def test_verification_names_a_changed_row(tmp_path: Path, statements: list[str], named: str) -> None:
    path = tmp_path / "planwarden.db"
    await audited(path)
    assert await problems(path) == ()
    edit(path, *statements)
    assert any(problem.startswith(named) for problem in await problems(path))


@pytest.mark.anyio
@requirement("audit:names-the-row")
async def test_a_rewritten_chain_fits_neither_the_log_nor_a_kept_head(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    await audited(path)
    store = SqliteStore.open(path)
    head = (await AuditReader(store).verify()).head
    await store.close()
    # Everything after row 2 is written again without the first decision.
    forged = sqlite3.connect(path)
    rows = forged.execute("SELECT kind, execution_id, suspension_id, facts, at FROM audit ORDER BY sequence").fetchall()
    forged.execute("DELETE FROM audit")
    forged.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'audit'")
    forged.commit()
    forged.close()
    del rows[2]
    from planwarden.agent.core.audit import GENESIS, AuditEntry, hash_row

    before, connection = GENESIS, sqlite3.connect(path)
    for sequence, (kind, execution_id, suspension_id, facts, at) in enumerate(rows, 1):
        entry = AuditEntry(kind=kind, facts=json.loads(facts), execution_id=execution_id, suspension_id=suspension_id)
        before = hash_row(before, sequence, at, entry)
        connection.execute(
            "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)",
            (sequence, at, kind, execution_id, suspension_id, facts, before),
        )
    connection.commit()
    connection.close()
    [told] = await problems(path)
    assert "do not hold the same" in told
    assert any("missing at the end" in problem for problem in await problems(path, head))


@pytest.mark.anyio
@requirement("audit:names-the-row")
async def test_an_edited_log_does_not_fit_the_audit(tmp_path: Path) -> None:
    from zlib import crc32

    path = tmp_path / "planwarden.db"
    await audited(path)
    connection = sqlite3.connect(path)
    found = connection.execute(
        "SELECT position, first, at, body, execution_id FROM events JOIN executions ON number = execution "
        "WHERE body LIKE '%\"QD\"%' LIMIT 1"
    ).fetchone()
    position, first, at, body, execution_id = found
    forged = body.replace('"ann"', '"eve"')
    assert forged != body
    checksum = crc32(f"{execution_id} {first} {at!r} {forged}".encode())
    connection.execute("UPDATE events SET body = ?, checksum = ? WHERE position = ?", (forged, checksum, position))
    connection.commit()
    connection.close()
    [told] = await problems(path)
    assert execution_id in told and "do not hold the same" in told


def test_the_command_shows_verifies_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anyio.run(audited, tmp_path / "planwarden.db")
    cli = Cli(home=tmp_path, capture=capsys)
    shown = cli.main("audit", "show", "--json", "--limit", "3").json
    assert [row["kind"] for row in shown["rows"]] == ["policy", "asked", "decided"] and shown["nextCursor"] == "3"
    verdict = cli.main("audit", "verify", "--json").json
    assert verdict["isWhole"] is True and verdict["rows"] == 7
    target = tmp_path / "audit.jsonl"
    assert cli.main("audit", "export", str(target)).code == 0
    lines = [json.loads(text) for text in target.read_text().splitlines()]
    assert len(lines) == 7 and f"7:{lines[-1]['hash']}" == verdict["head"]
    assert "exists already" in cli.main("audit", "export", str(target)).err
    edit(tmp_path / "planwarden.db", "DELETE FROM audit WHERE sequence = 4")
    said = cli.main("audit", "verify", "--head", verdict["head"])
    assert said.code == 1 and "row 4 is missing" in said.out
    assert cli.main("audit", "verify", "--head", "nonsense").code == 2


def test_without_a_database_there_is_nothing_to_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Cli(home=tmp_path, capture=capsys).main("audit", "verify")
    assert said.code == 1 and "nothing was audited" in said.err and not list(tmp_path.iterdir())


@pytest.mark.anyio
async def test_a_row_with_an_impossible_time_is_shown_and_found_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    await audited(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE audit SET at = 1e300 WHERE sequence = 2")
        connection.execute("UPDATE audit SET at = -1e19 WHERE sequence = 3")
    connection.close()
    store = SqliteStore.open(path)
    try:
        reader = AuditReader(store)
        page = await reader.read_page(thread_id=None, limit=100, cursor=None)
        assert [line.at.year for line in page.rows[1:3]] == [9999, 1970]
        assert not (await reader.verify()).is_whole
    finally:
        await store.close()


@pytest.mark.anyio
async def test_a_log_that_no_execution_can_have_is_damaged_storage_and_no_internal_error(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    thread = await audited(path)
    with sqlite3.connect(path) as connection:
        [execution_id] = connection.execute("SELECT execution_id FROM executions").fetchone()
        query = 'SELECT position, first, at, body FROM events WHERE body LIKE \'%"SB","b"%\''
        position, first, at, body = connection.execute(query).fetchone()
        edited = body.replace('"SB","b"', '"SB","z"')
        values = (edited, checksum_of(execution_id, first, at, edited), position)
        connection.execute("UPDATE events SET body = ?, checksum = ? WHERE position = ?", values)
    connection.close()
    store = SqliteStore.open(path)
    try:
        async with warden(Ledger(), store=store) as w:
            with pytest.raises(StoreError, match="damaged"):
                await w.get_execution(thread)
    finally:
        await store.close()
