"""Several processes on one PostgreSQL: `python -m benchmarks.scale`, under ten minutes on two cores.

planwarden, what people would take instead, and a model of many more processes. Writes `results/scale.json`,
`docs/images/scale.svg` and a part of `benchmarks/README.md`; `--draw` does so from the results that are there.
"""

import argparse
import asyncio
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import psycopg
from dev.page import report_progress, write_parts, write_table
from dev.plot import Panel, draw
from tests.support.postgres import Server

from benchmarks.costs import read_cpu, record, record_costs
from benchmarks.harness import (
    IMAGES,
    README,
    TIMEOUT_S,
    Child,
    Effects,
    Row,
    describe_machine,
    read_result,
    spread,
    write_machine,
    write_result,
    write_spread,
    write_target,
)
from benchmarks.simulation import simulate

PROCESSES = (1, 2, 4)
MOST = max(PROCESSES)
AT_ONCE = 100
"""Executions at once in all processes of a side together."""
WARM_S, SAMPLE_S = 0.5, 1.5
"""Seconds in which executions start; all of them end before the next sample."""
ROUNDS = 4
TURNS = 2
"""That every side gets for decisions."""
DECISIONS = 150
PAUSE_S = 0.02
"""Between decisions, so that nothing else happens when one comes."""
SLOWER_MS = 3
"""By which a flush takes longer where the disk is made slow."""
HELD = 5
"""Executions that a process holds when it is killed or stopped."""
KILLS = 3
WORKERS = (1, 2, 4, 8, 16, 32, 64, 100)
CORES = (4, 16)
LIBRARIES = ("planwarden", "psycopg", "dbos", "langgraph", "langgraph-checkpoint-postgres", "procrastinate")

SIDES = {
    "planwarden": ("planwarden_postgres", "both"),
    "dbos": ("dbos_side", ""),
    "langgraph": ("langgraph_side", "step-nodes"),
    "procrastinate": ("procrastinate_side", ""),
    "front": ("planwarden_postgres", "front"),
}
"""The module and the variant of each; the front, of planwarden, decides only."""
RUN = ("planwarden", "dbos", "langgraph", "procrastinate")
DECIDE = {"planwarden": "planwarden", "dbos": "dbos", "procrastinate": "procrastinate", "front": "planwarden"}
"""Where an execution begins, and what another process is that makes its call."""
TAKE_OVER = ("planwarden", "procrastinate")


def measure(rounds: int) -> dict[str, Any]:
    """Return everything that the report shows."""
    server = Server(fsync="on", shared_buffers="128MB")
    try:
        facts: dict[str, Any] = describe_machine(server.folder, *LIBRARIES)
        with psycopg.connect(server.url) as connection:
            facts["postgresql"] = str(connection.info.parameter_status("server_version"))
        rates = measure_rates(server, rounds)
        report_progress("decisions")
        decisions = measure_decisions(server)
        report_progress("takeovers")
        with ThreadPoolExecutor() as threads:
            # The processes only wait, so the sides are measured at the same time, each in databases of its own.
            takeovers = dict(zip(TAKE_OVER, threads.map(partial(measure_takeovers, server), TAKE_OVER), strict=True))
        report_progress("costs and simulation")
        url = server.make_database()
        recording = asyncio.run(record(url))
        costs = record_costs(url, server.folder, recording, rates["planwarden"]["cpu"]["1"]["median"])
    finally:
        server.end()
    simulation = {str(cores): {str(n): asdict(simulate(costs, n, cores)) for n in WORKERS} for cores in CORES}
    return {
        "about": facts,
        "rates": rates,
        "decisions": decisions,
        "takeovers": takeovers,
        "costs": asdict(costs),
        "simulation": simulation,
    }


def start(name: str, url: str, effects: Effects | None = None) -> Child:
    """Start a process of a side."""
    return Child(*SIDES[name], url, effects)


def measure_rates(server: Server, rounds: int) -> dict[str, Any]:
    """Return spreads by side, by what `measure_rate` returns, and by number of processes; `slow`: on a slower disk."""
    samples: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in RUN}
    with ExitStack() as stack:
        children: dict[str, list[Child]] = {}
        for name in RUN:
            url = server.make_database()
            # The first one makes the tables.
            first = stack.enter_context(start(name, url))
            others = [start(name, url) for _ in range(MOST - 1)]
            children[name] = [first, *map(stack.enter_context, others)]
            run_all(children[name], WARM_S)
        for turn in range(rounds):
            report_progress(f"round {turn + 1} of {rounds}")
            for key in (*map(str, PROCESSES), "slow"):
                for name in RUN[turn % len(RUN) :] + RUN[: turn % len(RUN)]:
                    workers = children[name][: MOST if key == "slow" else int(key)]
                    with slow_disk(server) if key == "slow" else nullcontext():
                        for kind, value in measure_rate(workers, server.folder).items():
                            samples[name].setdefault(kind, {}).setdefault(key, []).append(value)
    return {
        name: {kind: {key: spread(values) for key, values in by_key.items()} for kind, by_key in kinds.items()}
        for name, kinds in samples.items()
    }


def run_all(children: Sequence[Child], seconds: float) -> list[dict[str, Any]]:
    """Run executions in all of the processes at the same time."""
    for child in children:
        child.send("run", seconds=seconds, at_once=AT_ONCE // len(children))
    return [child.read() for child in children]


def measure_rate(children: Sequence[Child], folder: Path) -> dict[str, float]:
    """Return executions a second of the processes together, and seconds of CPU of one in them and in the database."""
    database_cpu = read_cpu(folder)
    answers = run_all(children, SAMPLE_S)
    count = sum(answer["value"] for answer in answers)
    seconds = max(answer["end"] for answer in answers) - min(answer["start"] for answer in answers)
    return {
        "rate": count / seconds,
        "cpu": sum(answer["cpu"] for answer in answers) / count,
        "database_cpu": (read_cpu(folder) - database_cpu) / count,
    }


@contextmanager
def slow_disk(server: Server) -> Generator[None]:
    """Make each flush of the log take `SLOWER_MS` longer during the block.

    `commit_delay` sleeps where a flush is about to begin, with the lock of the log held, even if others commit: as a
    slower disk does, except that commits which come during the sleep still join the flush.
    """
    _set(server, commit_delay=SLOWER_MS * 1_000, commit_siblings=0)
    try:
        yield
    finally:
        _set(server, commit_delay=0, commit_siblings=5)


def _set(server: Server, **settings: int) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM SET {name} = {value}".encode())
        connection.execute("SELECT pg_reload_conf()")
    # A session reads its settings again before its next statement.
    time.sleep(0.2)


def settle(server: Server) -> None:
    """Return when the server has written what it still had to write, and cleans no table any more."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        busy = "SELECT FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"
        while connection.execute(busy).fetchone() is not None:
            time.sleep(1.0)


def measure_decisions(server: Server) -> dict[str, dict[str, float]]:
    """Return seconds from a decision in one process to its effect in another, when nothing else happens.

    The second process decides; where the first one is a front, that does.
    """
    seconds: dict[str, list[float]] = {name: [] for name in DECIDE}
    for turn in range(TURNS):
        for name in list(DECIDE)[:: -1 if turn % 2 else 1]:
            url, effects = server.make_database(), Effects()
            with start(name, url, effects) as first, start(DECIDE[name], url, effects) as second:
                for child in (first, second):
                    child.call("run", seconds=0.5, at_once=5)
                settle(server)
                names = [uuid4().hex for _ in range(DECISIONS)]
                for effect, waiting in [(effect, first.call("wait", name=effect)["value"]) for effect in names]:
                    time.sleep(PAUSE_S)
                    began = (first if name == "front" else second).call("decide", waiting=waiting)["start"]
                    seconds[name].append(await_effects(effects, [effect])[0] - began)
    return {
        name: {"p50": sorted(values)[len(values) // 2], "p99": sorted(values)[len(values) * 99 // 100]}
        for name, values in seconds.items()
    }


def measure_takeovers(server: Server, name: str) -> dict[str, dict[str, float]]:
    """Return seconds from the end, or the stop, of a process to the new start of its calls in another one."""
    killed = [second for _ in range(KILLS) for second in measure_takeover(name, server.make_database(), kills=True)]
    stopped = measure_takeover(name, server.make_database(), kills=False)
    return {"killed": spread(killed), "stopped": spread(stopped)}


def measure_takeover(name: str, url: str, *, kills: bool) -> list[float]:
    """Return the seconds of each execution that the first process held."""
    effects: Effects = SimpleQueue()
    names = [uuid4().hex for _ in range(HELD)]
    with start(name, url, effects) as owner:
        for effect in names:
            owner.call("hold", name=effect)
        await_effects(effects, names)
        with start(name, url, effects) as heir:
            time.sleep(2.0)
            began = time.monotonic()
            (owner.kill if kills else owner.stop)()
            ends = await_effects(effects, names)
            owner.kill()
            heir.kill()
            return [at - began for at in ends]


def await_effects(effects: Effects, names: Sequence[str]) -> list[float]:
    """Return when each of the named ones came, in that order; what a round before left behind may come between."""
    times: dict[str, float] = {}
    while not times.keys() >= set(names):
        name, at = effects.get(timeout=TIMEOUT_S)
        times[name] = at
    return [times[name] for name in names]


def write_scale(result: dict[str, Any]) -> str:
    """Return the tables."""
    rates, simulation = result["rates"], result["simulation"]
    counts = list(rates["planwarden"]["rate"])[:-1]
    processes = [f"{count} process{'es' if count != '1' else ''}" for count in counts]
    heads = ["executions a second", *processes, f"{counts[-1]} over 1", f"{SLOWER_MS} ms slower", "CPU ms each"]
    response = ["", "decision to effect, p50 / p99", "takeover, killed", "takeover, stopped"]
    workers = [f"{count} workers" for count in next(iter(simulation.values()))]
    tables = [
        write_table(heads, _rate_rows(rates, counts)),
        write_table(response, _response_rows(result)),
        write_table(["", "measured", "to reach", ""], _target_rows(result, counts[-1])),
        write_table(["simulated, executions a second", *workers], _simulation_rows(simulation)),
    ]
    return "\n\n".join([write_machine(result["about"]), *tables])


def draw_scale(result: dict[str, Any]) -> str:
    """Return `docs/images/scale.svg`."""
    measured = {
        name: {count: values["median"] for count, values in kinds["rate"].items() if count != "slow"}
        for name, kinds in result["rates"].items()
    }
    simulated = {
        f"database with {cores} cores": {workers: outcome["rate"] for workers, outcome in outcomes.items()}
        for cores, outcomes in result["simulation"].items()
    }
    title = f"Measured: processes and database together on {result['about']['cores']} cores"
    simulation = "Simulated: workers with a core each, by cores of the database"
    panels = [Panel(title, measured, unit="/s"), Panel(simulation, simulated, unit="/s")]
    return draw("Executions of five steps a second, on one PostgreSQL", panels)


def _median(kinds: dict[str, Any], kind: str, key: str) -> float:
    return kinds[kind][key]["median"]


def _sum_up(kinds: dict[str, Any], most: str) -> tuple[float, float, float]:
    """Return the rate of most processes over that of one, what a slower disk leaves of it, and ms of CPU of each."""
    rate, slow = _median(kinds, "rate", most), _median(kinds, "rate", "slow")
    cpu_s = _median(kinds, "cpu", most) + _median(kinds, "database_cpu", most)
    return rate / _median(kinds, "rate", "1"), slow / rate, cpu_s * 1e3


def _rate_rows(rates: dict[str, Any], counts: list[str]) -> Iterator[Row]:
    ours = rates["planwarden"]
    for name, kinds in rates.items():
        scaling, slow, cpu_ms = _sum_up(kinds, counts[-1])
        spreads = (write_spread(kinds["rate"][count]) for count in counts)
        yield name, *spreads, f"{scaling:.2f}", f"{slow:.2f}", f"{cpu_ms:.1f}"
    for name, kinds in rates.items():
        if name != "planwarden":
            ratios = [_median(ours, "rate", key) / _median(kinds, "rate", key) for key in (*counts, "slow")]
            *times, slow = (f"{ratio:.1f}" for ratio in ratios)
            cpu = _sum_up(kinds, counts[-1])[2] / _sum_up(ours, counts[-1])[2]
            yield f"planwarden is so many times {name}", *times, "", slow, f"{cpu:.1f}"


def _response_rows(result: dict[str, Any]) -> Iterator[Row]:
    for name, decision in result["decisions"].items():
        takeover = result["takeovers"].get(name, {})
        seconds = (write_spread(takeover[how], "{:.1f}", " s") if takeover else "" for how in ("killed", "stopped"))
        title = "planwarden, from a front to a worker" if name == "front" else name
        yield title, f"{decision['p50'] * 1e3:.1f} / {decision['p99'] * 1e3:.1f} ms", *seconds


def _target_rows(result: dict[str, Any], most: str) -> Iterator[Row]:
    rates, ours = result["rates"], result["rates"]["planwarden"]
    decision, takeover = result["decisions"]["planwarden"], result["takeovers"]["planwarden"]
    for title, name, least in (("DBOS", "dbos", 25), ("LangGraph", "langgraph", 15)):
        ratio = _median(ours, "rate", most) / _median(rates[name], "rate", most)
        yield write_target(f"times {title}, {most} processes", ratio, least, at_least=True)
    scaling, slow, _ = _sum_up(ours, most)
    yield write_target(f"{most} processes over 1", scaling, 1.75, at_least=True)
    yield write_target("decision to effect, p50, ms", decision["p50"] * 1e3, 10)
    yield write_target("decision to effect, p99, ms", decision["p99"] * 1e3, 25)
    yield write_target("takeover after kill -9, s", takeover["killed"]["median"], 3)
    yield write_target("takeover after a stop, s", takeover["stopped"]["median"], 15)
    yield write_target(f"share of the rate with {SLOWER_MS} ms more a flush", slow, 0.8, at_least=True)


def _simulation_rows(simulation: dict[str, Any]) -> Iterator[Row]:
    for cores, by_workers in simulation.items():
        outcomes = list(by_workers.values())
        yield f"database with {cores} cores", *(f"{outcome['rate']:.0f}" for outcome in outcomes)
        yield "  busy / hints", *(f"{outcome['database']:.0%} / {outcome['for_hints']:.0%}" for outcome in outcomes)


def main() -> None:
    """Measure, print, and write the results, the picture and the part of the README."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns that every side gets")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.draw:
        write_result("scale", measure(options.rounds))
    result = read_result("scale")
    (IMAGES / "scale.svg").write_text(draw_scale(result), encoding="utf-8")
    write_parts(README, {"scale": write_scale(result)})


if __name__ == "__main__":
    main()
