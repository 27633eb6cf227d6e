"""From `results/scale.json` to the section of `benchmarks/README.md` and the picture."""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.plot import Panel, draw
from benchmarks.scale.measure import AT_ONCE, DBOS, FRONT, LANGGRAPH, PLANWARDEN, PROCESSES
from benchmarks.scale.server import SLOWER_MS

MOST = str(max(PROCESSES))

_HEADING = "## Several processes on one PostgreSQL"
_NEXT = "## What a calling model reads and writes"

_READING = f"""\
**The job** is that of `workload.py`, {AT_ONCE} executions at once in all processes of a side together, which share
a PostgreSQL with its own settings for durability, all on the same cores. The sides take turns in every round. Each
is configured as fast as its source allows: DBOS with asynchronous steps and LISTEN, and a caller that is told of
the question for nothing; LangGraph (`step-nodes`) with four connections a process; procrastinate with a job for
each step, a queue for each process, and heartbeats ten times as often as by default. *{SLOWER_MS} ms slower* is the
share of the rate that is left when each flush takes so much longer (`commit_delay`). *CPU* is that of the processes
and of the database for an execution at {MOST} processes: a busy machine changes it least, and on paper it bounds
the rate.

**Decision to effect**: one process decides, the process that owns the execution makes the call, nothing else
happens; between a front and a worker, the worker takes the execution first. **Takeover** is from the end of a
process (kill -9, or stopped and still connected) to the new start of the call in another. DBOS leaves that to a
restart or its hosted service; in LangGraph no process knows of another's threads.

**The simulation** (`simulation.py`) has a core for each worker and the costs recorded in the same run. *Busy* is
the share of the database's cores; *hints* the part of its work that tells processes of others' commits, and answers
what they look up then."""


def section(found: dict[str, Any]) -> str:
    """The section, with its heading."""
    parts = [_HEADING, _about_line(found["about"])]
    parts.append("![Executions a second against processes, measured and simulated](../docs/images/scale.svg)")
    parts.append("Written by `make bench-scale`; `results/scale.json` has the raw figures.")
    parts.extend("\n".join(_table(rows)) for rows in _tables(found))
    return "\n\n".join([*parts, _READING])


def replace_section(text: str, new: str) -> str:
    """The README with another section about several processes."""
    end = text.index(_NEXT)
    begin = text.index(_HEADING) if _HEADING in text else end
    return f"{text[:begin]}{new}\n\n{text[end:]}"


def picture(found: dict[str, Any]) -> str:
    """`docs/images/scale.svg`."""
    measured = {
        name: {count: kinds["rate"][count]["median"] for count in map(str, PROCESSES)}
        for name, kinds in found["rates"].items()
    }
    simulated = {
        f"database with {cores} cores": {workers: outcome["rate"] for workers, outcome in outcomes.items()}
        for cores, outcomes in found["simulation"].items()
    }
    cores = found["about"]["cores"]
    return draw(
        "Executions of five steps a second, on one PostgreSQL",
        [
            Panel(f"Measured: processes and database together on {cores} cores", measured, unit="/s"),
            Panel("Simulated: workers with a core each, by cores of the database", simulated, unit="/s"),
        ],
    )


def _tables(found: dict[str, Any]) -> Iterable[list[tuple[str, ...]]]:
    yield [_rate_headings(), *_rate_rows(found["rates"])]
    yield [("", "decision to effect, p50 / p99", "takeover, killed", "takeover, stopped"), *_response_rows(found)]
    yield [("", "measured", "to reach", ""), *_target_rows(found)]
    yield [("simulated, executions a second", *_simulation_headings(found)), *_simulation_rows(found["simulation"])]


def _rate_headings() -> tuple[str, ...]:
    counts = (f"{count} process{'es' if count > 1 else ''}" for count in PROCESSES)
    return "executions a second", *counts, f"{MOST} over 1", f"{SLOWER_MS} ms slower", "CPU ms each"


def _rate_rows(rates: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    for name, kinds in rates.items():
        shown = [_spread(kinds["rate"][str(count)]) for count in PROCESSES]
        yield name, *shown, f"{_scaling(kinds):.2f}", f"{_slow_share(kinds):.2f}", f"{_cpu(kinds) * 1e3:.1f}"
    ours = rates[PLANWARDEN.name]
    for name, kinds in rates.items():
        if name != PLANWARDEN.name:
            ratios = [f"{_times(ours, kinds, str(count)):.1f}" for count in PROCESSES]
            slow, cpu = _times(ours, kinds, "slow"), _cpu(kinds) / _cpu(ours)
            yield f"planwarden is so many times {name}", *ratios, "", f"{slow:.1f}", f"{cpu:.1f}"


def _response_rows(found: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    for name, decision in found["decisions"].items():
        takeover = found["takeovers"].get(name)
        shown = ("", "") if takeover is None else (_seconds(takeover["killed"]), _seconds(takeover["stopped"]))
        title = "planwarden, from a front to a worker" if name == FRONT else name
        yield title, f"{decision['p50'] * 1e3:.1f} / {decision['p99'] * 1e3:.1f} ms", *shown


def _target_rows(found: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    rates, ours = found["rates"], found["rates"][PLANWARDEN.name]
    decision, takeover = found["decisions"][PLANWARDEN.name], found["takeovers"][PLANWARDEN.name]
    yield _target(f"times DBOS, {MOST} processes", _times(ours, rates[DBOS.name], MOST), 25, at_least=True)
    yield _target(f"times LangGraph, {MOST} processes", _times(ours, rates[LANGGRAPH.name], MOST), 15, at_least=True)
    yield _target(f"{MOST} processes over 1", _scaling(ours), 1.75, at_least=True)
    yield _target("decision to effect, p50, ms", decision["p50"] * 1e3, 10)
    yield _target("decision to effect, p99, ms", decision["p99"] * 1e3, 25)
    yield _target("takeover after kill -9, s", takeover["killed"]["median"], 3)
    yield _target("takeover after a stop, s", takeover["stopped"]["median"], 15)
    yield _target(f"share of the rate with {SLOWER_MS} ms more a flush", _slow_share(ours), 0.8, at_least=True)


def _target(title: str, value: float, limit: float, *, at_least: bool = False) -> tuple[str, ...]:
    met = value >= limit if at_least else value <= limit
    return title, f"{value:.2f}", f"{'>=' if at_least else '<='} {limit:g}", "yes" if met else "NO"


def _simulation_headings(found: dict[str, Any]) -> Iterable[str]:
    return (f"{workers} workers" for workers in next(iter(found["simulation"].values())))


def _simulation_rows(simulation: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    for cores, outcomes in simulation.items():
        yield f"database with {cores} cores", *(f"{outcome['rate']:.0f}" for outcome in outcomes.values())
        yield (
            "  busy / hints",
            *(f"{outcome['database']:.0%} / {outcome['for_hints']:.0%}" for outcome in outcomes.values()),
        )


def _scaling(kinds: dict[str, Any]) -> float:
    return kinds["rate"][MOST]["median"] / kinds["rate"]["1"]["median"]


def _cpu(kinds: dict[str, Any]) -> float:
    """Seconds of CPU of an execution with most processes, of the database too."""
    return kinds["cpu"][MOST]["median"] + kinds["database_cpu"][MOST]["median"]


def _slow_share(kinds: dict[str, Any]) -> float:
    return kinds["rate"]["slow"]["median"] / kinds["rate"][MOST]["median"]


def _times(ours: dict[str, Any], theirs: dict[str, Any], key: str) -> float:
    return ours["rate"][key]["median"] / theirs["rate"][key]["median"]


def _spread(found: dict[str, float]) -> str:
    return f"{found['median']:.0f} ({found['min']:.0f}-{found['max']:.0f})"


def _seconds(found: dict[str, float]) -> str:
    return f"{found['median']:.1f} s ({found['min']:.1f}-{found['max']:.1f})"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, f"| {' | '.join(['---', *['---:'] * (len(rows[0]) - 1)])} |", *body]


def _about_line(facts: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    return (
        f"{facts['date']}, commit {facts['commit']}{' with local changes' if facts['modified'] else ''}; "
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']} at the start; {facts['system']}, "
        f"{facts['file_system']}; Python {facts['python']}, PostgreSQL {facts['postgresql']}; {libraries}."
    )
