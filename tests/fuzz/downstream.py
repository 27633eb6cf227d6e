"""A downstream server that answers calls and listings with broken messages; a child process."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

import planwarden
from planwarden.agent.common.errors import InvalidPlan
from planwarden.server.settings.configuration import load_settings
from planwarden.storage.sqlite.store import MemoryStore
from tests.fuzz.entrance import Wrong, check_error
from tests.fuzz.inputs import PLANS, Mutator
from tests.support.paths import DOUBLES, ROOT
from tests.support.wardens import plan, tool_step
from tests.tools.downstream.support import Place

SETTINGS = """
[servers.d]
trusted = true
[tools."d_echo"]
timeout_s = 0.5
"""
WAIT_S = 20.0
STEP_CODES = frozenset({"timeout", "cancelled", "tools_not_called"})
"""Codes that only calls and steps can have."""


class Downstream:
    """Each input is a call; the seed that it passes decides what the server sends."""

    def __init__(self, home: Path, tasks: TaskGroup) -> None:
        self._home = home
        self._tasks = tasks
        self._may_end, self._has_ended = anyio.Event(), anyio.Event()
        self._has_ended.set()

    async def open(self) -> None:
        """Starts anew, with a server that has not misbehaved yet."""
        await self.close()
        self._may_end, self._has_ended = anyio.Event(), anyio.Event()
        self._warden = await self._tasks.start(self._keep_open)

    async def _keep_open(self, *, task_status: TaskStatus[planwarden.Warden]) -> None:
        """In a task of its own: an input that opens a warden anew must not leave it inside its own time limit."""
        settings = load_settings(home=self._home, environment={})
        async with planwarden.Warden(settings=settings, store=MemoryStore()) as warden:
            task_status.started(warden)
            await self._may_end.wait()
        self._has_ended.set()

    async def close(self) -> None:
        self._may_end.set()
        await self._has_ended.wait()

    async def send(self, mutator: Mutator) -> str:
        seed = str(mutator.random.random())
        mutator.sent = f"random_server, seed {seed}"
        steps = plan(tool_step("a", "d_echo", {"seed": seed}))
        try:
            view = await self._warden.execute_plan(steps, wait_seconds=WAIT_S)
        except InvalidPlan as error:
            # A broken listing takes the server's tools away.
            await self.open()
            return check_error(error.code, error.message)
        if view.status in ("running", "planned"):
            raise Wrong(f"the execution is still {view.status}: {view}")
        if view.status == "suspended":
            await self._warden.cancel_execution(view.thread_id)
        error = view.steps[0].error or view.error
        if error is None or error.code in STEP_CODES:
            return view.status if error is None else error.code
        return check_error(error.code, error.message)

    async def check_alive(self) -> None:
        view = await self._warden.execute_plan(PLANS[0], wait_seconds=WAIT_S)
        if view.status != "completed":
            raise Wrong(f"an ordinary plan came to {view}")


@asynccontextmanager
async def open_downstream(home: Path) -> AsyncGenerator[Downstream]:
    place = Place(home, settings=SETTINGS)
    place.configure({"d": {"command": sys.executable, "args": [str(DOUBLES / "random_server.py"), str(ROOT)]}})
    async with anyio.create_task_group() as tasks:
        downstream = Downstream(home, tasks)
        await downstream.open()
        yield downstream
        await downstream.close()
