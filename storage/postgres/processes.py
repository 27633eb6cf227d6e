"""What processes say of themselves, beside the advisory lock that shows that they live."""

import msgspec

from planwarden.agent.common.errors import StoreError
from planwarden.storage.ports.processes import ProcessFacts
from planwarden.storage.postgres.liveness import LockLiveness
from planwarden.storage.sql.database import Database

FORGOTTEN_S = 60.0
"""Seconds after its start from which a dead process is forgotten."""


class PostgresProcesses:
    """Implements `ProcessRegistry`, and `Attendance` for schedules."""

    def __init__(self, database: Database, liveness: LockLiveness) -> None:
        self._database = database
        self._liveness = liveness

    async def publish(self, facts: ProcessFacts) -> None:
        await self._liveness.announce(facts.owner)
        text = msgspec.json.encode(facts).decode()
        await self._database.write(lambda transaction: transaction.execute("publish", (facts.owner, text)).rowcount)
        await self._database.write(lambda transaction: transaction.execute("forget_dead", (FORGOTTEN_S,)).rowcount)

    async def attend(self) -> None:
        """Do nothing: every process that is published starts what is due."""

    async def is_attended(self) -> bool:
        return bool(await self.living())

    async def living(self) -> tuple[ProcessFacts, ...]:
        rows = await self._database.fetch("processes")
        try:
            found = [msgspec.json.decode(row[0], type=ProcessFacts) for row in rows]
        except msgspec.MsgspecError as error:
            raise StoreError(f"what a process said of itself is damaged: {error}; restart the processes") from error
        return tuple(sorted(found, key=lambda facts: (facts.started_at, facts.owner), reverse=True))
