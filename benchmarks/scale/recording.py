"""The appends that `PostgresStore` sends for one execution of the job, to be sent again for other new executions."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import planwarden
from benchmarks.planwarden_side import resume_one, suspend_one
from benchmarks.workload import FUNCTIONS
from planwarden import Warden
from planwarden.agent.ports.store import Append, Lease
from planwarden.storage.postgres.append import encode_append
from planwarden.storage.postgres.store import PostgresStore


@dataclass(frozen=True, slots=True)
class Recording:
    """The text of each append of one execution, in order, and the ids in them that belong to it alone."""

    texts: list[str]
    names: list[str]

    def rename(self) -> list[str]:
        """The same appends for another new execution."""
        renamed: list[str] = []
        ids = {name: uuid4().hex[: len(name)] for name in self.names}
        for number, text in enumerate(self.texts):
            for name, new in ids.items():
                text = text.replace(name, new)
            # The token names the append.
            begin = text.index('"token":"') + len('"token":"')
            renamed.append(f"{text[:begin]}{uuid4().hex[:14]}{number:02}{text[begin + 16 :]}")
        return renamed


async def record(url: str) -> Recording:
    """Runs the job once and records its appends."""
    store = PostgresStore.open(url)
    texts: list[str] = []
    original = store.append

    async def write(append: Append) -> Lease | None:
        texts.append(encode_append(append))
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
    plan = json.loads(texts[0])["start"]["plan"]
    return Recording(texts, [execution_id, thread_id, suspension_id, plan])
