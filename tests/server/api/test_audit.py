"""The audit: chained, compared with everything stored, and proof against somebody who corrects every checksum."""

import json
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import PlanwardenError, RateLimited, StoreError
from planwarden.agent.core.execution.audit import GENESIS, POLICY_CHARS, AuditEntry, hash_row
from planwarden.agent.core.execution.requester import Requester
from planwarden.server.api.audit import read_audit_page, verify_audit
from planwarden.server.api.grants import GrantRequest
from planwarden.server.api.limits import ATTEMPTS, ATTEMPTS_S
from planwarden.server.inbox.sessions import InboxAccess
from planwarden.storage.sql.rows import checksum_of
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.storage.tokens import TokenStore
from tests.kit import Authority, Cli, ManualClock, MemoryStore, by, decide, requirement, start_as
from tests.support.fakes import StoreCall, WatchedStore
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

YES = planwarden.Decision(approved=True, reason="checked")
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
ERASE = plan(tool_step("a", "erase", {"ids": [1]}))
KINDS = ["asked", "decided", "covered", "asked", "decided", "asked", "decided", "granted"]
"""Of the rows about the execution of these steps, after four others."""


@dataclass
class Stored:
    """A file with an execution of bob, a grant, and an execution that was asked in every way."""

    folder: Path
    execution_id: str = ""
    thread_id: str = ""
    head: str = ""

    @property
    def path(self) -> Path:
        return self.folder / "planwarden.db"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[SqliteStore]:
        store = SqliteStore.open(self.path)
        try:
            yield store
        finally:
            await store.close()

    async def fill(self) -> None:
        async with self.open() as store, warden(Ledger(), store=store) as w:
            await decide_all(w, plan(tool_step("z", "erase", {"ids": [9]})), "bob")
            request = GrantRequest(tool_name="erase", arguments={"ids": [3]}, uses=5, expires_in_s=3600.0)
            await w.service.grants.make(request, by(channel="inbox"))
            done = await decide_all(w, STEPS)
            self.execution_id, self.thread_id = done.execution_id, done.thread_id
            self.head = (await verify_audit(w.service.store)).head

    async def verify(self, head: str | None = None) -> tuple[str, ...]:
        async with self.open() as store:
            return (await verify_audit(store, head)).problems

    def edit(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def forget(self) -> None:
        """Delete the execution, whose number is 2."""
        tables = (("events", "execution"), ("suspensions", "execution"), ("executions", "number"))
        self.edit(*(f"DELETE FROM {table} WHERE {column} = 2" for table, column in tables))

    def forge(self, tag: str, changes: Mapping[tuple[int, ...], JsonValue], number: int = 0) -> None:
        """Change fields of an event of that tag in the log, and correct the checksum of its row."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            rows = connection.execute(
                "SELECT position, first, at, body FROM events JOIN executions ON number = execution "
                "WHERE execution_id = ? ORDER BY first",
                (self.execution_id,),
            ).fetchall()
            tagged = [(row, index) for row in rows for index, event in enumerate(json.loads(row[3])) if event[0] == tag]
            (position, first, at, body), index = tagged[number]
            events = json.loads(body)
            for path, value in changes.items():
                fields = events[index]
                for field in path[:-1]:
                    fields = fields[field]
                fields += [None] * (path[-1] + 1 - len(fields))
                fields[path[-1]] = value
            forged = json.dumps(events, separators=(",", ":"))
            assert forged != body
            values = (forged, checksum_of(self.execution_id, first, at, forged), position)
            connection.execute("UPDATE events SET body = ?, checksum = ? WHERE position = ?", values)

    def chain_again(self, keep: Callable[[str, str], bool]) -> None:
        """Write the audit again with the rows to keep, by kind and execution, and set its sequence back."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            rows = connection.execute(
                "SELECT at, kind, execution_id, suspension_id, facts FROM audit ORDER BY sequence"
            )
            rows = [row for row in rows.fetchall() if keep(row[1], row[2])]
            connection.execute("DELETE FROM audit")
            before = GENESIS
            for sequence, (at, kind, *ids, facts) in enumerate(rows, 1):
                entry = AuditEntry(kind=kind, facts=json.loads(facts), execution_id=ids[0], suspension_id=ids[1])
                before = hash_row(before, sequence, at, entry)
                connection.execute(
                    "INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)", (sequence, at, kind, *ids, facts, before)
                )
            connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'audit'", (len(rows),))


async def decide_all(w: planwarden.Warden, steps: dict[str, Any], principal: str = "local") -> planwarden.Execution:
    """Run the plan and approve everything that it asks as a person."""
    view = await start_as(w.service, steps, Requester(principal))
    while view.suspensions:
        [question] = view.suspensions
        answer = YES if question.kind != "input" else planwarden.Decision(approved=True, content={"pin": "red"})
        person = Authority(assurance="human", channel="inbox", principal="ann", digest=question.digest, rendered="5ee0")
        view = await decide(w, question, answer, person, principal=principal)
    assert view.status == "completed"
    return view


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    made = Stored(tmp_path_factory.mktemp("filled"))
    anyio.run(made.fill)
    return made


@pytest.fixture
def stored(filled: Stored, tmp_path: Path) -> Stored:
    """A copy that a test may damage."""
    copytree(filled.folder, tmp_path, dirs_exist_ok=True)
    return Stored(tmp_path, filled.execution_id, filled.thread_id, filled.head)


@requirement("store:audit", "audit:proves-the-log")
async def test_the_audit_holds_every_question_and_decision_with_who_how_and_what_was_shown(stored: Stored) -> None:
    async with stored.open() as store:
        rows = (await read_audit_page(store, thread_id=stored.thread_id)).rows
        policy = (await read_audit_page(store, limit=1)).rows[0]
        verdict = await verify_audit(store, stored.head)
        await store.prune(store.clock.now() + 1)
        after = await verify_audit(store)
    assert [row.kind for row in rows] == KINDS
    asked, decided = rows[3], rows[4]
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
    assert verdict.is_whole and after.is_whole and after.rows - 1 == verdict.rows == 4 + len(KINDS)
    assert "ids" not in json.dumps([row.facts for row in rows]), "arguments have no place in it"


@requirement("store:audit")
async def test_every_row_names_the_policy_of_the_process_that_wrote_it(tmp_path: Path) -> None:
    async with Stored(tmp_path).open() as store, warden(Ledger(), store=store) as w:
        asked = await w.execute_plan(ERASE)
        await decide(w.service, asked, YES, by("local", "claimed", "mcp"), principal="local", wait_seconds=0)
        await w.service.grants.make(GrantRequest(tool_name="erase", uses=5, expires_in_s=60.0), by(channel="inbox"))
        access = InboxAccess(store)
        opened = await access.redeem((await access.make_codes("ann", "terminal")).typed)
        await access.end_session(opened.token, "ann")
        await TokenStore(store).make("bob", role="approver", days=1)
        rows = [row.entry for row in await store.audit_rows()]
        assert (await verify_audit(store)).is_whole
    named, *others = rows
    kinds = {"asked", "refused", "grant_made", "code_made", "session_opened", "session_ended", "token_added"}
    assert named.kind == "policy" and {row.kind for row in others} == kinds
    assert all(row.facts.get("policy") == str(named.facts["digest"])[:POLICY_CHARS] for row in others)


@requirement("store:audit")
async def test_a_row_names_the_policy_of_its_own_warden_on_a_store_of_two(tmp_path: Path) -> None:
    (tmp_path / "planwarden.toml").write_text("[approvals]\nquorum = 2\n")
    async with Stored(tmp_path).open() as store, warden(Ledger(), store=store) as w:
        asked, request = await w.execute_plan(ERASE), GrantRequest(tool_name="erase", uses=5, expires_in_s=60.0)
        async with planwarden.Warden(home=tmp_path, store=store):
            await decide(w.service, asked, YES, by("local", "claimed", "mcp"), principal="local", wait_seconds=0)
            grant = await w.service.grants.make(request, by(channel="inbox"))
            await w.service.grants.revoke(grant.grant_id, by(channel="inbox"))
        policies = {row.entry.kind: row.entry.facts.get("policy") for row in await store.audit_rows()}
        assert (await verify_audit(store)).is_whole
    assert all(policies[kind] == policies["asked"] for kind in ("refused", "grant_made", "grant_revoked"))


@requirement("store:audit")
@pytest.mark.parametrize("fields", [{}, {"modified_args": {"ids": "all"}}, {"reason": "x" * 2_001}])
async def test_each_attempt_of_a_model_to_approve_is_a_row_even_if_its_answer_is_faulty(fields: dict[str, Any]) -> None:
    async with warden(Ledger()) as w:
        asked, decision = await w.execute_plan(ERASE), planwarden.Decision(approved=True, **fields)
        with pytest.raises(PlanwardenError) if fields else nullcontext():
            await decide(w.service, asked, decision, by("local", "claimed", "mcp"), principal="local", wait_seconds=0)
        *_, last = await w.service.store.audit_rows()
    assert (last.entry.kind, last.entry.suspension_id) == ("refused", asked.suspensions[0].suspension_id)


@requirement("store:audit")
@pytest.mark.parametrize("keeps_records", [True, False])
async def test_the_first_attempt_too_many_has_a_row_that_says_until_when_no_other_has(keeps_records: bool) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with warden(Ledger(), store=store if keeps_records else WatchedStore(store)) as w:
        asked, began = await w.execute_plan(ERASE), clock.now()
        for _ in range(2):
            for number in range(20):
                with pytest.raises(RateLimited) if number >= ATTEMPTS else nullcontext():
                    claim = by("local", "claimed", "mcp")
                    await decide(w.service, asked, YES, claim, principal="local", wait_seconds=0)
            clock.advance(ATTEMPTS_S)
        rows = [row.entry.facts for row in await store.audit_rows() if row.entry.kind == "refused"]
    told = [facts.get("noMoreRowsUntil") for facts in rows]
    assert told == [*[None] * ATTEMPTS, began + ATTEMPTS_S, *[None] * ATTEMPTS, began + 2 * ATTEMPTS_S]


class RecordsOnly(MemoryStore):
    """Fails at each row of the audit that is stored alone, as if the process died or the disk filled up just then."""

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        raise StoreError("the disk is full")


@requirement("store:audit")
async def test_an_attempt_of_a_model_is_counted_only_together_with_its_row() -> None:
    async with warden(Ledger(), store=RecordsOnly()) as w:
        asked = await w.execute_plan(ERASE)
        for number in range(2 * ATTEMPTS):
            with pytest.raises(RateLimited) if number >= ATTEMPTS else nullcontext():
                await decide(w.service, asked, YES, by("local", "claimed", "mcp"), principal="local", wait_seconds=0)
        rows = [row for row in await w.service.store.audit_rows() if row.entry.kind == "refused"]
    assert len(rows) == ATTEMPTS + 1


@requirement("audit:names-the-row")
@pytest.mark.parametrize(
    ("statements", "named"),
    [
        (["UPDATE audit SET facts = replace(facts, 'ann', 'bob') WHERE sequence = 3"], "row 3 is not what was written"),
        (["UPDATE audit SET at = at - 1 WHERE sequence = 2"], "row 2 is not what was written"),
        (["DELETE FROM audit WHERE sequence = 4"], "row 4 is missing"),
        (["DELETE FROM audit WHERE sequence >= 11"], "rows 11 to 12 are missing at the end"),
        (
            [f"UPDATE audit SET sequence = {new} WHERE sequence = {old}" for old, new in ((3, 99), (5, 3), (99, 5))],
            "row 3 is not what was written, or not where it was written",
        ),
    ],
    ids=["edited", "moved in time", "removed", "cut off", "reordered"],
)
async def test_verification_names_a_changed_row(stored: Stored, statements: list[str], named: str) -> None:
    stored.edit(*statements)
    assert any(problem.startswith(named) for problem in await stored.verify())


MORE: JsonValue = {"ids": [1, 2, 3]}
SENT = {(2,): MORE}
FREED = {**SENT, (4,): None, (5,): None}
"""What released the call is gone."""
# An event is a list of its tag and fields; a question a list of its fields, the arguments the seventh.
EDITS: dict[str, tuple[str, int, Mapping[tuple[int, ...], JsonValue]]] = {
    "arguments asked about": ("QA", 1, {(1, 6): MORE}),
    "arguments covered by a confirmation": ("QA", 0, {(1, 18, 0, 2): MORE}),
    "arguments of a covered call": ("TI", 0, SENT),
    "arguments of a decided call": ("TI", 1, SENT),
    "decided call made a free one": ("TI", 1, FREED),
    "arguments of a granted call": ("TI", 2, SENT),
    "granted call made a free one": ("TI", 2, FREED),
    "answer to a form": ("QD", 2, {(2, 3): {"pin": "blue"}}),
    "form": ("QA", 2, {(1, 14): {"type": "object"}}),
    "message": ("QA", 1, {(1, 2): "Really?"}),
    "who decided": ("QD", 1, {(5,): "eve"}),
}


@requirement("audit:proves-the-log")
@pytest.mark.parametrize(("tag", "number", "changes"), EDITS.values(), ids=EDITS)
async def test_whatever_is_edited_in_the_log_of_a_decided_call_is_named(
    stored: Stored, tag: str, number: int, changes: Mapping[tuple[int, ...], JsonValue]
) -> None:
    stored.forge(tag, changes, number)
    told = await stored.verify(stored.head)
    assert told and all(stored.execution_id in problem for problem in told)


@requirement("audit:proves-the-log")
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE executions SET principal = 'eve' WHERE principal = 'bob'", "does not fit its digest"),
        ("UPDATE executions SET status = 'running' WHERE principal = 'bob'", "its row says running"),
        ("UPDATE suspensions SET status = 'pending' WHERE number = 1", "row of suspension"),
        ("DELETE FROM suspensions WHERE number = 1", "row of suspension"),
        ("UPDATE grants SET expires_at = expires_at + 1", "is not what the audit says was made"),
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
async def test_a_row_beside_the_log_that_was_edited_is_named(stored: Stored, statement: str, named: str) -> None:
    stored.edit(statement)
    told = await stored.verify()
    assert told and all(named in problem for problem in told)


@requirement("audit:proves-the-log", "approval:tampered")
@pytest.mark.parametrize("changes", [{(1, 6): MORE}, {(1, 9): "client"}], ids=["arguments", "what it needs"])
async def test_a_question_edited_while_it_is_open_is_named_and_halts_instead_of_running(
    tmp_path: Path, changes: Mapping[tuple[int, ...], JsonValue]
) -> None:
    stored, ledger = Stored(tmp_path), Ledger()
    async with stored.open() as store, warden(ledger, store=store) as w:
        asked = await w.execute_plan(ERASE)
    stored.execution_id = asked.execution_id
    stored.forge("QA", changes)
    assert any("does not fit its digest" in problem for problem in await stored.verify())
    [question] = asked.suspensions
    place, person = (asked.thread_id, question.suspension_id), by(digest=question.digest)
    async with stored.open() as store, warden(ledger, store=store) as w:
        done = await decide(w.service, place, YES, person, principal="local")
    assert done.status == "failed" and done.error is not None and done.error.code == "digest_mismatch"
    assert ledger.lines == []


@requirement("approval:tampered")
@pytest.mark.parametrize("policy", [{}, {(1, 19): "00000000"}], ids=["calls", "calls and policy"])
@pytest.mark.parametrize("is_review", [False, True], ids=["confirmation", "review"])
async def test_a_confirmation_edited_after_its_answer_covers_nothing(
    tmp_path: Path, policy: Mapping[tuple[int, ...], JsonValue], is_review: bool
) -> None:
    stored, ledger = Stored(tmp_path), Ledger()
    first = tool_step("a", "note", {"text": "x"}) if is_review else confirm("a", confirms=["c"])
    steps = plan(first, confirm("b"), tool_step("c", "erase", {"ids": [1]}))
    options: dict[str, JsonValue] = {"review": "person"} if is_review else {}
    async with stored.open() as store, warden(ledger, store=store) as w:
        asked = await w.execute_plan(steps, options=options)
        waiting = await decide(
            w, asked, planwarden.Decision(approved=True, content={"cover": True} if is_review else None)
        )
    stored.execution_id, ledger.lines[:] = waiting.execution_id, []
    stored.forge("PA", {(1, 0, 2, 7, 0, 1): {"ids": [2]}})
    stored.forge("QA", {(1, 18, 0, 2): {"ids": [2]}, **policy})
    async with stored.open() as store, warden(ledger, store=store) as w:
        [question] = (await decide(w, waiting)).suspensions
    assert (question.kind, question.step_id, ledger.lines) == ("approval", "c", [])


@requirement("approval:tampered")
@pytest.mark.parametrize("change", ["digest = 'x'", "status = 'approved'", "expires_at = 1"])
async def test_an_answer_about_a_row_that_was_edited_is_refused_with_its_name(tmp_path: Path, change: str) -> None:
    stored, ledger = Stored(tmp_path), Ledger()
    async with stored.open() as store, warden(ledger, store=store) as w:
        asked = await w.execute_plan(ERASE)
    stored.edit(f"UPDATE suspensions SET {change}")
    async with stored.open() as store, warden(ledger, store=store) as w:
        with pytest.raises(StoreError, match="digest mismatch") as halted:
            await decide(w.service, asked, YES, by(), principal="local")
    assert asked.suspensions[0].suspension_id in halted.value.message and ledger.lines == []


@requirement("audit:proves-the-log")
async def test_what_was_pruned_is_whole_and_what_was_deleted_is_named(stored: Stored) -> None:
    stored.edit(f"UPDATE executions SET ended_at = 0 WHERE execution_id <> '{stored.execution_id}'")
    async with stored.open() as store:
        assert await store.prune(1.0) == 1
        newest = (await store.audit_rows(after=await store.audit_end() - 1))[0].entry
    assert newest.kind == "pruned" and await stored.verify() == ()
    stored.forget()
    assert await stored.verify() == (f"execution {stored.execution_id!r} is gone, and no row says that it was pruned",)


@requirement("audit:proves-the-log")
@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_an_execution_cut_off_the_audit_is_named_or_if_its_log_is_gone_too_shown_by_a_kept_head(
    stored: Stored, is_forgotten: bool
) -> None:
    if is_forgotten:
        stored.forget()
        stored.edit("UPDATE grants SET used = 0")
    stored.chain_again(lambda kind, execution_id: execution_id != stored.execution_id)
    told = await stored.verify()
    named = any(stored.execution_id in problem and "do not hold the same" in problem for problem in told)
    assert told == () if is_forgotten else named
    assert any("missing at the end" in problem for problem in await stored.verify(stored.head))


@requirement("audit:proves-the-log")
async def test_a_store_is_whole_while_others_ask_decide_and_prune(tmp_path: Path) -> None:
    async with Stored(tmp_path).open() as store, warden(Ledger(), store=store) as w:
        await decide_all(w, ERASE)
        two = plan(tool_step("a", "erase", {"ids": [1]}), tool_step("b", "erase", {"ids": [2]}))
        asked, turns = await w.execute_plan(two), 0

        async def meddle(moment: StoreCall) -> None:
            nonlocal turns, asked
            if moment.when == "before" and moment.call in ("walk", "read", "find_suspension") and turns < 8:
                turns += 1
                if asked.suspensions:
                    suspension_id = asked.suspensions[0].suspension_id
                    asked = await decide(w, (asked.thread_id, suspension_id), YES, by(), principal="local")
                else:
                    await store.prune(store.clock.now() + 1)
                    asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [turns]})))

        verdict = await verify_audit(WatchedStore(store, meddle))
        assert verdict.problems == () and turns >= 4


async def test_impossible_times_and_events_are_damage_that_is_named_and_no_internal_error(stored: Stored) -> None:
    for sequence, at in ((2, "1e300"), (3, "-1e19")):
        stored.edit(f"UPDATE audit SET at = {at} WHERE sequence = {sequence}")
    stored.forge("SB", {(1,): "z"}, 1)
    async with stored.open() as store:
        page = await read_audit_page(store, thread_id=None, limit=100, cursor=None)
        assert [line.at.year for line in page.rows[1:3]] == [9999, 1970]
        assert not (await verify_audit(store)).is_whole
        async with warden(Ledger(), store=store) as w:
            with pytest.raises(StoreError, match="damaged"):
                await w.get_execution(stored.thread_id)


def test_the_command_shows_verifies_and_exports(stored: Stored, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(home=stored.folder, capture=capsys)
    shown = cli.main("audit", "show", "--json", "--limit", "3").json
    assert [row["kind"] for row in shown["rows"]] == ["policy", "asked", "decided"] and shown["nextCursor"] == "3"
    of_thread = cli.main("audit", "show", "--json", "--thread", stored.thread_id[:8])
    assert of_thread.json == cli.main("audit", "show", "--json", "--thread", stored.thread_id).json
    assert of_thread.json["rows"]
    for words, why in (
        (("show", "--thread", "nowhere"), "nowhere"),
        (("show", "--cursor", "9" * 5_000), "does not come from this audit"),
        (("verify", "--head", f"{'9' * 5_000}:{'0' * 64}"), "is not a head"),
    ):
        refused = cli.main("audit", *words)
        assert refused.code == 2 and why in refused.err, refused
    verdict = cli.main("audit", "verify", "--json").json
    assert verdict["isWhole"] is True and verdict["rows"] == 4 + len(KINDS)
    target = stored.folder / "audit.jsonl"
    assert cli.main("audit", "export", str(target)).code == 0
    lines = [json.loads(text) for text in target.read_text().splitlines()]
    assert len(lines) == verdict["rows"] and f"{len(lines)}:{lines[-1]['hash']}" == verdict["head"]
    assert "exists already" in cli.main("audit", "export", str(target)).err
    tag, number, changes = EDITS["arguments asked about"]
    stored.forge(tag, changes, number)
    stored.edit("DELETE FROM audit WHERE sequence = 4")
    said = cli.main("audit", "verify", "--head", verdict["head"])
    assert said.code == 1 and "row 4 is missing" in said.out and stored.execution_id in said.out
    assert cli.main("audit", "verify", "--head", "nonsense").code == 2
