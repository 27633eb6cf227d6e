"""What the engine needs of a store, as a protocol. Its laws are tested over every implementation.

Times are Unix seconds by the store's clock, but leases run by its steady seconds, which do not jump with the time of
day. Ids are opaque strings made by the engine.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

import msgspec

from planwarden.agent.common.artifact import Artifact
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import AuditEntry, AuditRow
from planwarden.agent.core.execution.notifications import Notification
from planwarden.agent.core.execution.question import Addressee
from planwarden.agent.core.execution.state import ExecutionState, ExecutionStatus
from planwarden.agent.ports.budgets_and_keys import HeldKey
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.grant import Grant
from planwarden.agent.ports.listing import ExecutionFilter, ListedPage


class Header(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the store keeps beside the log of one execution."""

    execution_id: str
    thread_id: str
    principal: str
    status: ExecutionStatus
    version: int
    created_at: float
    updated_at: float
    owner: str | None = None
    """The process that holds the lease, whether or not the lease is still valid."""
    fence: int = 0
    leased_until: float = 0.0
    """Steady seconds."""

    def is_leased(self, steady_s: float) -> bool:
        """Return True when the lease of a process is valid at that moment."""
        return self.owner is not None and self.leased_until > steady_s


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to one execution until another process takes it over."""

    execution_id: str
    owner: str
    fence: int
    is_from_silent: bool = field(default=False, compare=False)
    """It was taken from a process that lives, as far as the store knows, and did not renew it."""
    left_s: float | None = field(default=None, compare=False)
    """Seconds since the last commit or renewal of the process that it was taken from, dead or silent; None when nobody
    had it, or its owner gave it up."""


class Guard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Conditions on a suspension that must hold in the transaction which answers it."""

    suspension_id: str
    digest: str
    deadline: Literal["not passed", "passed", "any"] = "not passed"
    """Decisions are too late after the deadline; a time-out is too early before it."""


class SystemKey(str):
    """A key with which planwarden itself starts something, in a namespace that callers cannot write."""

    PREFIX = "planwarden:"

    def __new__(cls, *parts: str) -> Self:
        return super().__new__(cls, cls.PREFIX + ":".join(parts))


class StartRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a store keeps of a request to start an execution, to know the request when it is sent again."""

    key: str | None = None
    """The caller's idempotency key: a principal starts one execution with it, as long as that execution is kept."""
    request: str = ""
    """Digest of what was asked for with the key."""
    plan: str | None = None
    """Digest of the given plan; kept until the execution is finished."""
    is_only: bool = False
    """Refuse to start when the principal has an unfinished execution of the same plan."""
    after: str | None = None
    """Refuse to start unless this execution is the newest of the thread, in the version `after_version`."""
    after_version: int = 0


class StartedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """The execution that a key started."""

    execution_id: str
    thread_id: str
    request: str
    """As in `StartRequest`."""


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One transaction: all of its events or none."""

    execution: ExecutionState
    """The state after the events; the store projects status and suspensions from it."""
    recorded: Sequence[ev.Recorded]
    expected_version: int
    """0 creates the execution."""
    lease: Lease | None
    """The lease that the writer holds; None writes an answer to an execution that another process owns."""
    acquire: bool = False
    """Take the lease in the same transaction, if no process holds a valid one."""
    release: bool = False
    owner: str = ""
    """The writer, for `acquire`."""
    guards: Sequence[Guard] = ()
    artifacts: Sequence[Artifact] = ()
    """Stored with the events; one that the execution has already is not stored again."""
    policy: str = ""
    """Digest of the policy under which the events were decided, for the audit."""
    notifications: Sequence[Notification] = ()
    """Notifications about the events, stored with them and delivered later."""
    start: StartRequest | None = None
    """The request that the events start or continue the execution for."""


IdKind = Literal["execution", "suspension", "thread"]


class FoundId(msgspec.Struct, frozen=True):
    """An id that begins as somebody wrote it, and the thread that it belongs to."""

    kind: IdKind
    id: str
    thread_id: str


class SuspensionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Where to find a suspension."""

    suspension_id: str
    execution_id: str
    thread_id: str
    principal: str
    addressee: Addressee
    status: str
    digest: str
    created_at: float
    expires_at: float | None
    alarm_at: float | None = None
    """When the next alarm is due."""


class SuspensionRowPage(msgspec.Struct, frozen=True):
    rows: tuple[SuspensionRow, ...]
    total: int
    next_cursor: str | None


class Changes(msgspec.Struct, frozen=True):
    """What one look at the commits of other processes found."""

    number: int
    """For the next look; the same number again means that nothing was committed."""
    executions: frozenset[str] | None = None
    """The executions that may have changed; None when any of them may have, or a grant."""
    has_unowned: bool = True
    """One of them may be running without an owner."""


class Log(msgspec.Struct, frozen=True):
    """All that the log says about an execution."""

    header: Header
    recorded: tuple[ev.Recorded, ...]


class Lookups(Protocol):
    """What a store says of executions. Nothing here changes it, and every failure of the medium is a `StoreError`."""

    @property
    def clock(self) -> Clock: ...

    async def header(self, execution_id: str) -> Header | None: ...

    async def headers(self, execution_ids: Collection[str]) -> tuple[Header, ...]:
        """Return those of the executions that exist, in any order."""
        ...

    async def log(self, execution_id: str) -> Log | None:
        """Return the execution's row and all of its events, as of one moment."""
        ...

    async def read(self, execution_id: str, after: int = 0) -> tuple[ev.Recorded, ...]:
        """Return events with a sequence above `after`; empty for an unknown execution."""
        ...

    async def artifact(self, thread_id: str, artifact_id: str) -> Artifact | None:
        """Return an artifact of any execution of the thread. Raises `StoreError` when it is not what was written."""
        ...

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        """Return executions of the thread, oldest first; empty for an unknown thread."""
        ...

    async def executions(self, principal: str | None, limit: int) -> tuple[Header, ...]:
        """Return executions of the principal, or of everybody, newest first."""
        ...

    async def list_executions(self, only: ExecutionFilter, *, limit: int = 25, cursor: str | None = None) -> ListedPage:
        """Return executions with what a list shows of them, the one with the newest activity first; no log is read.

        Raises `InvalidArguments` for a foreign cursor.
        """
        ...

    async def list_hosts(self) -> tuple[str, ...]:
        """Return the hosts of the newest executions, each once, sorted."""
        ...

    async def walk(self, after: str, limit: int) -> tuple[Header, ...]:
        """Return executions with an id above `after`, by id: for a look at every one without holding all of them."""
        ...

    async def find_start(self, principal: str, key: str) -> StartedExecution | None:
        """Return the execution that the principal started with the key; None when there is none, or it was pruned."""
        ...

    async def find_once(self, keys: Collection[str]) -> tuple[HeldKey, ...]:
        """Return those of the business keys that are held now."""
        ...

    async def list_once(self, tool_name: str | None, limit: int) -> tuple[HeldKey, ...]:
        """Return business keys of calls that are held now, of one tool or all, newest first."""
        ...

    async def find_suspension(self, suspension_id: str) -> SuspensionRow | None: ...

    async def find_ids(self, beginning: str, limit: int) -> tuple[FoundId, ...]:
        """Return at most `limit` ids of each kind with this beginning, of all owners, by kind and id."""
        ...

    async def suspensions(
        self,
        *,
        principal: str | None = None,
        thread_id: str | None = None,
        addressee: Addressee | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> SuspensionRowPage:
        """Return pending questions to people and callers, oldest first. Raises `InvalidArguments` for a foreign
        cursor."""
        ...

    async def waiting(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        """Return pending questions to people, the most dangerous first, then the oldest.

        Raises `InvalidArguments` for a foreign cursor.
        """
        ...

    async def decided(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        """Return closed questions to people, the last closed first; `total` is the number of rows of this page.

        Raises `InvalidArguments` for a foreign cursor.
        """
        ...

    async def close(self) -> None: ...


class Store(Lookups, Protocol):
    """Logs of executions, and the small table rows needed to find them.

    Laws:
    * Acknowledged means committed: a call that returned is durable, a call that raised changed nothing.
    * `append` is atomic and conditional: version, lease and guards are checked in its own transaction; a writer that
      lost gets `VersionConflict`, `LeaseLost` or `GuardFailed` and nothing is merged.
    * At most one unfinished execution per thread (`ThreadBusy`).
    * An execution that goes on from another starts only while that is the thread's newest, unchanged (`ThreadMovedOn`).
    * A principal starts one execution with a key (`KeyUsed`); the transaction that starts it stores the key.
    * Events come back in order, without gaps, equal to what was written.
    * A `ToolCallIntended` with a grant is stored only together with one use of that grant (`GrantUsedUp`).
    * A `ToolCallIntended` with shares of budgets is stored only while there is room for them (`BudgetSpent`), one with
      a business key only when no other call has it (`DuplicateEffect`). Both are held from that transaction on, by
      the call's idempotency key, until they expire or an event of the call says that nothing happened. They expire no
      earlier when the clock is set back.
    * Notifications are stored in the transaction of the events that they report.
    * The audit grows in the transaction of the events that it reports: rows of `core.execution.audit`, chained by hash.
    * Cancelling a caller never leaves a transaction open; its request may or may not be committed.
    * Every failure of the medium is a `StoreError` that says what to do.
    """

    async def due(self, limit: int) -> tuple[SuspensionRow, ...]:
        """Return pending suspensions with an alarm that is due or a deadline that has passed.

        First the earliest of each principal, earliest first, then the second of each, and so on: nobody waits until
        all of somebody else's are done.
        """
        ...

    async def append(self, append: Append) -> Lease | None:
        """Commit. Returns the lease that the writer now holds, or None when it holds none."""
        ...

    async def claim(self, execution_id: str, owner: str, *, silent_s: float = 0.0) -> Lease | None:
        """Take the lease of a running execution that has no valid one; None when there is nothing to take over.

        An owner that may be alive loses its lease only if that expired at least `silent_s` seconds ago.
        """
        ...

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        """Take the leases of running executions that no process owns, the oldest first.

        Processes that ask at the same time take different ones. Those in `skip` are left to others.
        """
        ...

    async def expire_dead(self) -> None:
        """End the leases of processes that are gone, so that their executions have no owner."""

    async def confirm(self, lease: Lease) -> None:
        """Extend the lease. Raises `LeaseLost` when somebody else holds it, or nobody."""

    async def orphans(self, limit: int, *, ahead_s: float = 0.0, after: str = "") -> tuple[str, ...]:
        """Return ids of running executions without a valid lease, the oldest first; processes that are gone have none.

        `ahead_s` adds executions whose lease ends within so many seconds. `after` leaves only those that are newer than
        the execution with that id, or all if there is no such execution.
        """
        ...

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        """Extend the leases that `owner` has on these executions, which run in its process.

        It may own others without knowing, if the answer to a takeover was lost. Their leases expire.
        """

    async def release(self, lease: Lease) -> None: ...

    async def changes(self, since: int) -> Changes:
        """Return what other processes may have committed to since the look that gave the number `since`; 0 is before
        all."""
        ...

    async def wait_for_changes(self, since: int, timeout_s: float) -> None:
        """Return when `changes` would say something new, if the store is told so, or else after `timeout_s`."""

    async def prune(self, before: float) -> int:
        """Delete finished executions last changed before `before`, and everything of theirs except the audit.

        The audit names them in the same transaction. Returns their number.
        """
        ...

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        """Store a standing grant together with its audit row."""

    async def revoke_grant(self, grant_id: str, entry: AuditEntry) -> bool:
        """End a grant now, and store the audit row with it; False when there is no grant, or it was revoked before."""
        ...

    async def grants(self, *, only_open: bool, limit: int = 1000) -> tuple[Grant, ...]:
        """Return grants, newest first; with `only_open` those that a call may still use now."""
        ...

    async def take_once(self, once: ev.OnceKey, holder: str, entry: AuditEntry) -> bool:
        """Take a key for something other than a call, and store the audit row with it; False when it is held."""
        ...

    async def forget_once(self, key: str, entry: AuditEntry) -> bool:
        """Free a key now, and store the audit row with it; False when there is no such key."""
        ...

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        """Append rows to the audit that belong to no execution's log."""

    async def audit_rows(
        self, *, after: int = 0, execution_id: str | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        """Return rows with a number above `after`, oldest first, as stored and not verified."""
        ...

    async def task_rows(self, execution_id: str, *, after: int = 0, limit: int = 100) -> tuple[AuditRow, ...]:
        """Return rows of `TASK_KINDS` about one execution, as `audit_rows` returns them, without reading the whole
        audit."""
        ...

    async def audit_end(self) -> int:
        """Return the highest number that a row of the audit ever had; 0 before the first."""
        ...
