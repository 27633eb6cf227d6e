"""DBOS Transact: https://docs.dbos.dev/ai/hitl and https://docs.dbos.dev/python/examples/agent-inbox"""

import asyncio
from typing import Any

from dbos import DBOS, DBOSClient, SetWorkflowID
from workload import JOB, PATIENCE_S, REFUSED, STEPS, Question, System, commit, reach

RUNNING = ("PENDING", "ENQUEUED", "DELAYED")
STATUS, PENDING = "status", "pending approval"
RUN = {name: DBOS.step(name=name)(step) for name, step in STEPS.items()}


@DBOS.workflow()
def refund_job(order: str) -> str:
    """Run the five steps, with the question before the third."""
    RUN["look_up_order"](order)
    RUN["check_stock"](order)
    with commit("before asking", "asked"):
        DBOS.set_event(STATUS, PENDING)
    approved = DBOS.recv(timeout_seconds=3600)
    DBOS.set_event(STATUS, "answered")
    with commit():
        refund = RUN["send_refund"](order) if approved else REFUSED
    RUN["add_note"](order)
    RUN["summarise"](order)
    return refund


class Adapter(System):
    """A worker launches DBOS, which recovers what was running; a desk is a client, which runs nothing."""

    async def open(self) -> None:
        database = self.url or f"sqlite:///{self.folder / 'dbos.sqlite'}"
        self._api: Any = DBOS if self.works else DBOSClient(system_database_url=database)
        if self.works:
            DBOS(config={"name": "durable", "system_database_url": database, "log_level": "CRITICAL"})
            DBOS.launch()

    async def close(self) -> None:
        self._api.destroy()

    async def advance(self) -> None:
        with SetWorkflowID(JOB):
            handle = await asyncio.to_thread(DBOS.start_workflow, refund_job, JOB)
        async with asyncio.timeout(PATIENCE_S):
            while await self.question() is None:
                if (await asyncio.to_thread(handle.get_status)).status not in RUNNING:
                    break
                await asyncio.sleep(0.005)

    async def question(self) -> Question | None:
        event = await asyncio.to_thread(self._api.get_event, JOB, STATUS, timeout_seconds=0)
        return "approve" if event == PENDING else None

    async def answer(self, yes: bool) -> None:
        await asyncio.to_thread(self._api.send, JOB, yes)
        reach("decided")
        await self.result()

    async def result(self) -> str | None:
        handle = await asyncio.to_thread(self._api.retrieve_workflow, JOB)
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(handle.get_result, polling_interval_sec=0.005)
