"""What hosts reported of their sessions: the calls that they made and how those ended, and which folders people trust.

A call has a slot of its session's ring, so that the newest `MAX_CALLS` stay. Everything of a session is kept a week
from its last event.
"""

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.struct import JsonValue
from planwarden.storage.sql.records import Columns, ExpiringRecord, Record, RecordStore, RecordTransaction

MAX_CALLS = 2_000
KEEP_S = 7 * 86_400.0


class HostSession(ExpiringRecord, frozen=True, kw_only=True):
    """One session of a host."""

    columns = Columns("host_session", "session", remedy="it is void after a week")

    session: str
    """Digest of the host and of its own id."""
    host: str
    folder: str
    """Where it began."""
    record: str = ""
    """The file in which the host itself records the calls; empty where its hooks say enough."""
    calls: int = 0
    """How many calls were recorded, deleted ones too."""
    refusals: int = 0
    """How often the stop that the host is about to make was refused."""
    waived: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """The reasons by the names of the promises that a person waived for this session."""
    question: str = ""
    """The promises that a person was asked about."""
    updated_at: float = 0.0


class SessionCall(ExpiringRecord, frozen=True, kw_only=True):
    """One call of a session."""

    columns = Columns("host_call", "slot", "session", remedy="it is void after a week")

    slot: str
    session: str
    number: int
    """From 1, in the order in which the host reported them."""
    call: dict[str, JsonValue]


class TrustedFolder(Record, frozen=True, kw_only=True):
    """The promises of a folder as a person read them at a terminal. The text counts, not what the file says later."""

    columns = Columns("trusted_folder", "folder", remedy="trust it again with planwarden guard trust-folder")

    folder: str
    text: str
    trusted_at: float


class HostSessions(RecordStore[HostSession]):
    """The sessions of hosts. Laws: calls keep their order; two sessions never see each other's calls."""

    def __init__(self, store: object) -> None:
        super().__init__(store, HostSession)
        self._calls = RecordStore(store, SessionCall)

    async def add_call(self, session: HostSession, call: dict[str, JsonValue]) -> None:
        """Record a call of the session, which is made if it is new."""
        now = self.clock.now()

        def add(transaction: RecordTransaction) -> bool:
            stored = transaction.find(HostSession, session.session, now) or session
            number = stored.calls + 1
            slot = f"{session.session}:{number % MAX_CALLS:04d}"
            transaction.put(replace(stored, calls=number, updated_at=now, expires_at=now + KEEP_S))
            return transaction.put(
                SessionCall(slot=slot, session=session.session, number=number, call=call, expires_at=now + KEEP_S)
            )

        await self.write(add, lock=f"host_session:{session.session}")

    async def list_calls(self, session: str) -> list[dict[str, JsonValue]]:
        """Return the calls in the order in which the host reported them."""
        return [record.call for record in sorted(await self._calls.all(session), key=lambda record: record.number)]

    async def save(self, session: HostSession) -> None:
        """Store what a stop changed; calls that were recorded at the same time stay counted."""
        now = self.clock.now()

        def put(transaction: RecordTransaction) -> bool:
            stored = transaction.find(HostSession, session.session, now) or session
            transaction.delete_due(SessionCall, now)
            transaction.delete_due(HostSession, now)
            return transaction.put(replace(session, calls=stored.calls, updated_at=now, expires_at=now + KEEP_S))

        await self.write(put, lock=f"host_session:{session.session}")
