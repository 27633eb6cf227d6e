"""What the parts of an execution cost on this machine, for the simulation: seconds of CPU, and of waiting for the disk.

The appends that `PostgresStore` writes for one execution are recorded, and written again for others. CPU of the
database is that of all of its processes, as Linux counts it, so that a busy machine changes it little.
"""

import os
import pickle
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import getrandbits
from uuid import uuid4

from msgspec.structs import replace

from benchmarks.harness import Child
from benchmarks.planwarden_postgres import open_side
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.ports.store import Append, Lease
from planwarden.storage.postgres.connection import Connection, connect
from planwarden.storage.postgres.control_connection import send_hint
from planwarden.storage.postgres.writer import PostgresTransaction
from planwarden.storage.sql.append import PreparedAppend, prepare, write_appends

REPEATS = 40
GROUP = 16
HINTS, HINT_PAUSE_S = 200, 0.008
"""Hints that a process without work is sent, each after the one before was looked at."""
LISTENERS = 20


@dataclass(frozen=True, slots=True)
class Recording:
    """Each append of one execution, in order, and the ids in them that belong to it alone."""

    appends: list[PreparedAppend]
    names: list[str]

    def rename(self) -> list[PreparedAppend]:
        """Return the same appends for another new execution."""
        data = pickle.dumps(self.appends)
        for name in self.names:
            data = data.replace(name.encode(), uuid4().hex[: len(name)].encode())
        # The token names the append.
        return [replace(append, token=getrandbits(63)) for append in pickle.loads(data)]


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, by one of it."""

    process_cpu: float
    """An execution, in the process that runs it."""
    appends: int
    """Of an execution."""
    group_cpu: float
    """A group of appends in the database, without its appends."""
    append_cpu: float
    """One append of it."""
    flush: float
    """Waiting for the disk."""
    hint_cpu: float
    """In the database, to send a hint."""
    listener_cpu: float
    """In the database, to hand a hint to one process that listens."""
    look_cpu: float
    """In a process, to look at the hints that came."""
    look_database_cpu: float
    """In the database, for that look."""


async def record(url: str) -> Recording:
    """Run the job once and record its appends."""
    appends: list[PreparedAppend] = []
    async with open_side("both", url) as side:
        store = side.warden.service.store
        original = store.append

        async def write(append: Append) -> Lease | None:
            appends.append(prepare(append))
            return await original(append)

        store.append = write
        thread_id, suspension_id = await side.suspend_one()
        execution_id = (await side.warden.get_execution(thread_id)).execution_id
        await side.resume_one(thread_id, suspension_id)
    start = appends[0].append.start
    plan = [] if start is None or start.plan is None else [start.plan]
    return Recording(appends, [execution_id, thread_id, suspension_id, *plan])


def read_cpu(folder: Path) -> float:
    """Return seconds of CPU of all processes that work in the folder or below it."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "cwd").readlink()).startswith(str(folder)):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        except OSError:
            # It has ended.
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def record_costs(url: str, folder: Path, recording: Recording, process_cpu: float) -> Costs:
    """Return the costs. `url` has planwarden's tables, `folder` its server's data, and `process_cpu` is known."""

    def measure(times: int, action: Callable[[], object]) -> float:
        began = read_cpu(folder)
        for _ in range(times):
            action()
        return (read_cpu(folder) - began) / times

    with connect(url, prepares=True) as connection:
        one, many = (_append(connection, measure, recording, size) for size in (1, GROUP))
        append_cpu = max(0.0, (many - one) / (GROUP - 1))
        flush = _time_commit(connection, "on") - _time_commit(connection, "off")
        hint_cpu = measure(500, lambda: _hint(connection))
        with ExitStack() as stack:
            for _ in range(LISTENERS):
                stack.enter_context(connect(url)).execute("LISTEN planwarden")
            heard = measure(200, lambda: _hint(connection))
        look_cpu, look_database_cpu = _look(connection, folder, url)
    return Costs(
        process_cpu=process_cpu,
        appends=len(recording.appends),
        group_cpu=max(0.0, one - append_cpu),
        append_cpu=append_cpu,
        flush=max(0.0, flush),
        hint_cpu=hint_cpu,
        listener_cpu=max(0.0, (heard - hint_cpu) / LISTENERS),
        look_cpu=look_cpu,
        look_database_cpu=max(0.0, look_database_cpu - hint_cpu),
    )


def _hint(connection: Connection) -> None:
    send_hint(connection, "bench", ["x" * 32])


def _append(
    connection: Connection, measure: Callable[[int, Callable[[], object]], float], recording: Recording, size: int
) -> float:
    """Return seconds of CPU of a group of so many appends."""
    transaction = PostgresTransaction(connection)
    connection.execute("SET synchronous_commit = off")
    executions = REPEATS if size > 1 else REPEATS * 4
    groups = iter([[recording.rename() for _ in range(size)] for _ in range(executions)])

    def write() -> None:
        for appends in zip(*next(groups), strict=True):
            with connection.pipeline():
                connection.execute("BEGIN")
                outcomes = write_appends(transaction, appends, (None, None), 15.0)
                connection.execute("COMMIT")
            if any(isinstance(outcome, PlanwardenError) for outcome in outcomes):
                raise RuntimeError("an append was refused; the recording does not fit")

    return measure(executions, write) / len(recording.appends)


def _time_commit(connection: Connection, synchronous: str) -> float:
    connection.execute(f"SET synchronous_commit = {synchronous}".encode())
    seconds: list[float] = []
    for number in range(REPEATS):
        began = time.perf_counter()
        connection.execute("UPDATE audit_state SET last_sequence = last_sequence + 0 WHERE $1 >= 0", (number,))
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _look(connection: Connection, folder: Path, url: str) -> tuple[float, float]:
    """Return seconds of CPU of a process, and of the database, for a hint about somebody else's execution."""
    with Child("planwarden_postgres", "both", url) as child:

        def spend(action: Callable[[], object]) -> tuple[float, float]:
            began, began_database = child.call("look")["total_cpu"], read_cpu(folder)
            for _ in range(HINTS):
                action()
                time.sleep(HINT_PAUSE_S)
            return child.call("look")["total_cpu"] - began, read_cpu(folder) - began_database

        time.sleep(1.0)
        idle, busy = spend(lambda: None), spend(lambda: _hint(connection))
    process, database = (max(0.0, (second - first) / HINTS) for first, second in zip(idle, busy, strict=True))
    return process, database
