"""From `results/scale.json` to a part of `benchmarks/README.md` and to the picture."""

from collections.abc import Iterator
from typing import Any

from dev.page import write_table
from dev.plot import Panel, draw

from benchmarks.harness import Row, write_machine, write_spread, write_target

SLOWER_MS = 3
"""By which a flush takes longer where the disk is made slow."""


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
