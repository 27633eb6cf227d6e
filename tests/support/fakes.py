"""Fakes with behaviour: a ledger of effects that outlives its writer, tools that write to it, a store that is watched.

None of them is told what to answer; each does a small, real thing. The clock that tests set is
`planwarden.storage.clock.ManualClock`, the store without a disk is `planwarden.storage.memory.store.MemoryStore`.
"""

import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio.lowlevel
from pydantic import JsonValue

from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry, AuditRow
from planwarden.agent.core.tool import CallContext, Effect, Risk, ToolDefinition
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import Append, Grant, Header, Lease, Store, SuspensionRow, SuspensionRowPage
from planwarden.tools.base import Tool, define

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
    """An append-only file of what tools really did. One line is one write, so a killed writer leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, entry: Entry) -> None:
        line = json.dumps(
            [entry.tool_name, entry.effect, entry.key, entry.arguments, entry.value, entry.process],
            separators=(",", ":"),
        )
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        if not self.path.exists():
            return []
        found: list[Entry] = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            tool_name, effect, key, arguments, value, process = json.loads(line)
            found.append(
                Entry(tool_name=tool_name, effect=effect, key=key, arguments=arguments, value=value, process=process)
            )
        return found

    def effects(self) -> Counter[str]:
        """How often each call with an effect happened, by key."""
        return Counter(entry.key for entry in self.entries() if entry.effect == "effect")

    def tools_run(self) -> list[str]:
        """Names of the tools in the order in which they ran."""
        return [entry.tool_name for entry in self.entries()]

    def truth(self, key: str) -> JsonValue:
        """What a person who looked would answer to a reconcile question about the call with that key."""
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
    """A tool that writes one line to the ledger and returns `{"done": NAME, **arguments}`, with a filler if wanted.

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


class Crash(BaseException):
    """The process dies here: not an error that anything may handle."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A store call about to be made, or just made."""

    number: int
    """1 for the first call on this store, whatever it was."""
    call: str
    when: Literal["before", "after"]


Hook = Callable[[Moment], Awaitable[None]]


class WatchedStore:
    """Any store, with a hook that is awaited before and after each call. What the hook raises, the caller gets."""

    def __init__(self, inner: Store, hook: Hook) -> None:
        self.inner = inner
        self.calls: list[str] = []
        """Names of the calls made so far."""
        self._hook = hook

    async def _watched(self, call: str, made: Callable[[], Awaitable[Result]]) -> Result:
        self.calls.append(call)
        number = len(self.calls)
        await self._hook(Moment(number, call, "before"))
        result = await made()
        await self._hook(Moment(number, call, "after"))
        return result

    @property
    def clock(self) -> Clock:
        return self.inner.clock

    async def append(self, append: Append) -> Lease | None:
        return await self._watched("append", lambda: self.inner.append(append))

    async def header(self, execution_id: str) -> Header | None:
        return await self._watched("header", lambda: self.inner.header(execution_id))

    async def read(self, execution_id: str, after: int = 0) -> tuple[ev.Recorded, ...]:
        return await self._watched("read", lambda: self.inner.read(execution_id, after))

    async def artifact(self, thread_id: str, artifact_id: str) -> Artifact | None:
        return await self._watched("artifact", lambda: self.inner.artifact(thread_id, artifact_id))

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        return await self._watched("thread", lambda: self.inner.thread(thread_id))

    async def executions(self, principal: str | None, limit: int) -> tuple[Header, ...]:
        return await self._watched("executions", lambda: self.inner.executions(principal, limit))

    async def find_suspension(self, suspension_id: str) -> SuspensionRow | None:
        return await self._watched("find_suspension", lambda: self.inner.find_suspension(suspension_id))

    async def suspensions(self, **chosen: Any) -> SuspensionRowPage:
        return await self._watched("suspensions", lambda: self.inner.suspensions(**chosen))

    async def decided(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        return await self._watched("decided", lambda: self.inner.decided(limit=limit, cursor=cursor))

    async def due(self, limit: int) -> tuple[SuspensionRow, ...]:
        return await self._watched("due", lambda: self.inner.due(limit))

    async def next_deadline(self) -> float | None:
        return await self._watched("next_deadline", self.inner.next_deadline)

    async def claim(self, execution_id: str, owner: str) -> Lease | None:
        return await self._watched("claim", lambda: self.inner.claim(execution_id, owner))

    async def orphans(self, limit: int) -> tuple[str, ...]:
        return await self._watched("orphans", lambda: self.inner.orphans(limit))

    async def renew(self, owner: str) -> None:
        await self._watched("renew", lambda: self.inner.renew(owner))

    async def release(self, lease: Lease) -> None:
        await self._watched("release", lambda: self.inner.release(lease))

    async def changes(self) -> int:
        return await self._watched("changes", self.inner.changes)

    async def prune(self, before: float) -> int:
        return await self._watched("prune", lambda: self.inner.prune(before))

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        await self._watched("add_grant", lambda: self.inner.add_grant(grant, entry))

    async def revoke_grant(self, grant_id: str, entry: AuditEntry) -> bool:
        return await self._watched("revoke_grant", lambda: self.inner.revoke_grant(grant_id, entry))

    async def grants(self, *, only_open: bool, limit: int = 1000) -> tuple[Grant, ...]:
        return await self._watched("grants", lambda: self.inner.grants(only_open=only_open, limit=limit))

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        await self._watched("audit", lambda: self.inner.audit(entries))

    async def audit_rows(
        self, *, after: int = 0, execution_id: str | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        return await self._watched(
            "audit_rows", lambda: self.inner.audit_rows(after=after, execution_id=execution_id, limit=limit)
        )

    async def task_rows(self, execution_id: str, *, after: int = 0, limit: int = 100) -> tuple[AuditRow, ...]:
        return await self._watched("task_rows", lambda: self.inner.task_rows(execution_id, after=after, limit=limit))

    async def audit_end(self) -> int:
        return await self._watched("audit_end", self.inner.audit_end)

    async def close(self) -> None:
        await self.inner.close()


class CrashingStore(WatchedStore):
    """Dies before or after its call number `at`, and is dead from then on."""

    def __init__(self, inner: Store, *, at: int, when: Literal["before", "after"]) -> None:
        super().__init__(inner, self._die)
        self.is_dead = False
        self._at = at
        self._when = when

    async def _die(self, moment: Moment) -> None:
        if self.is_dead or (moment.number == self._at and moment.when == self._when):
            self.is_dead = True
            raise Crash(f"{moment.when} {moment.call}, store call {moment.number}")


class LyingStore(WatchedStore):
    """A planted bug: append number `at` is acknowledged without being stored, and the death comes with the next call.

    A checker of durability that does not notice proves nothing.
    """

    def __init__(self, inner: Store, *, at: int) -> None:
        super().__init__(inner, self._die)
        self.is_dead = False
        self._at = at
        self._appends = 0

    async def _die(self, moment: Moment) -> None:
        if self._appends >= self._at:
            # Time for the lie to get around: whoever was told acts on it.
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
    """The store of a process that stands still: its leases run out, however long it is looked at."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, self._watch)

    async def _watch(self, moment: Moment) -> None:
        """Nothing happens around the calls."""

    async def renew(self, owner: str) -> None:
        """Nobody is there to do it."""


class RefusingStore(WatchedStore):
    """A disk on which some writes do not succeed, for as long as `refuses` says so."""

    def __init__(self, inner: Store, refuses: Callable[[Append], bool]) -> None:
        super().__init__(inner, self._watch)
        self.refused = 0
        self._refuses = refuses

    async def _watch(self, moment: Moment) -> None:
        """Nothing happens around the calls."""

    async def append(self, append: Append) -> Lease | None:
        if self._refuses(append):
            self.refused += 1
            raise StoreError("the disk is full")
        return await super().append(append)


def has_result_of(append: Append, call_id: str) -> bool:
    """Whether the transaction records that the call returned."""
    events = (entry.event for entry in append.recorded)
    return any(isinstance(event, ev.ToolReturned) and event.call_id == call_id for event in events)
