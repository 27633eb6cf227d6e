"""What `Service` accepts: sizes of texts and pages, and how often a caller may try to decide for a person."""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Literal, cast

from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, RateLimited
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.ports.store import Store, SystemKey
from planwarden.storage.sql.records import Columns, ExpiringRecord, HasRecords, RecordStore, RecordTransaction

MAX_GOAL_CHARS = 20_000
MAX_KEY_CHARS = 200
MAX_REASON_CHARS = 2_000
MAX_QUERY_CHARS = 1_000
MAX_PAGE = 100
MAX_WAIT_S = 300.0
AttemptKind = Literal["approval", "question", "unanswered"]
"""What a caller tried: to decide for a person, to have a person asked, or to get an answer that no person gave."""
_WHAT: Mapping[AttemptKind, str] = {
    "approval": "decided without a person",
    "question": "put to a person in vain",
    "unanswered": "put to a person in vain",
}
ATTEMPTS, ATTEMPTS_S = 5, 600.0
"""How many attempts of one kind a caller without authority has for one suspension, and how many seconds each counts."""


class DecisionAttempts(ExpiringRecord, frozen=True, kw_only=True):
    """The times at which a caller tried to decide a question for a person, kept for as long as they count."""

    columns = Columns("attempts", "attempts_id")

    attempts_id: str
    times: tuple[float, ...] = ()
    is_limit_told: bool = False
    """Whether a row of the audit already says that there were too many."""


class AttemptLimiter:
    """Counts decisions that a caller sent although only a person can decide.

    All processes that share a store count together, if the store keeps records.
    """

    def __init__(self, store: Store, program: Callable[[], str]) -> None:
        """Set up a limiter; `program` returns the first words of the command with which a person decides."""
        self._store = store
        self._program = program
        self._here: dict[str, DecisionAttempts] = {}
        """The attempts by id, for a store that keeps no records, such as one that an embedding program passes."""

    async def count(
        self, suspension_id: str, kind: AttemptKind = "approval", *, entry: AuditEntry | None = None
    ) -> None:
        """Count one attempt, and audit `entry`. The first attempt over the limit gets a row that says so; later
        attempts get no row. Each kind has its own count, because asking a person once can use up attempts of two kinds.

        Raises:
            RateLimited: there were `ATTEMPTS` attempts of this kind within `ATTEMPTS_S` seconds.
        """
        now, attempts_id = self._store.clock.now(), f"{kind} {suspension_id}"

        def add(transaction: RecordTransaction | None) -> tuple[float | None, tuple[AuditEntry, ...]]:
            """Return a pair: None or, if the limit is reached, the time of the oldest attempt that counts; and the
            audit rows of this attempt. A transaction also stores these rows."""
            here = self._here.get(attempts_id)
            stored = here if transaction is None else transaction.find(DecisionAttempts, attempts_id)
            record = stored or DecisionAttempts(attempts_id=attempts_id, expires_at=now)
            times = [at for at in record.times if now - at < ATTEMPTS_S]
            first = times[0] if len(times) >= ATTEMPTS else None
            if first is None:
                times.append(now)
            elif entry is None or record.is_limit_told:
                return first, ()
            ends = {} if first is None else {"noMoreRowsUntil": first + ATTEMPTS_S}
            rows = () if entry is None else (replace(entry, facts={**entry.facts, **ends}),)
            is_told = first is not None
            record = replace(record, times=tuple(times), is_limit_told=is_told, expires_at=times[-1] + ATTEMPTS_S)
            if transaction is None:
                self._here = {key: other for key, other in self._here.items() if other.expires_at > now}
                self._here[attempts_id] = record
            else:
                transaction.delete_due(DecisionAttempts, now)
                transaction.put(record)
                transaction.add_audit(rows, now)
            return first, rows

        if isinstance(self._store, HasRecords):
            records = RecordStore(self._store, DecisionAttempts)
            first, _ = await records.write(add, lock=f"attempts {attempts_id}")
        else:
            first, rows = add(None)
            await self._store.audit(rows)
        if first is not None:
            raise RateLimited(
                f"suspension {suspension_id!r} was {_WHAT[kind]} {ATTEMPTS} times; a person must decide: "
                f"`{self._program()} approve {suspension_id}`",
                details={"retryAfterSeconds": round(ATTEMPTS_S - (now - first))},
            )


def check_text(text: object, name: str, limit: int, *, may_be_empty: bool = False) -> None:
    if not isinstance(text, str):
        raise InvalidArguments(f"'{name}' must be text, not {type(text).__name__}")
    if not may_be_empty and not text.strip():
        raise InvalidArguments(f"'{name}' is empty")
    if len(text) > limit:
        raise LimitExceeded(f"'{name}' has {len(text)} characters, the limit is {limit}")


def copy_mapping(value: object, name: str) -> dict[str, JsonValue] | None:
    """Return a copy of the mapping, or None for None. Raises `InvalidArguments` if the value is not a mapping."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidArguments(f"'{name}' must be a mapping, not {type(value).__name__}")
    return dict(cast("Mapping[str, JsonValue]", value))


def check_key(key: object) -> None:
    """Raise `InvalidArguments` unless the key can be stored and shown, and is not reserved for planwarden."""
    if not isinstance(key, str):
        raise InvalidArguments(f"'key' must be text of 1 to {MAX_KEY_CHARS} characters")
    if not key.strip():
        raise InvalidArguments(f"'key' is empty; choose 1 to {MAX_KEY_CHARS} characters, or leave it out")
    if len(key) > MAX_KEY_CHARS:
        raise InvalidArguments(f"'key' has {len(key)} characters, the limit is {MAX_KEY_CHARS}")
    if key.startswith(SystemKey.PREFIX) and not isinstance(key, SystemKey):
        raise InvalidArguments(f"'key' begins with {SystemKey.PREFIX!r}, as only planwarden's own keys do")
    for position, character in enumerate(key, 1):
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise InvalidArguments(f"'key' has the control character U+{ord(character):04X} at place {position}")


def check_wait(wait_seconds: float | None) -> None:
    if wait_seconds is not None and not 0 <= wait_seconds <= MAX_WAIT_S:
        raise InvalidArguments(f"waitSeconds must be between 0 and {MAX_WAIT_S:.0f}")


def check_limit(limit: int, most: int = MAX_PAGE) -> None:
    if not 1 <= limit <= most:
        raise InvalidArguments(f"'limit' must be between 1 and {most}")


def parse_offset(cursor: str | None, total: int) -> int:
    """Return the position that a cursor of `search_tools` means."""
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or int(cursor[:9]) > total:
        raise InvalidArguments(f"cursor {cursor[:64]!r} does not come from this server; start without a cursor")
    return int(cursor[:9])
