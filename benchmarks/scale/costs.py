"""What the parts of an execution cost on this machine, for the simulation: seconds of CPU, and of waiting for the disk.

CPU of the database is that of all of its processes, as Linux counts it, so that a busy machine changes it little.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scale.measure import Child
from benchmarks.scale.recording import Recording
from benchmarks.scale.server import read_cpu
from planwarden.agent.common.errors import PlanwardenError
from planwarden.storage.postgres.connection import Connection, connect
from planwarden.storage.postgres.control import seal, send_hint
from planwarden.storage.postgres.writer import PostgresTransaction
from planwarden.storage.sql.append import write_appends

REPEATS = 40
GROUP = 16
HINTS, HINT_PAUSE_S = 200, 0.008
"""Hints that a process without work is sent, each after the one before was looked at."""
LISTENERS = 20


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
    rows: float
    """Of the audit, by execution."""
    seal_cpu: float
    """In the database, to seal a row."""


def record_costs(url: str, folder: Path, recording: Recording, process_cpu: float) -> Costs:
    """`url` has planwarden's tables, and `folder` the data of its server; `process_cpu` was measured before."""
    with connect(url, prepares=True) as connection:
        one, _ = _append(connection, folder, recording, 1)
        many, rows = _append(connection, folder, recording, GROUP)
        append_cpu = max(0.0, (many - one) / (GROUP - 1))
        began = read_cpu(folder)
        count = connection.execute("SELECT count(*) FROM audit_unsealed").fetchone()
        seal(connection)
        seal_cpu = (read_cpu(folder) - began) / max(1, count[0] if count else 1)
        flush = _time_commit(connection, "on") - _time_commit(connection, "off")
        hint_cpu = _cost(folder, 500, lambda: send_hint(connection, "bench", ["x" * 32]))
        with ExitStack() as stack:
            for _ in range(LISTENERS):
                stack.enter_context(connect(url)).execute("LISTEN planwarden")
            heard = _cost(folder, 200, lambda: send_hint(connection, "bench", ["x" * 32]))
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
        rows=rows,
        seal_cpu=seal_cpu,
    )


def _append(connection: Connection, folder: Path, recording: Recording, size: int) -> tuple[float, float]:
    """Seconds of CPU of a group, and rows of the audit of an execution."""
    transaction = PostgresTransaction(connection)
    connection.execute("SET synchronous_commit = off")
    executions = REPEATS if size > 1 else REPEATS * 4
    planned = [[recording.rename() for _ in range(size)] for _ in range(executions)]
    before = connection.execute("SELECT coalesce(max(number), 0) FROM audit_unsealed").fetchone()
    began = read_cpu(folder)
    for together in planned:
        for place in range(len(recording.appends)):
            with connection.pipeline():
                connection.execute("BEGIN")
                outcomes = write_appends(transaction, [appends[place] for appends in together], (None, None), 15.0)
                connection.execute("COMMIT")
            if any(isinstance(outcome, PlanwardenError) for outcome in outcomes):
                raise RuntimeError("an append was refused; the recording does not fit")
    cpu = (read_cpu(folder) - began) / (executions * len(recording.appends))
    after = connection.execute("SELECT coalesce(max(number), 0) FROM audit_unsealed").fetchone()
    assert before is not None and after is not None
    return cpu, (int(str(after[0])) - int(str(before[0]))) / (executions * size)


def _time_commit(connection: Connection, synchronous: str) -> float:
    connection.execute(f"SET synchronous_commit = {synchronous}".encode())
    taken: list[float] = []
    for number in range(REPEATS):
        began = time.perf_counter()
        connection.execute("UPDATE audit_state SET last_sequence = last_sequence + 0 WHERE $1 >= 0", (number,))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _cost(folder: Path, times: int, action: Callable[[], None]) -> float:
    began = read_cpu(folder)
    for _ in range(times):
        action()
    return (read_cpu(folder) - began) / times


def _look(connection: Connection, folder: Path, url: str) -> tuple[float, float]:
    """Seconds of CPU of a process, and of the database, for a hint about somebody else's execution."""
    with Child("planwarden", url) as child:
        time.sleep(1.0)
        idle, idle_database = child.call("cpu")["cpu"], read_cpu(folder)
        time.sleep(HINTS * HINT_PAUSE_S)
        began, began_database = child.call("cpu")["cpu"], read_cpu(folder)
        for _ in range(HINTS):
            send_hint(connection, "bench", ["x" * 32])
            time.sleep(HINT_PAUSE_S)
        ended, ended_database = child.call("cpu")["cpu"], read_cpu(folder)
    looks = ((ended - began) - (began - idle)) / HINTS
    return max(0.0, looks), max(0.0, ((ended_database - began_database) - (began_database - idle_database)) / HINTS)
