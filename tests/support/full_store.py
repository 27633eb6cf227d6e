"""A store that holds something in every table, and everything that a store holds, read with plain SQL."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.conninfo import conninfo_to_dict

from planwarden.agent.common.artifact import make_artifact
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.ports.budgets_and_keys import Grant, GrantedStep
from planwarden.agent.ports.store import Append, Notification, StartRequest
from planwarden.server.inbox.sessions import CodeRefused, InboxAccess
from planwarden.storage.keys import KeyStore, SigningKey, SigningNonce
from planwarden.storage.location import StoreLocation
from planwarden.storage.opening import CompleteStore
from planwarden.storage.schedules import TickRecord
from planwarden.storage.tokens import TokenStore
from tests.server.schedules.support import add_schedule
from tests.storage.suite import PLAN, Scribe, decided, guard
from tests.support.postgres import shared_server

Dump = dict[str, list[dict[str, Any]]]

OWN = {"position", "token", "owner", "leased_until"}
"""Columns that one database has for itself, or that belong to processes."""
UNNUMBERED = {"artifacts", "records"}
"""Tables whose column of numbers does not move, or is in one of the databases only."""
PROCESSES = {*("owners", "audit_unsealed", "audit_state", "schema_versions", "move_mark", "sqlite_sequence")}


def make_url() -> str:
    found = conninfo_to_dict(shared_server().make_database())
    return f"postgresql://{found['user']}:hidden@/{found['dbname']}?host={found['host']}"


async def fill(store: CompleteStore, tag: str = "") -> None:
    """Store at least one row in each table, and in some several, whose order is not that of their ids.

    All ids end with the tag, so that it can be done again with another one.
    """
    now = store.clock.now()
    for name in ("z", "a", "m"):
        scribe = Scribe.on(store, f"finished {name}{tag}", thread_id=f"thread{tag}")
        await scribe.finish()
    running = Scribe.on(store, f"running{tag}", owner="gone")
    append = replace(
        running.append(ev.ExecutionCreated(goal="go \0 on"), ev.PlanAccepted(plan=PLAN), ev.StepStarted(step_id="a")),
        start=StartRequest(key=f"monday{tag}", request="a digest", plan="digest of the plan"),
    )
    running.lease, running.execution = await store.append(append), append.execution
    await intend(store, running, artifacts=(make_artifact(b'["x"]'), make_artifact(bytes(range(256)) * 1_000)))
    for name in ("s2", "s1"):
        asked = Scribe.on(store, f"asked {name}{tag}")
        await asked.suspend(name + tag, expires_at=now + 1e6)
    answered = Scribe.on(store, f"answered{tag}")
    await answered.suspend(f"s3{tag}")
    await answered.write(decided(f"s3{tag}"), guards=[guard(f"s3{tag}")])
    told = Notification(
        notification_id=f"n1{tag}",
        channel="mail",
        kind="asked",
        execution_id=f"told{tag}",
        suspension_id=f"s3{tag}",
        facts={"toolName": "Łódź"},
        created_at=now,
    )
    asking = Scribe.on(store, f"told{tag}")
    await asking.start()
    await intend(store, asking, notifications=(told,))
    for name in ("o2", "o1"):
        taking = Scribe.on(store, f"taking {name}{tag}")
        await taking.start()
        once = ev.OnceKey(key=name + tag, values={"/payment_id": "Łódź"}, keep_s=1e6)
        share = ev.BudgetShare(budget=f"b{tag}", amount=0.1, limit=1.0, window_s=1e6)
        await taking.write(ev.ToolCallIntended(call_id="a:1", arguments={}, once=once, shares=(share,)))
    await _add_access(store, tag, now)
    # Whoever reads the audit seals it.
    await store.audit_end()


async def intend(store: CompleteStore, scribe: Scribe, **fields: Any) -> None:
    """Begins the call of the started execution, in a transaction with these fields."""
    append: Append = replace(scribe.append(ev.ToolCallIntended(call_id="a:1", arguments={})), **fields)
    scribe.lease, scribe.execution = await store.append(append), append.execution


async def _add_access(store: CompleteStore, tag: str, now: float) -> None:
    entry = AuditEntry(kind="refused", facts={"of": "Łódź"})
    step = GrantedStep(plan_name="weekly", plan_digest="p", step_id="send")
    for name in ("g3", "g2", "g1"):
        await store.add_grant(
            Grant(
                grant_id=name + tag,
                tool_name="book",
                definition_digest="d",
                arguments={"city": "Łódź"},
                step=step if name == "g3" else None,
                uses=3,
                used=5,
                used_on=20_000,
                used_before=3,
                expires_at=now + 1e6,
                owner=None,
                created_by="ann",
                assurance="embedder",
                channel="test",
                created_at=now,
            ),
            entry,
        )
    await store.revoke_grant(f"g2{tag}", entry)
    tokens, access, keys = TokenStore(store), InboxAccess(store), KeyStore(store)
    for name in ("bob", "ann"):
        await tokens.make(name)
    await tokens.revoke("bob")
    codes, _ = [await access.make_codes("ann", "terminal") for _ in range(2)]
    await access.redeem(codes.link)
    with pytest.raises(CodeRefused):
        await access.redeem(codes.link)
    for name in ("k2", "k1"):
        key = SigningKey(
            key_id=name + tag,
            credential_id=name.encode(),
            public_key=bytes(range(77)),
            principal=f"owner of {name}{tag}",
            rp_id="localhost",
            label="blue key",
            sign_count=7,
            created_at=now,
        )
        assert await keys.add_key(key, None, entry)
    for name, paused_at in (("sch2", None), ("sch1", now)):
        facts: dict[str, Any] = {
            "inputs": {"city": "Łódź"},
            "paused_at": paused_at,
            "queued": (int(now), int(now) + 1),
            "last_execution": f"running{tag}",
            "recent": (TickRecord(tick_at=int(now), outcome="skipped", reason="it is not finished"),),
        }
        await add_schedule(store, schedule_id=name + tag, **facts)
    await keys.add_nonce(
        SigningNonce(nonce=f"nonce{tag}", purpose="sign", session=f"cookie{tag}", expires_at=now + 600), now
    )


def dump(location: StoreLocation) -> Dump:
    """Every row that is not about a process, in the order of all of its columns."""
    if location.path is not None:
        with closing(sqlite3.connect(location.path)) as file:
            found = file.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
            names = [name for (name,) in found if name not in PROCESSES]
            return {name: _rows(name, file.execute(f"SELECT * FROM {name}")) for name in names}
    with psycopg.connect(location.url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        names = [name for (name,) in found if name not in PROCESSES]
        return {name: _rows(name, connection.execute(f"SELECT * FROM {name}".encode())) for name in names}


def _rows(table: str, cursor: Any) -> list[dict[str, Any]]:
    names = [str(column[0]) for column in cursor.description]
    rows: Iterable[tuple[Any, ...]] = cursor.fetchall()
    hidden = {*OWN, *(("number",) if table in UNNUMBERED else ())} - {"owner" if table in ("grants", "records") else ""}
    plain = ([int(value) if isinstance(value, bool) else value for value in row] for row in rows)
    kept = [{name: value for name, value in zip(names, row, strict=True) if name not in hidden} for row in plain]
    return sorted(kept, key=repr)
