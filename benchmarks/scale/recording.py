"""The appends that `PostgresStore` writes for one execution of the job, to be written again for other executions."""

import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import getrandbits
from uuid import uuid4

from msgspec.structs import replace

import planwarden
from benchmarks.planwarden_side import resume_one, suspend_one
from benchmarks.workload import FUNCTIONS
from planwarden import Warden
from planwarden.agent.ports.store import Append, Lease
from planwarden.storage.postgres.store import PostgresStore
from planwarden.storage.sql.append import PreparedAppend, prepare


@dataclass(frozen=True, slots=True)
class Recording:
    """Each append of one execution, in order, and the ids in them that belong to it alone."""

    appends: list[PreparedAppend]
    names: list[str]

    def rename(self) -> list[PreparedAppend]:
        """The same appends for another new execution."""
        data = pickle.dumps(self.appends)
        for name in self.names:
            data = data.replace(name.encode(), uuid4().hex[: len(name)].encode())
        # The token names the append.
        return [replace(append, token=getrandbits(63)) for append in pickle.loads(data)]


async def record(url: str) -> Recording:
    """Runs the job once and records its appends."""
    store = PostgresStore.open(url)
    appends: list[PreparedAppend] = []
    original = store.append

    async def write(append: Append) -> Lease | None:
        appends.append(prepare(append))
        return await original(append)

    store.append = write
    mark = planwarden.tool(risk="read", effect="effect")
    with tempfile.TemporaryDirectory(prefix="planwarden-") as home:
        try:
            async with Warden(home=Path(home), tools=[mark(found) for found in FUNCTIONS], store=store) as warden:
                thread_id, suspension_id = await suspend_one(warden)
                execution_id = (await warden.get_execution(thread_id)).execution_id
                await resume_one(warden, thread_id, suspension_id)
        finally:
            await store.close()
    start = appends[0].append.start
    plan = [] if start is None or start.plan is None else [start.plan]
    return Recording(appends, [execution_id, thread_id, suspension_id, *plan])
