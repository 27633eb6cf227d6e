"""What gates and the guard remember about hosts: running gates, delivered results, definitions that people rely on,
stops of sessions, and trusted folders."""

import msgspec

from planwarden.storage.sql.records import Columns, ExpiringRecord, Record, RecordStore, RecordTransaction

KEEP_DELIVERIES_S = 24 * 3600.0
KEEP_SESSIONS_S = 7 * 86_400.0
"""How many seconds after a session's last stop its record expires."""


class RunningGate(Record, frozen=True, kw_only=True):
    """The server that a gate wraps while the gate's process, `owner`, lives."""

    columns = Columns("gate", "owner")

    owner: str
    server: str
    """The prefix of the server's tool names. Empty if the gate wraps the servers of planwarden.json, which other
    processes use too: then only the calls of the gate's own hosts are reserved for the gate."""
    listing: str = ""
    """Digest of the tools that the server lists."""


class DeliveredResult(ExpiringRecord, frozen=True, kw_only=True):
    """When a host first got the result of a gated call."""

    columns = Columns("gate_delivery", "execution_id")

    execution_id: str
    delivered_at: float


class TrustedDefinition(Record, frozen=True, kw_only=True):
    """The definition of a gated tool that a person last approved, or that this home saw first."""

    columns = Columns("gate_definition", "tool")

    tool: str
    """Digest of the server and of the server's own name for the tool."""
    origin: str
    """Digest of what the server said about the tool."""
    digest: str
    """Digest of the whole definition, with the operator's settings."""


class RunningGates(RecordStore[RunningGate]):
    """The gates that run now."""

    def __init__(self, store: object) -> None:
        super().__init__(store, RunningGate)

    async def open(self, owner: str, server: str, listing: str = "") -> None:
        """Record that this process wraps the server, and what the server lists now."""
        await self.liveness.announce(owner)
        gate = RunningGate(owner=owner, server=server, listing=listing)
        await self.write(lambda transaction: transaction.put(gate))

    async def close(self, owner: str) -> None:
        await self.write(lambda transaction: transaction.delete(RunningGate, owner))

    async def list_living(self) -> tuple[RunningGate, ...]:
        """Return the gates whose processes live, and delete the others."""
        living: list[RunningGate] = []
        for gate in await self.all():
            if await self.liveness.is_dead(gate.owner):
                await self.close(gate.owner)
            else:
                living.append(gate)
        return tuple(living)


class Deliveries(RecordStore[DeliveredResult]):
    """Which results hosts got. Guarantees: only a first delivery counts; it is remembered for `KEEP_DELIVERIES_S`."""

    def __init__(self, store: object) -> None:
        super().__init__(store, DeliveredResult)

    async def note(self, execution_id: str) -> None:
        """Record that a host got the result now, unless a host got it before."""
        now = self.clock.now()
        record = DeliveredResult(execution_id=execution_id, delivered_at=now, expires_at=now + KEEP_DELIVERIES_S)

        def insert(transaction: RecordTransaction) -> bool:
            transaction.delete_due(DeliveredResult, now)
            return transaction.insert(record)

        await self.write(insert)


class TrustedDefinitions(RecordStore[TrustedDefinition]):
    """The definitions that people rely on, one for each tool of each server."""

    def __init__(self, store: object) -> None:
        super().__init__(store, TrustedDefinition)

    async def find_or_add(self, record: TrustedDefinition) -> TrustedDefinition:
        """Return the stored definition of the tool; if there is none, store and return `record`."""
        stored = await self.find(record.tool)
        if stored is not None:
            return stored
        await self.write(lambda transaction: transaction.insert(record))
        return await self.find(record.tool) or record

    async def approve(self, record: TrustedDefinition) -> None:
        """Store the definition that a person approved; it replaces the one that people relied on before."""
        await self.write(lambda transaction: transaction.put(record))


class HostSession(ExpiringRecord, frozen=True, kw_only=True):
    """One session of a host."""

    columns = Columns("host_stops", "session", remedy="it is void after a week")

    session: str
    """Digest of the host and of the host's own id for the session."""
    host: str
    folder: str
    """The folder in which the session began."""
    name: str = ""
    """The beginning of the host's own id for the session; empty if it cannot be shown."""
    record: str = ""
    """The file that records the session's calls: the host's own file, or one in planwarden's home."""
    refusals: int = 0
    """How often the host tried to stop and was refused, since it was last allowed to stop."""
    waived: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """By the full name of a promise: why a person waived it for this session."""
    question: str = ""
    """The names of the promises that a person was asked about."""
    updated_at: float = 0.0


class TrustedFolder(Record, frozen=True, kw_only=True):
    """The promises of a folder as a person read them at a terminal. This text counts, whatever the file says later."""

    columns = Columns("trusted_folder", "folder", remedy="trust it again with planwarden guard trust-folder")

    folder: str
    text: str
    trusted_at: float
