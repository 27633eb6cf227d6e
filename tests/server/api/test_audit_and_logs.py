"""The audit compared with everything that is stored: by somebody who edits the file and corrects every checksum."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority
from planwarden.agent.core.audit import GENESIS, AuditEntry, hash_row
from planwarden.agent.core.requester import Requester
from planwarden.server.api.audit import AuditReader
from planwarden.server.api.grants import GrantRequest
from planwarden.server.api.warden import Warden
from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.server.cli.support import Cli
from tests.support.fakes import StoreCall, WatchedStore
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

YES = planwarden.Decision(approved=True)
FORM: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"pin": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["pin"],
    "additionalProperties": False,
}
STEPS = plan(
    confirm("a", confirms=["b"]),
    tool_step("b", "erase", {"ids": [1]}),
    tool_step("c", "erase", {"ids": [2]}),
    tool_step("d", "requestInput", {"message": "Which?", "form": FORM}),
    tool_step("e", "erase", {"ids": [3]}),
)
Told = tuple[str, ...]


async def decide_all(w: Warden, steps: dict[str, Any], principal: str = "local") -> str:
    """Runs the plan and approves everything that it asks as a person; returns the id of its execution."""
    view = await w.service.execute_plan(plan=steps, requester=Requester(principal))
    while view.suspensions:
        [question] = view.suspensions
        answer = YES if question.kind != "input" else planwarden.Decision(approved=True, content={"pin": "red"})
        person = Authority(assurance="human", channel="inbox", principal="ann", digest=question.digest)
        view = await w.service.answer(view.thread_id, question.suspension_id, answer, person, principal=principal)
    assert view.status == "completed"
    return view.execution_id


async def fill(path: Path) -> str:
    """A store with an execution of another owner, and one that was asked in every way; returns the id of the latter."""
    store = SqliteStore.open(path)
    try:
        async with warden(Ledger(), store=store) as w:
            await decide_all(w, plan(tool_step("z", "erase", {"ids": [9]})), "bob")
            request = GrantRequest(tool_name="erase", arguments={"ids": [3]}, uses=5, expires_in_s=3600.0)
            await w.service.grants.make(request, Authority(assurance="human", channel="inbox", principal="ann"))
            return await decide_all(w, STEPS)
    finally:
        await store.close()


async def verify(path: Path, head: str | None = None) -> Told:
    store = SqliteStore.open(path)
    try:
        return (await AuditReader(store).verify(head)).problems
    finally:
        await store.close()


async def head_of(path: Path) -> str:
    store = SqliteStore.open(path)
    try:
        return (await AuditReader(store).verify()).head
    finally:
        await store.close()


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def forge(path: Path, execution_id: str, tag: str, change: Callable[[list[Any]], None], number: int = 0) -> None:
    """Changes an event of that tag in the log, and corrects the checksum of its row."""
    connection = sqlite3.connect(path)
    rows = connection.execute(
        "SELECT position, first, at, body FROM events JOIN executions ON number = execution "
        "WHERE execution_id = ? ORDER BY first",
        (execution_id,),
    ).fetchall()
    found = [(row, index) for row in rows for index, event in enumerate(json.loads(row[3])) if event[0] == tag]
    (position, first, at, body), index = found[number]
    events = json.loads(body)
    change(events[index])
    forged = json.dumps(events, separators=(",", ":"))
    assert forged != body
    checksum = crc32(f"{execution_id} {first} {at!r} {forged}".encode())
    connection.execute("UPDATE events SET body = ?, checksum = ? WHERE position = ?", (forged, checksum, position))
    connection.commit()
    connection.close()


def chain_again(path: Path, keep: Callable[[tuple[Any, ...]], bool]) -> None:
    """Writes the audit again from its first row on with the rows to keep, and sets its sequence back."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT at, kind, execution_id, suspension_id, facts FROM audit ORDER BY sequence")
    kept: Sequence[tuple[Any, ...]] = [row for row in rows.fetchall() if keep(row)]
    connection.execute("DELETE FROM audit")
    before = GENESIS
    for sequence, (at, kind, execution_id, suspension_id, facts) in enumerate(kept, 1):
        entry = AuditEntry(kind=kind, facts=json.loads(facts), execution_id=execution_id, suspension_id=suspension_id)
        before = hash_row(before, sequence, at, entry)
        connection.execute(
            "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)",
            (sequence, at, kind, execution_id, suspension_id, facts, before),
        )
    connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'audit'", (len(kept),))
    connection.commit()
    connection.close()


# An event is a list of its tag and fields; a question a list of its fields, the arguments the eighth.
def edit_arguments_asked(event: list[Any]) -> None:
    event[1][7] = {"ids": [1, 2, 3]}


def edit_covered_arguments(event: list[Any]) -> None:
    [covered] = event[1][19]
    covered[2] = {"ids": [1, 2, 3]}


def edit_arguments_sent(event: list[Any]) -> None:
    event[2] = {"ids": [1, 2, 3]}


def drop_release(event: list[Any]) -> None:
    event[2], event[4:6] = {"ids": [1, 2, 3]}, [None, None]


def edit_answer(event: list[Any]) -> None:
    event[2][3] = {"pin": "blue"}


def edit_form(event: list[Any]) -> None:
    event[1][15] = {"type": "object"}


def edit_message(event: list[Any]) -> None:
    event[1][3] = "Really?"


def edit_risk(event: list[Any]) -> None:
    event[1][9] = "read"


def edit_decider(event: list[Any]) -> None:
    event[5] = "eve"


@pytest.mark.anyio
@requirement("audit:proves-the-log")
@pytest.mark.parametrize(
    ("tag", "number", "change"),
    [
        ("QA", 1, edit_arguments_asked),
        ("QA", 0, edit_covered_arguments),
        ("TI", 0, edit_arguments_sent),
        ("TI", 0, drop_release),
        ("TI", 1, edit_arguments_sent),
        ("TI", 1, drop_release),
        ("TI", 2, edit_arguments_sent),
        ("TI", 2, drop_release),
        ("QD", 2, edit_answer),
        ("QA", 2, edit_form),
        ("QA", 1, edit_message),
        ("QA", 1, edit_risk),
        ("QD", 1, edit_decider),
    ],
    ids=[
        "arguments asked about",
        "arguments covered by a confirmation",
        "arguments of a covered call",
        "covered call made a free one",
        "arguments of a decided call",
        "decided call made a free one",
        "arguments of a granted call",
        "granted call made a free one",
        "answer to a form",
        "form",
        "message",
        "risk",
        "who decided",
    ],
)
async def test_whatever_is_edited_in_the_log_of_a_decided_call_is_named(
    tmp_path: Path, tag: str, number: int, change: Callable[[list[Any]], None]
) -> None:
    path = tmp_path / "planwarden.db"
    execution_id = await fill(path)
    head = await head_of(path)
    assert await verify(path, head) == ()
    forge(path, execution_id, tag, change, number)
    told = await verify(path, head)
    assert told and all(execution_id in problem for problem in told)


@pytest.mark.anyio
@requirement("audit:proves-the-log")
async def test_an_execution_whose_rows_were_cut_off_the_audit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    execution_id = await fill(path)
    connection = sqlite3.connect(path)
    [first] = connection.execute("SELECT min(sequence) FROM audit WHERE execution_id = ?", (execution_id,)).fetchone()
    connection.close()
    edit(
        path,
        f"DELETE FROM audit WHERE sequence >= {first}",
        f"UPDATE sqlite_sequence SET seq = {first - 1} WHERE name = 'audit'",
    )
    told = await verify(path)
    assert any(execution_id in problem and "do not hold the same" in problem for problem in told)


@pytest.mark.anyio
@requirement("audit:proves-the-log")
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE executions SET principal = 'eve' WHERE principal = 'bob'", "does not fit its digest"),
        ("UPDATE executions SET status = 'running' WHERE principal = 'bob'", "its row says running"),
        ("UPDATE suspensions SET status = 'pending' WHERE number = 1", "row of suspension"),
        ("UPDATE suspensions SET digest = 'f' WHERE number = 1", "row of suspension"),
        ("UPDATE suspensions SET expires_at = 1.0 WHERE number = 1", "row of suspension"),
        ("DELETE FROM suspensions WHERE number = 1", "row of suspension"),
        ("UPDATE grants SET uses = 1000", "is not what the audit says was made"),
        ("UPDATE grants SET expires_at = expires_at + 1", "is not what the audit says was made"),
        ("UPDATE grants SET arguments = '{}'", "is not what the audit says was made"),
        ("UPDATE grants SET owner = 'eve'", "is not what the audit says was made"),
        ("UPDATE grants SET used = 0", "disagree about its uses"),
        ("UPDATE grants SET revoked_at = 1.0", "disagree about its uses or its end"),
        ("DELETE FROM grants", "is in the audit and no longer stored"),
        (
            (
                "INSERT INTO grants SELECT 99, 'new', tool_name, definition_digest, arguments, free, step, uses, used, "
                "used_on, used_before, expires_at, owner, created_by, assurance, channel, created_at, revoked_at "
                "FROM grants"
            ),
            "is stored and not in the audit",
        ),
    ],
)
async def test_a_row_beside_the_log_that_was_edited_is_named(tmp_path: Path, statement: str, named: str) -> None:
    path = tmp_path / "planwarden.db"
    await fill(path)
    edit(path, statement)
    told = await verify(path)
    assert told and all(named in problem for problem in told)


@pytest.mark.anyio
@requirement("audit:proves-the-log")
async def test_a_question_edited_while_it_is_open_is_named_before_its_call_is_refused(tmp_path: Path) -> None:
    path, ledger = tmp_path / "planwarden.db", Ledger()
    store = SqliteStore.open(path)
    async with warden(ledger, store=store) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
    await store.close()
    forge(path, asked.execution_id, "QA", edit_arguments_asked)
    told = await verify(path)
    assert any("does not fit its digest" in problem for problem in told)
    store = SqliteStore.open(path)
    try:
        async with warden(ledger, store=store) as w:
            person = Authority(assurance="human", channel="inbox", principal="ann")
            suspension_id = asked.suspensions[0].suspension_id
            after = await w.service.answer(asked.thread_id, suspension_id, YES, person, principal="local")
    finally:
        await store.close()
    assert ledger.lines == [] and "digest_mismatch" in repr(after)


@pytest.mark.anyio
@requirement("audit:proves-the-log")
async def test_what_was_pruned_is_whole_and_what_was_deleted_is_named(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    execution_id = await fill(path)
    edit(path, f"UPDATE executions SET ended_at = 0 WHERE execution_id <> '{execution_id}'")
    store = SqliteStore.open(path)
    assert await store.prune(1.0) == 1
    newest = (await store.audit_rows(after=await store.audit_end() - 1))[0].entry
    await store.close()
    assert newest.kind == "pruned" and await verify(path) == ()
    for table, column in (("events", "execution"), ("suspensions", "execution"), ("executions", "number")):
        edit(path, f"DELETE FROM {table} WHERE {column} = 2")
    assert await verify(path) == (f"execution {execution_id!r} is gone, and no row says that it was pruned",)


@pytest.mark.anyio
@requirement("audit:proves-the-log")
async def test_a_decision_taken_out_of_log_and_audit_is_only_shown_by_a_kept_head(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    execution_id = await fill(path)
    head = await head_of(path)
    for table, column in (("events", "execution"), ("suspensions", "execution"), ("executions", "number")):
        edit(path, f"DELETE FROM {table} WHERE {column} = 2")
    edit(path, "UPDATE grants SET used = 0")
    chain_again(path, lambda row: row[2] != execution_id)
    assert await verify(path) == ()
    assert any("missing at the end" in problem for problem in await verify(path, head))


@pytest.mark.anyio
@requirement("audit:proves-the-log")
async def test_a_store_is_whole_while_others_ask_decide_and_prune(tmp_path: Path) -> None:
    path = tmp_path / "planwarden.db"
    store = SqliteStore.open(path)
    async with warden(Ledger(), store=store) as w:
        await decide_all(w, plan(tool_step("a", "erase", {"ids": [1]})))
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]}), tool_step("b", "erase", {"ids": [2]})))
        turns = 0

        async def meddle(moment: StoreCall) -> None:
            nonlocal turns, asked
            if moment.when == "before" and moment.call in ("walk", "read", "find_suspension") and turns < 8:
                turns += 1
                person = Authority(assurance="human", channel="inbox", principal="ann")
                if asked.suspensions:
                    suspension_id = asked.suspensions[0].suspension_id
                    asked = await w.service.answer(asked.thread_id, suspension_id, YES, person, principal="local")
                else:
                    await store.prune(store.clock.now() + 1)
                    asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [turns]})))

        verdict = await AuditReader(WatchedStore(store, meddle)).verify()
        assert verdict.problems == () and turns >= 4
    await store.close()


def test_the_command_names_an_execution_whose_log_was_edited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "planwarden.db"
    execution_id = anyio.run(fill, path)
    cli = Cli(home=tmp_path, capture=capsys)
    head = cli.main("audit", "verify", "--json").json["head"]
    forge(path, execution_id, "QA", edit_arguments_asked, 1)
    said = cli.main("audit", "verify", "--head", head)
    assert said.code == 1 and execution_id in said.out
