"""The job on DBOS: one workflow, each call a step, the question a `recv` that a `send` answers.

Configured for speed: asynchronous workflow and steps on the event loop, LISTEN/NOTIFY, as many connections as helped,
no traces, no log lines. A caller that wants the question would also need a `set_event`; here it is told for nothing.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from dbos import DBOS, SetWorkflowID
from psycopg.conninfo import conninfo_to_dict

from benchmarks.side import CONFIRMATION, FUNCTIONS, Side, make_order, plan_job, report_effect

POOL = 20
TIMEOUT_S = 60.0

_asked: dict[str, asyncio.Event] = {}
"""By workflow, set when it comes to its question."""

TOOLS: tuple[Any, ...] = FUNCTIONS
STEPS: dict[str, Any] = {function.__name__: DBOS.step()(function) for function in TOOLS}


@DBOS.workflow()
async def work_through(order: str) -> list[Any]:
    """The five steps for one order."""
    results: list[Any] = []
    for call in plan_job(order):
        if call.tool == CONFIRMATION:
            await _ask()
        else:
            results.append(await STEPS[call.tool](**call.arguments))
    return results


@DBOS.step()
async def act(name: str) -> str:
    """The effect after a decision."""
    report_effect(name)
    return name


@DBOS.workflow()
async def wait_and_act() -> str:
    """Waits for a decision that another process sends."""
    await _ask()
    return await act(str(DBOS.workflow_id))


async def _ask() -> None:
    workflow_id = str(DBOS.workflow_id)
    if workflow_id in _asked:
        _asked[workflow_id].set()
    if await DBOS.recv_async(timeout_seconds=TIMEOUT_S) != "approved":
        raise RuntimeError("nobody approved in time")


class Dbos(Side):
    """Its workers do not take executions of others over: that is left to a restart or to its hosted service."""

    async def run_one(self) -> None:
        workflow_id = str(uuid4())
        asked = _asked[workflow_id] = asyncio.Event()
        with SetWorkflowID(workflow_id):
            handle = await DBOS.start_workflow_async(work_through, make_order())
        await asked.wait()
        del _asked[workflow_id]
        await DBOS.send_async(workflow_id, "approved")
        results = await handle.get_result()
        if len(results) != len(FUNCTIONS):
            raise RuntimeError(f"the workflow did not complete: {results}")

    async def wait(self, name: str) -> str:
        asked = _asked[name] = asyncio.Event()
        with SetWorkflowID(name):
            await DBOS.start_workflow_async(wait_and_act)
        await asked.wait()
        return name

    async def decide(self, waiting: str) -> None:
        await DBOS.send_async(waiting, "approved")


@asynccontextmanager
async def open_side(_: str, url: str) -> AsyncGenerator[Dbos]:
    """Launch DBOS, with an executor id of its own."""
    server = conninfo_to_dict(url)
    logging.getLogger("dbos").setLevel(logging.ERROR)
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"postgresql://{server['user']}@/{server['dbname']}?host={server['host']}",
            "executor_id": str(os.getpid()),
            "sys_db_pool_size": POOL,
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )
    DBOS.launch()
    try:
        yield Dbos()
    finally:
        DBOS.destroy()
