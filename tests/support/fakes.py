"""Fakes with behaviour: a ledger that outlives its writer, tools that write to it, and stores with hooks.

No test tells them what to answer; each does a small, real thing. The clock that tests set is
`planwarden.storage.clock.ManualClock`, the store without a disk is `planwarden.storage.memory.store.MemoryStore`.
"""

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio.lowlevel
from pydantic import JsonValue

from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import ModelError, StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry, AuditRow
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import CallContext, Effect, Risk, ToolDefinition
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.grant import Grant
from planwarden.agent.ports.holdings import HeldKey
from planwarden.agent.ports.listing import ExecutionFilter, ListedPage
from planwarden.agent.ports.model import AskCaller, Model
from planwarden.agent.ports.store import (
    Append,
    Changes,
    FoundId,
    Header,
    Lease,
    Log,
    StartedExecution,
    Store,
    SuspensionRow,
    SuspensionRowPage,
)
from planwarden.tools.base import Tool, define
from tests.support.json_lines import append_line, read_lines

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the ledger."""

    tool_name: str
    effect: Effect
    key: str
    """`execution:step:sequence`."""
    arguments: dict[str, JsonValue]
    value: JsonValue
    process: int


class EffectLedger:
    """An append-only file of what tools really did."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, entry: Entry) -> None:
        append_line(self.path, [entry.tool_name, entry.effect, entry.key, entry.arguments, entry.value, entry.process])

    def entries(self) -> list[Entry]:
        return [
            Entry(tool_name=tool_name, effect=effect, key=key, arguments=arguments, value=value, process=process)
            for tool_name, effect, key, arguments, value, process in read_lines(self.path)
        ]

    def effects(self) -> Counter[str]:
        """Returns how often each call with an effect happened, by key."""
        return Counter(entry.key for entry in self.entries() if entry.effect == "effect")

    def tools_run(self) -> list[str]:
        """Returns the names of the tools in the order in which they ran."""
        return [entry.tool_name for entry in self.entries()]

    def reconcile_answer(self, key: str) -> JsonValue:
        """Returns the true answer to a reconcile question about the call with this key."""
        happened = [entry for entry in self.entries() if entry.key == key]
        return {"happened": True, "result": happened[-1].value} if happened else {"happened": False}


def recording_tool(
    ledger: EffectLedger,
    name: str,
    *,
    effect: Effect = "effect",
    risk: Risk = "read",
    properties: dict[str, JsonValue] | None = None,
    before: Callable[[], Awaitable[None]] | None = None,
    after: Callable[[], Awaitable[None]] | None = None,
    filler_bytes: int = 0,
) -> Tool:
    """Returns a tool that writes one line to the ledger and returns `{"done": NAME, **arguments}` and a filler, if any.

    `before` and `after` are awaited around the line; a test stops a call there.
    """

    async def call(arguments: dict[str, JsonValue], context: CallContext) -> object:
        if before is not None:
            await before()
        value: dict[str, JsonValue] = {"done": name, **arguments}
        if filler_bytes:
            value["filler"] = "x" * filler_bytes
        ledger.write(
            Entry(
                tool_name=name,
                effect=effect,
                key=context.idempotency_key,
                arguments=arguments,
                value=value,
                process=os.getpid(),
            )
        )
        if after is not None:
            await after()
        return value

    schema: dict[str, JsonValue] = {"type": "object", "properties": properties or {}}
    definition = ToolDefinition(
        name=name, description=f"Does {name}.", input_schema=schema, effect=effect, risk=risk, timeout_s=None
    )
    return Tool(define(definition), call)


class UnreachableModel:
    """The model `inner`, whose provider is out of reach for the first `failures` attempts at every prompt."""

    def __init__(self, inner: Model, *, failures: float = 1, asked_s: float | None = None) -> None:
        self.failures = failures
        self.asked_s = asked_s
        """How long the provider asks to wait."""
        self.attempts: Counter[tuple[str, str | None, int]] = Counter()
        """By purpose, step and number of the replies before."""
        self._inner = inner

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        key = (prompt.purpose, prompt.step_id, len(prompt.used_sources))
        self.attempts[key] += 1
        if self.attempts[key] <= self.failures:
            raise ModelError(
                f"the provider cannot be reached ({self.attempts[key]})", retryable=True, asked_s=self.asked_s
            )
        return await self._inner.reply(prompt, tools)


class Crash(BaseException):
    """The process dies here. Nothing may handle this as an error."""


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A store call that is about to start, or has just returned."""

    number: int
    """1 for the first call on this store."""
    call: str
    when: Literal["before", "after"]


Hook = Callable[[StoreCall], Awaitable[None]]


class WatchedStore:
    """Wraps a store and awaits a hook before and after each call. Errors of the hook reach the caller."""

    def __init__(self, inner: Store, hook: Hook) -> None:
        self.inner = inner
        self.calls: list[str] = []
        """Names of the calls so far."""
        self._hook = hook

    async def _call(self, call: str, made: Callable[[], Awaitable[Result]]) -> Result:
        self.calls.append(call)
        number = len(self.calls)
        await self._hook(StoreCall(number, call, "before"))
        result = await made()
        await self._hook(StoreCall(number, call, "after"))
        return result

    @property
    def clock(self) -> Clock:
        return self.inner.clock

    async def append(self, append: Append) -> Lease | None:
        return await self._call("append", lambda: self.inner.append(append))

    async def header(self, execution_id: str) -> Header | None:
        return await self._call("header", lambda: self.inner.header(execution_id))

    async def headers(self, execution_ids: Collection[str]) -> tuple[Header, ...]:
        return await self._call("headers", lambda: self.inner.headers(execution_ids))

    async def log(self, execution_id: str) -> Log | None:
        return await self._call("log", lambda: self.inner.log(execution_id))

    async def read(self, execution_id: str, after: int = 0) -> tuple[ev.Recorded, ...]:
        return await self._call("read", lambda: self.inner.read(execution_id, after))

    async def artifact(self, thread_id: str, artifact_id: str) -> Artifact | None:
        return await self._call("artifact", lambda: self.inner.artifact(thread_id, artifact_id))

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        return await self._call("thread", lambda: self.inner.thread(thread_id))

    async def executions(self, principal: str | None, limit: int) -> tuple[Header, ...]:
        return await self._call("executions", lambda: self.inner.executions(principal, limit))

    async def list_executions(
        self, wanted: ExecutionFilter, *, limit: int = 25, cursor: str | None = None
    ) -> ListedPage:
        return await self._call(
            "list_executions", lambda: self.inner.list_executions(wanted, limit=limit, cursor=cursor)
        )

    async def list_hosts(self) -> tuple[str, ...]:
        return await self._call("list_hosts", self.inner.list_hosts)

    async def walk(self, after: str, limit: int) -> tuple[Header, ...]:
        return await self._call("walk", lambda: self.inner.walk(after, limit))

    async def find_start(self, principal: str, key: str) -> StartedExecution | None:
        return await self._call("find_start", lambda: self.inner.find_start(principal, key))

    async def find_once(self, keys: Collection[str]) -> tuple[HeldKey, ...]:
        return await self._call("find_once", lambda: self.inner.find_once(keys))

    async def list_once(self, tool_name: str | None, limit: int) -> tuple[HeldKey, ...]:
        return await self._call("list_once", lambda: self.inner.list_once(tool_name, limit))

    async def find_suspension(self, suspension_id: str) -> SuspensionRow | None:
        return await self._call("find_suspension", lambda: self.inner.find_suspension(suspension_id))

    async def find_ids(self, beginning: str, limit: int) -> tuple[FoundId, ...]:
        return await self._call("find_ids", lambda: self.inner.find_ids(beginning, limit))

    async def suspensions(self, **chosen: Any) -> SuspensionRowPage:
        return await self._call("suspensions", lambda: self.inner.suspensions(**chosen))

    async def waiting(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        return await self._call("waiting", lambda: self.inner.waiting(limit=limit, cursor=cursor))

    async def decided(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        return await self._call("decided", lambda: self.inner.decided(limit=limit, cursor=cursor))

    async def due(self, limit: int) -> tuple[SuspensionRow, ...]:
        return await self._call("due", lambda: self.inner.due(limit))

    async def next_deadline(self) -> float | None:
        return await self._call("next_deadline", self.inner.next_deadline)

    async def claim(self, execution_id: str, owner: str, *, silent_s: float = 0.0) -> Lease | None:
        return await self._call("claim", lambda: self.inner.claim(execution_id, owner, silent_s=silent_s))

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        return await self._call("claim_many", lambda: self.inner.claim_many(owner, limit, skip=skip))

    async def expire_dead(self) -> None:
        await self._call("expire_dead", self.inner.expire_dead)

    async def confirm(self, lease: Lease) -> None:
        await self._call("confirm", lambda: self.inner.confirm(lease))

    async def orphans(self, limit: int, *, ahead_s: float = 0.0, after: str = "") -> tuple[str, ...]:
        return await self._call("orphans", lambda: self.inner.orphans(limit, ahead_s=ahead_s, after=after))

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        await self._call("renew", lambda: self.inner.renew(owner, execution_ids))

    async def release(self, lease: Lease) -> None:
        await self._call("release", lambda: self.inner.release(lease))

    async def changes(self, since: int) -> Changes:
        return await self._call("changes", lambda: self.inner.changes(since))

    async def wait_for_changes(self, since: int, timeout_s: float) -> None:
        await self.inner.wait_for_changes(since, timeout_s)

    async def prune(self, before: float) -> int:
        return await self._call("prune", lambda: self.inner.prune(before))

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        await self._call("add_grant", lambda: self.inner.add_grant(grant, entry))

    async def revoke_grant(self, grant_id: str, entry: AuditEntry) -> bool:
        return await self._call("revoke_grant", lambda: self.inner.revoke_grant(grant_id, entry))

    async def grants(self, *, only_open: bool, limit: int = 1000) -> tuple[Grant, ...]:
        return await self._call("grants", lambda: self.inner.grants(only_open=only_open, limit=limit))

    async def take_once(self, once: ev.OnceKey, holder: str, entry: AuditEntry) -> bool:
        return await self._call("take_once", lambda: self.inner.take_once(once, holder, entry))

    async def forget_once(self, key: str, entry: AuditEntry) -> bool:
        return await self._call("forget_once", lambda: self.inner.forget_once(key, entry))

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        await self._call("audit", lambda: self.inner.audit(entries))

    async def audit_rows(
        self, *, after: int = 0, execution_id: str | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        return await self._call(
            "audit_rows", lambda: self.inner.audit_rows(after=after, execution_id=execution_id, limit=limit)
        )

    async def task_rows(self, execution_id: str, *, after: int = 0, limit: int = 100) -> tuple[AuditRow, ...]:
        return await self._call("task_rows", lambda: self.inner.task_rows(execution_id, after=after, limit=limit))

    async def audit_end(self) -> int:
        return await self._call("audit_end", self.inner.audit_end)

    async def close(self) -> None:
        await self.inner.close()


class CrashingStore(WatchedStore):
    """Dies before or after call number `at`; every later call fails too."""

    def __init__(self, inner: Store, *, at: int, when: Literal["before", "after"]) -> None:
        super().__init__(inner, self._die)
        self.is_dead = False
        self._at = at
        self._when = when

    async def _die(self, moment: StoreCall) -> None:
        if self.is_dead or (moment.number == self._at and moment.when == self._when):
            self.is_dead = True
            raise Crash(f"{moment.when} {moment.call}, store call {moment.number}")


class LyingStore(WatchedStore):
    """A planted bug: it acknowledges append number `at` without storing it, and dies at the next call.

    A checker of durability that does not notice proves nothing.
    """

    def __init__(self, inner: Store, *, at: int) -> None:
        super().__init__(inner, self._die)
        self.is_dead = False
        self._at = at
        self._appends = 0

    async def _die(self, moment: StoreCall) -> None:
        if self._appends >= self._at:
            # Give the callers time to act on the false acknowledgement.
            for _ in range(0 if self.is_dead else 10):
                await anyio.lowlevel.checkpoint()
            self.is_dead = True
            raise Crash(f"{moment.when} {moment.call}, after append {self._at} was not stored")

    async def append(self, append: Append) -> Lease | None:
        if self._appends + 1 == self._at:
            self._appends += 1
            return None if append.release else append.lease or Lease(append.execution.execution_id, append.owner, 1)
        held = await super().append(append)
        self._appends += 1
        return held


class SilentStore(WatchedStore):
    """The store of a process that stands still: it renews no lease and notices nothing that others do, until it wakes.

    What the process had begun goes on all the same.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, self._watch)
        self.is_awake = False

    async def _watch(self, moment: StoreCall) -> None:
        """Does nothing around the calls."""

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        if self.is_awake:
            await super().renew(owner, execution_ids)

    async def changes(self, since: int) -> Changes:
        return await super().changes(since) if self.is_awake else Changes(since)


class ForgetfulStore(WatchedStore):
    """A store that takes an execution over and then loses the answer, once."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, self._watch)
        self.lost: Lease | None = None

    async def _watch(self, moment: StoreCall) -> None:
        """Does nothing around the calls."""

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        leases = await super().claim_many(owner, limit, skip=skip)
        for lease in leases:
            self._lose(lease)
        return leases

    async def claim(self, execution_id: str, owner: str, *, silent_s: float = 0.0) -> Lease | None:
        lease = await super().claim(execution_id, owner, silent_s=silent_s)
        if lease is not None:
            self._lose(lease)
        return lease

    def _lose(self, lease: Lease) -> None:
        if self.lost is None:
            self.lost = lease
            raise StoreError("the answer was lost")


class RefusingStore(WatchedStore):
    """A store whose appends fail as long as `refuses` returns true."""

    def __init__(self, inner: Store, refuses: Callable[[Append], bool]) -> None:
        super().__init__(inner, self._watch)
        self.refused = 0
        self._refuses = refuses

    async def _watch(self, moment: StoreCall) -> None:
        """Does nothing around the calls."""

    async def append(self, append: Append) -> Lease | None:
        if self._refuses(append):
            self.refused += 1
            raise StoreError("the disk is full")
        return await super().append(append)


def has_result_of(append: Append, call_id: str) -> bool:
    """Whether the transaction records that the call returned."""
    events = (entry.event for entry in append.recorded)
    return any(isinstance(event, ev.ToolReturned) and event.call_id == call_id for event in events)
