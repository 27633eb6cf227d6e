"""What the engine needs from a store, as a protocol. Tests check its guarantees for every implementation.

Times are Unix seconds by the store's clock, but leases run by its steady seconds, which do not jump when the time of
day is changed. Ids are opaque strings that the engine makes.
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
from planwarden.agent.core.execution.state import ExecutionState, ExecutionStatus, SuspensionState
from planwarden.agent.ports.budgets_and_keys import Grant, HeldKey
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.listing import ExecutionFilter, ListedPage


class Header(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The row that the store keeps about one execution, in addition to its log."""

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
    """Whether the lease was taken from a process that did not renew it, but is alive as far as the store knows."""
    silent_s: float | None = field(default=None, compare=False)
    """If the lease was taken from a dead or silent process: seconds since that process last committed or renewed; None
    if no process held the lease, or its holder gave it up."""


class Guard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Conditions on a suspension that must hold in the transaction that answers it."""

    suspension_id: str
    digest: str
    deadline: Literal["not passed", "passed", "any"] = "not passed"
    """Whether the deadline must have passed: a decision after it is too late, a time-out before it is too early."""


class SystemKey(str):
    """An idempotency key that planwarden itself uses to start something, in a namespace closed to callers."""

    PREFIX = "planwarden:"

    def __new__(cls, *parts: str) -> Self:
        return super().__new__(cls, cls.PREFIX + ":".join(parts))


class StartRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a store keeps of a request to start an execution, so that it recognises the request when it is repeated."""

    key: str | None = None
    """The caller's idempotency key: it starts only one execution per principal, as long as that execution is kept."""
    request: str = ""
    """Digest of what was asked for with the key."""
    plan: str | None = None
    """Digest of the given plan; kept until the execution is finished."""
    is_only: bool = False
    """Whether the start is refused when the principal has an unfinished execution of the same plan."""
    after: str | None = None
    """The execution that must be the newest of the thread, in version `after_version`; else the start is refused."""
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
    """The state after the events; the store fills its rows for status and suspensions from it."""
    recorded: Sequence[ev.Recorded]
    expected_version: int
    """0 creates the execution."""
    lease: Lease | None
    """The lease that the writer holds; None if it holds none, as when another process owns the execution."""
    acquire: bool = False
    """Whether to take the lease in the same transaction, if no process holds a valid one."""
    release: bool = False
    owner: str = ""
    """The writer, for `acquire`."""
    guards: Sequence[Guard] = ()
    artifacts: Sequence[Artifact] = ()
    """Artifacts to store with the events; those that the execution already has are not stored again."""
    policy: str = ""
    """Digest of the policy under which the events were decided, for the audit."""
    notifications: Sequence[Notification] = ()
    """Notifications about the events, stored with them and delivered later."""
    start: StartRequest | None = None
    """The request to start or continue the execution, if it caused these events."""


IdKind = Literal["execution", "suspension", "thread"]


class FoundId(msgspec.Struct, frozen=True):
    """An id that begins with what somebody typed, and the thread that it belongs to."""

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

    def fits(self, suspension: SuspensionState) -> bool:
        """Return whether the row says what the log says about the suspension."""
        question = suspension.question
        row = (self.status, self.addressee, self.digest, self.expires_at)
        return row == (suspension.status, question.addressee, question.digest, question.expires_at)


class SuspensionRowPage(msgspec.Struct, frozen=True):
    rows: tuple[SuspensionRow, ...]
    total: int
    next_cursor: str | None


class Changes(msgspec.Struct, frozen=True):
    """What one check for commits of other processes found."""

    number: int
    """The number to pass to the next check; if it has not changed, nothing was committed."""
    executions: frozenset[str] | None = None
    """The executions that may have changed; None if any execution, or a grant, may have changed."""
    has_unowned: bool = True
    """Whether one of `executions` may be running without an owner."""


class Log(msgspec.Struct, frozen=True):
    """All that the log says about an execution."""

    header: Header
    recorded: tuple[ev.Recorded, ...]


class Lookups(Protocol):
    """The read-only part of a store. Every failure of the storage medium is a `StoreError`."""

    @property
    def clock(self) -> Clock: ...

    async def header(self, execution_id: str) -> Header | None: ...

    async def headers(self, execution_ids: Collection[str]) -> tuple[Header, ...]:
        """Return the headers of those `execution_ids` that exist, in any order."""
        ...

    async def log(self, execution_id: str) -> Log | None:
        """Return the execution's header and all of its events, as of one moment; None for an unknown execution."""
        ...

    async def read(self, execution_id: str, after: int = 0) -> tuple[ev.Recorded, ...]:
        """Return events with a sequence above `after`; empty for an unknown execution."""
        ...

    async def artifact(self, thread_id: str, artifact_id: str) -> Artifact | None:
        """Return an artifact of any execution of the thread, or None. Raises `StoreError` if that is damaged."""
        ...

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        """Return executions of the thread, oldest first; empty for an unknown thread."""
        ...

    async def executions(self, principal: str | None, limit: int) -> tuple[Header, ...]:
        """Return executions of the principal, or of everybody, newest first."""
        ...

    async def list_executions(self, only: ExecutionFilter, *, limit: int = 25, cursor: str | None = None) -> ListedPage:
        """Return executions with the facts that a list shows, most recent activity first, without reading any log.

        Raises `InvalidArguments` for a foreign cursor.
        """
        ...

    async def list_hosts(self) -> tuple[str, ...]:
        """Return the hosts of the newest executions, each once, sorted."""
        ...

    async def walk(self, after: str, limit: int) -> tuple[Header, ...]:
        """Return executions with an id above `after`, sorted by id, to visit all without holding all in memory."""
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
        """Return ids of any owner that start with `beginning`, at most `limit` of each kind, sorted by kind and id."""
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
        """Return closed questions to people, most recently closed first; `total` counts only the rows of this page.

        Raises `InvalidArguments` for a foreign cursor.
        """
        ...

    async def close(self) -> None: ...


class Store(Lookups, Protocol):
    """Logs of executions, and the small table rows needed to find them.

    Guarantees:
    * Acknowledged means committed: if a call returns, its change is durable; if it raises, it has changed nothing.
    * `append` is atomic and conditional: its transaction checks version, lease and guards; a writer that loses the race
      gets `VersionConflict`, `LeaseLost` or `GuardFailed`, and nothing is merged.
    * At most one unfinished execution per thread (`ThreadBusy`).
    * A new execution can continue an old one only if the old one is its thread's newest, unchanged (`ThreadMovedOn`).
    * A principal can start only one execution with a key (`KeyUsed`); the transaction that starts it stores the key.
    * Events come back in order, without gaps, equal to what was written.
    * A `ToolCallIntended` with a grant is stored only together with one use of that grant (`GrantUsedUp`).
    * A `ToolCallIntended` with shares of budgets is stored only while the budgets have that much (`BudgetExceeded`),
      one with a business key only while nothing else holds the key (`KeyHeld`). From then on, the call's idempotency
      key holds the shares and the business key, until they expire or an event of the call says that nothing happened.
      Setting the clock back does not make them expire earlier.
    * Notifications are stored in the transaction of the events that they report.
    * Audit rows (`core.execution.audit`, chained by hash) are stored in the transaction of the events that they report.
    * Cancelling a method's call never leaves its transaction open; the transaction may or may not have been committed.
    * Every failure of the medium is a `StoreError` that says what to do.
    """

    async def due(self, limit: int) -> tuple[SuspensionRow, ...]:
        """Return pending suspensions with an alarm that is due or a deadline that has passed.

        They come in rounds: the earliest of each principal, then the second of each, and so on, each round earliest
        first, so that no principal has to wait for all suspensions of another.
        """
        ...

    async def append(self, append: Append) -> Lease | None:
        """Commit, and return the lease that the writer then holds, or None if it holds none."""
        ...

    async def claim(self, execution_id: str, owner: str, *, silent_s: float = 0.0) -> Lease | None:
        """Take the lease of a running execution that has no valid one; None when there is nothing to take over.

        An owner that may be alive loses its lease only if the lease expired at least `silent_s` seconds ago.
        """
        ...

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        """Take the leases of running executions that no process owns, the oldest first.

        Processes that ask at the same time get different executions. Executions in `skip` are left to other processes.
        """
        ...

    async def expire_dead(self) -> None:
        """End the leases of processes that are gone, so that their executions have no owner."""

    async def confirm(self, lease: Lease) -> None:
        """Extend the lease. Raises `LeaseLost` when another process holds it, or none does."""

    async def orphans(self, limit: int, *, ahead_s: float = 0.0, after: str = "") -> tuple[str, ...]:
        """Return ids of running executions without a valid lease, oldest first; leases of dead processes are not valid.

        `ahead_s` adds executions whose lease ends within that many seconds. `after` is the id of an execution: only
        newer ones are returned, or all if there is no such execution.
        """
        ...

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        """Extend the leases that `owner` holds on these executions, which run in its process.

        If the answer to a takeover was lost, `owner` has leases that it does not know of; these simply expire.
        """

    async def release(self, lease: Lease) -> None: ...

    async def changes(self, since: int) -> Changes:
        """Return what other processes may have changed since the check that returned the number `since`; 0 means
        the very beginning."""
        ...

    async def wait_for_changes(self, since: int, timeout_s: float) -> None:
        """Return once `changes` would report something new, if the store learns of that, or else after `timeout_s`."""

    async def prune(self, before: float) -> int:
        """Delete finished executions last changed before `before`, with all that belongs to them except the audit.

        Record the deletion in the audit in the same transaction, and return the number of executions.
        """
        ...

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        """Store a standing grant together with its audit row."""

    async def revoke_grant(self, grant_id: str, entry: AuditEntry) -> bool:
        """End a grant now, and store the audit row with it; return False if it is unknown or already revoked."""
        ...

    async def grants(self, *, only_open: bool, limit: int = 1000) -> tuple[Grant, ...]:
        """Return grants, newest first; with `only_open`, only those that calls may still use."""
        ...

    async def take_once_key(self, once_key: ev.OnceKey, holder: str, entry: AuditEntry) -> bool:
        """Take a key for something other than a call, and store the audit row; return False if it is already held."""
        ...

    async def forget_once_key(self, key: str, entry: AuditEntry) -> bool:
        """Free a key now, and store the audit row with it; return False when there is no such key."""
        ...

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        """Append audit rows that belong to no execution's log."""

    async def audit_rows(
        self, *, after: int = 0, execution_id: str | None = None, limit: int = 100
    ) -> tuple[AuditRow, ...]:
        """Return rows with a number above `after`, oldest first, as stored and not verified."""
        ...

    async def task_rows(self, execution_id: str, *, after: int = 0, limit: int = 100) -> tuple[AuditRow, ...]:
        """Return the rows about one execution whose kind is in `TASK_KINDS`, in the form of `audit_rows`, without
        reading the whole audit."""
        ...

    async def audit_end(self) -> int:
        """Return the highest number that any audit row has ever had; 0 if there has been none."""
        ...
