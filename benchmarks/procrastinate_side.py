"""The job on procrastinate: a job for each call, which defers the next one; the question ends a job, the answer defers.

Each process is a worker and the caller of its own queue, so that no worker looks for work among others' jobs. `shared`
is the queue for what another process decides or takes over.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.side import CONFIRMATION, FUNCTIONS, HOLD_S, Side, make_order, plan_job, report_effect

CONNECTIONS = 10
CONCURRENCY = 100
HEARTBEAT_S, STALLED_S, SWEEP_S = 1.0, 5.0, 1.0
"""Ten times as often as by default, which is 10 and 30 s; nothing but a program of one's own looks for stalled jobs."""
SHARED = "shared"

STEPS: dict[str, Callable[..., Awaitable[Any]]] = {function.__name__: function for function in FUNCTIONS}


class Procrastinate(Side):
    """A worker and the caller of its own queue."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.queue = f"q{os.getpid()}"
        self._done: dict[str, asyncio.Event] = {}
        self._answers: set[asyncio.Task[int]] = set()
        self._step = app.task(name="step", queue=self.queue)(self._run_step)
        self._act = app.task(name="act", queue=SHARED)(self._run_act)
        self._look_up = app.task(name="look_up", queue=SHARED)(self._run_look_up)

    async def _run_step(self, order: str, number: int) -> None:
        call = plan_job(order)[number]
        if call.tool == CONFIRMATION:
            # The answer comes from outside, so it is not part of this job.
            self._answer(order, number + 1)
            return
        await STEPS[call.tool](**call.arguments)
        if number + 1 < len(plan_job(order)):
            await self._step.defer_async(order=order, number=number + 1)
        else:
            self._done.pop(order).set()

    def _answer(self, order: str, number: int) -> None:
        task = asyncio.create_task(self._step.defer_async(order=order, number=number))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _run_act(self, name: str) -> None:
        report_effect(name)

    async def _run_look_up(self, name: str) -> None:
        report_effect(name)
        await asyncio.sleep(HOLD_S)

    async def run_one(self) -> None:
        order = make_order()
        done = self._done[order] = asyncio.Event()
        await self._step.defer_async(order=order, number=0)
        await done.wait()

    async def wait(self, name: str) -> str:
        return name

    async def decide(self, waiting: str) -> None:
        await self._act.defer_async(name=waiting)

    async def hold(self, name: str) -> None:
        await self._look_up.defer_async(name=name)

    async def retry_stalled(self) -> None:
        """Retries the jobs of workers that are gone, as procrastinate's documentation shows, but more often."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for job in await self._app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_S):
                await self._app.job_manager.retry_job(job)


@asynccontextmanager
async def open_side(_: str, url: str) -> AsyncGenerator[Procrastinate]:
    """Open a worker."""
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
    app = App(connector=PsycopgConnector(conninfo=url, min_size=CONNECTIONS, max_size=CONNECTIONS))
    side = Procrastinate(app)
    async with app.open_async():
        if not await app.check_connection_async():
            with suppress(Exception):
                await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(
            app.run_worker_async(
                queues=[side.queue, SHARED],
                concurrency=CONCURRENCY,
                install_signal_handlers=False,
                update_heartbeat_interval=HEARTBEAT_S,
                stalled_worker_timeout=STALLED_S,
                delete_jobs="never",
                shutdown_graceful_timeout=0,
            )
        )
        sweep = asyncio.create_task(side.retry_stalled())
        try:
            yield side
        finally:
            for task in (sweep, worker):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
