"""Which driver sends a group of appends: psycopg on a thread, as planwarden's writer does it, or asyncpg on the loop.

Both send the same statement with the group as one parameter, and give the answers to those who wait, in groups of 1 and
of 16 that the same executions make. Commits do not wait for the disk here, which would hide the drivers. asyncpg keeps
statements prepared, which a pooler may not allow, or, `uncached`, prepares each one, as planwarden must.
"""

# asyncpg ships no stubs for pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.scale.recording import Recording
from planwarden.storage.postgres.connection import SQL
from planwarden.storage.postgres.writer import AppendRequest, PostgresWriter

GROUPS = (1, 16)
EXECUTIONS = {1: 40, 16: 20}
"""How many executions, or groups of executions, a sample has, by the size of the group."""
LEASE_S = 15.0

Send = Callable[[str], Awaitable[str]]
"""Sends an append and returns what became of it."""


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncGenerator[Send]:
    """planwarden's writer."""
    writer = PostgresWriter(
        url,
        clock=lambda: (None, None),
        lease_s=LEASE_S,
        limit_notifications=lambda transaction: None,
        committed=lambda connection, stored: None,
    )

    async def send(text: str) -> str:
        return (await writer.append(AppendRequest(text, "", is_notifying=False)))[0]

    yield send
    await writer.close()


@asynccontextmanager
async def _with_asyncpg(url: str, **options: Any) -> AsyncGenerator[Send]:
    found = conninfo_to_dict(url)
    connect: Callable[..., Awaitable[Any]] = asyncpg.connect
    connection = await connect(host=found["host"], user=found["user"], database=found["dbname"], **options)
    waiting: list[tuple[str, asyncio.Future[str]]] = []
    is_needed = asyncio.Event()

    async def write() -> None:
        while True:
            await is_needed.wait()
            is_needed.clear()
            group = waiting.copy()
            waiting.clear()
            text = f"[{','.join(text for text, _ in group)}]"
            for place, outcome, _, _ in await connection.fetch(SQL["append"], text, None, None, LEASE_S):
                group[place - 1][1].set_result(outcome)

    async def send(text: str) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting.append((text, future))
        is_needed.set()
        return await future

    task = asyncio.create_task(write())
    yield send
    task.cancel()
    await connection.close()


def with_asyncpg(url: str) -> AbstractAsyncContextManager[Send]:
    """asyncpg as it is by default."""
    return _with_asyncpg(url)


def with_asyncpg_uncached(url: str) -> AbstractAsyncContextManager[Send]:
    """asyncpg behind any pooler."""
    return _with_asyncpg(url, statement_cache_size=0)


DRIVERS: dict[str, Callable[[str], AbstractAsyncContextManager[Send]]] = {
    "psycopg on a thread": with_psycopg,
    "asyncpg": with_asyncpg,
    "asyncpg, uncached": with_asyncpg_uncached,
}

Found = dict[str, dict[int, dict[str, list[float]]]]
"""By driver, size of the group, and `wall` or `cpu`: seconds of this process for one group."""


async def compare(url: str, recording: Recording, rounds: int) -> Found:
    """The drivers take turns in every round; the first round is not counted. `url` has planwarden's tables."""
    found: Found = {name: {size: {"wall": [], "cpu": []} for size in GROUPS} for name in DRIVERS}
    for turn in range(rounds + 1):
        for name, driver in DRIVERS.items():
            async with driver(url) as send:
                for size in GROUPS:
                    wall, cpu = await _time_groups(send, recording, size)
                    if turn:
                        found[name][size]["wall"].append(wall)
                        found[name][size]["cpu"].append(cpu)
    return found


async def _time_groups(send: Send, recording: Recording, size: int) -> tuple[float, float]:
    planned = [[recording.rename() for _ in range(size)] for _ in range(EXECUTIONS[size])]
    groups = [[texts[place] for texts in together] for together in planned for place in range(len(recording.texts))]
    cpu, start = time.process_time(), time.perf_counter()
    outcomes = [await asyncio.gather(*map(send, group)) for group in groups]
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    if any(outcome != "stored" for group in outcomes for outcome in group):
        raise RuntimeError("an append was refused; the recording does not fit")
    return wall / len(groups), cpu / len(groups)


def medians(found: Found) -> dict[str, dict[str, dict[str, float]]]:
    """Microseconds of one group, for the results file."""
    return {
        name: {
            str(size): {kind: statistics.median(values) * 1e6 for kind, values in kinds.items()}
            for size, kinds in sizes.items()
        }
        for name, sizes in found.items()
    }
