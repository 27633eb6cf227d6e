"""From measurements to `results/latest.json`, the table in the terminal, and `README.md`."""

import importlib.metadata
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import FLOOR, HEADLINE, PEERS, PLANWARDEN, SEQUENTIAL, SIDES, Figures
from benchmarks.scale.report import section
from benchmarks.side import IN_FLIGHT

LIBRARIES = ("planwarden", "langgraph", "langgraph-checkpoint-sqlite", "aiosqlite", "mcp", "pydantic", "anyio")

TOKENS = Path(__file__).parent / "results" / "tokens.json"
SCALE = Path(__file__).parent / "results" / "scale.json"

Row = tuple[str, ...]


def about(folder: Path, libraries: Sequence[str] = LIBRARIES) -> dict[str, Any]:
    """Returns where and with what the figures were measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "libraries": {name: _version(name) for name in libraries},
    }


def summarise(
    facts: dict[str, Any],
    figures: dict[str, Figures],
    cold: dict[str, Any],
    answer: dict[str, Any] | str,
    commands: dict[str, list[float]],
) -> dict[str, Any]:
    """Returns everything as JSON: medians, extremes and ratios."""
    sides = {name: _side(found) for name, found in figures.items()}
    return {
        "about": facts,
        "executions": {
            spec.name: {
                "per_sequential_sample": SEQUENTIAL * spec.times,
                "per_concurrent_sample": IN_FLIGHT * spec.times,
                "finished_for_size": spec.finished,
                "suspended_for_size": spec.suspended,
            }
            for spec in SIDES
        },
        "sides": sides,
        "ratios": _ratios(sides),
        "cold_resume": {
            "seconds": _spread(cold["seconds"]),
            "interpreter_seconds": _spread(cold["interpreter"]),
            "imported": cold["imported"],
            "modules": cold["modules"],
        },
        "first_answer": answer if isinstance(answer, str) else _first_answer(answer),
        "commands": {name: _spread(seconds) for name, seconds in commands.items()},
    }


def tables(summary: dict[str, Any]) -> list[tuple[str, Row, list[Row]]]:
    """Title, headings and rows of every table."""
    return [
        (
            "Time and commits per execution",
            ("", "one after the other", f"{IN_FLIGHT} at once", "commits", "log written"),
            list(_time_rows(summary)),
        ),
        (
            "planwarden is so many times as fast",
            ("than", "one after the other", f"{IN_FLIGHT} at once"),
            list(_ratio_rows(summary)),
        ),
        (
            "On disk and in memory",
            ("", "finished", "suspended", "memory idle", "memory peak"),
            list(_size_rows(summary)),
        ),
        ("Figures to reach", ("", "measured", "to reach", ""), list(_target_rows(summary))),
    ]


def terminal(summary: dict[str, Any]) -> str:
    """The tables as aligned text."""
    parts = [_about_line(summary["about"])]
    for title, headings, rows in tables(summary):
        widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
        lines = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (headings, *rows)
        ]
        parts.append("\n".join([title, *lines]))
    return "\n\n".join(parts)


def readme(summary: dict[str, Any]) -> str:
    """`benchmarks/README.md`, text and tables."""
    parts = [_INTRODUCTION, _about_line(summary["about"])]
    for title, headings, rows in tables(summary):
        lines = [_markdown(headings), _markdown(["---", *["---:"] * (len(headings) - 1)]), *map(_markdown, rows)]
        parts.append(f"## {title}\n\n" + "\n".join(lines))
    found = json.loads(TOKENS.read_text(encoding="utf-8"))
    several = section(json.loads(SCALE.read_text(encoding="utf-8")))
    return "\n\n".join([*parts, _SIZES, several, conversations_section(found["conversations"]), _READING]) + "\n"


def conversations_section(conversations: Iterable[dict[str, Any]]) -> str:
    """The section about what a calling model reads and writes."""
    headings = ("way", "steps", "sent", "structured content", "text", "both", "at most")
    rows = [_markdown(headings), _markdown(["---", *["---:"] * (len(headings) - 1)])]
    for found in conversations:
        sizes = (found["sent"], found["structured"], found["text"], found["both"])
        limit = f"{found['limit']:,}" if found["limit"] else ""
        rows.append(_markdown([found["way"], str(found["steps"]), *(f"{size:,}" for size in sizes), limit]))
    return "\n".join([_CONVERSATIONS, *rows, "", _COUNTING])


def replace_section(text: str, section: str) -> str:
    """The README with another section about conversations."""
    begin, end = text.index(_CONVERSATIONS.splitlines()[0]), text.index(_READING.splitlines()[0])
    return f"{text[:begin]}{section}\n\n{text[end:]}"


_INTRODUCTION = """# Benchmarks

Written by `make bench`, which measures everything below in one run on one disk; `results/latest.json` has the raw
figures. Do not edit this file."""

_SIZES = """## What grows with size

![Time against steps, executions at once and finished executions](../docs/images/sizes.svg)

Written by `make bench-sizes` from `results/sizes.json`. Both axes of each part are logarithmic."""

_CONVERSATIONS = """## What a calling model reads and writes

Bytes of a whole conversation in and out, over a client of MCP. Written by `make bench-tokens`;
`results/tokens.json` has each message.
"""

_COUNTING = """`run_goal`: the caller is the model, and answers each question: the plan, one call in each step, the
final text. `execute_plan`: it sends the same steps with their calls at once. *Sent* are the arguments of its calls,
which the other columns include. A host shows its model structured content (Claude Code, Codex), text (Gemini CLI,
opencode) or both (VS Code, Cursor, Claude Desktop). The two forms say the same, so *at most* is for each of them; a
host that shows both pays for both. Not counted: the list of tools, the host's own words, JSON-RPC around the call."""

_READING = """## How to read this

**The job** (`workload.py`) is five planned tool calls for an order, each execution with an order of its own. The third
asks a person, the execution is suspended, an approval resumes it. The tools do next to nothing, so this is what
durability costs. With tools that take a second each, all sides take five seconds.

**The sides** run in processes of their own, on databases of their own, and take turns in every round. All of them use
SQLite with a write-ahead log and `synchronous=FULL`; LangGraph runs with `durability="sync"`. Times are medians, in
parentheses the extremes; ratios are of medians, in parentheses of the fastest samples, which a busy machine disturbs
less. The fast sides run five times as many executions per sample, so that samples take about as long.

**The headline is `step-nodes`**: the plain graph that most people write, with the plan compiled into it, one node for
each step, and arguments checked. `plan-executor` does what planwarden does: the plan is data that arrives at run time
and is stored. `bare` (compiled too) and `functional` (`langgraph_peer.py`) validate nothing and know no tools; they are
here because they are the hardest to beat. None of the four records an intent before an effect, proves that a required
tool was called, or keeps a second process away from a thread; planwarden does all three in the time shown.

**The floor** (`floor.py`) is only the commits: as many transactions with the same bytes, without threads, callers,
indexes or conditions; at once, a group commit that never waits for a caller. Its ratio is below 1: that share of
planwarden's time is the commits themselves.

**Commits and log** are counted in the write-ahead log itself, one execution after the other. **Bytes on disk** are the
growth of the database file by thousands of executions (hundreds for LangGraph), indexes included, after everything in
the log has been moved into it. **Memory** is the whole process, Python and imports included.

**Cold resume** is a whole process from start to exit: interpreter, imports, opening the database, the answer, the two
remaining steps, closing. The database holds 2,000 finished and 10,000 suspended executions; files are in the cache.

**Commands** are whole processes too, on a home with a hundred open questions; `approve` has a terminal, on which `y` is
typed as soon as the question appears, and runs the two remaining steps.

**First answer** is from the start of the process to the answer to `initialize` (2025-06-18) or `server/discover`
(2026-07-28) over standard input and output, beside an `MCPServer` of the same SDK without any tools. **Idle** is the
memory of both a second after `tools/list`.

`make bench-against TREE=../other` measures this tree against another checkout.

Not measured here: models, networks, several processes on one file."""


def _side(found: Figures) -> dict[str, Any]:
    return {
        "sequential_seconds": _spread(found.sequential),
        "concurrent_seconds": _spread(found.concurrent),
        "sequential_cpu_seconds": _spread(found.sequential_cpu),
        "concurrent_cpu_seconds": _spread(found.concurrent_cpu),
        "switches": _spread(found.switches),
        "commits": found.commits,
        "log_bytes": found.log_bytes,
        "idle_bytes": found.idle_bytes,
        "peak_bytes": found.peak_bytes,
        "finished_bytes": found.finished_bytes,
        "suspended_bytes": found.suspended_bytes,
    }


def _ratios(sides: dict[str, Any]) -> dict[str, Any]:
    """How many times longer each other side takes than planwarden: medians, and the fastest sample of each."""
    ours = sides[PLANWARDEN.name]
    return {
        name: {
            mode: {kind: side[f"{mode}_seconds"][kind] / ours[f"{mode}_seconds"][kind] for kind in ("median", "min")}
            for mode in ("sequential", "concurrent")
        }
        for name, side in sides.items()
        if name != PLANWARDEN.name
    }


def _first_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """By version of the protocol: each server's times, and how many times as long planwarden takes."""
    found: dict[str, Any] = {}
    for version, servers in answer.items():
        spreads = {name: {kind: _spread(values) for kind, values in taken.items()} for name, taken in servers.items()}
        ours, empty = spreads["planwarden"], spreads["empty"]
        ratios = {f"{kind}_ratio": ours[kind]["median"] / empty[kind]["median"] for kind in ("first", "tools_list")}
        found[version] = {**spreads, **ratios}
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "samples": len(values)}


def _time_rows(summary: dict[str, Any]) -> Iterable[Row]:
    for name, side in summary["sides"].items():
        yield (
            name,
            _ms(side["sequential_seconds"]),
            _ms(side["concurrent_seconds"]),
            f"{side['commits']:g}",
            f"{side['log_bytes'] / 1000:.0f} KB",
        )


def _ratio_rows(summary: dict[str, Any]) -> Iterable[Row]:
    for spec in (*PEERS, FLOOR):
        title = f"{spec.name} (headline)" if spec is HEADLINE else spec.name
        modes = summary["ratios"][spec.name]
        digits = 2 if spec is FLOOR else 1
        yield (
            title,
            *(
                f"{modes[mode]['median']:.{digits}f} ({modes[mode]['min']:.{digits}f})"
                for mode in ("sequential", "concurrent")
            ),
        )


def _size_rows(summary: dict[str, Any]) -> Iterable[Row]:
    for spec in SIDES:
        side = summary["sides"][spec.name]
        if side["finished_bytes"] is not None:
            sizes = (f"{side[key]:.0f} B" for key in ("finished_bytes", "suspended_bytes"))
            memory = (f"{side[key] / 1e6:.0f} MB" for key in ("idle_bytes", "peak_bytes"))
            yield spec.name, *sizes, *memory


def _target_rows(summary: dict[str, Any]) -> Iterable[Row]:
    side, ratio, cold = summary["sides"][PLANWARDEN.name], summary["ratios"][HEADLINE.name], summary["cold_resume"]
    yield _target("times LangGraph, one after the other", ratio["sequential"]["median"], 4, "{:.1f}", at_least=True)
    yield _target(f"times LangGraph, {IN_FLIGHT} at once", ratio["concurrent"]["median"], 13, "{:.1f}", at_least=True)
    yield _target("commits per execution", side["commits"], 8, "{:g}")
    yield _target("bytes per finished execution", side["finished_bytes"], 6144, "{:.0f}")
    yield _target("bytes per suspended execution", side["suspended_bytes"], 5120, "{:.0f}")
    yield _target("cold resume among 10,000, ms", cold["seconds"]["median"] * 1000, 350, "{:.0f}")
    for name, spread in summary["commands"].items():
        yield _target(f"planwarden {name}, start to exit, ms", spread["median"] * 1000, 350, "{:.0f}")
    yield "  Python alone, ms", f"{cold['interpreter_seconds']['median'] * 1000:.0f}", "", ""
    yield _target("of mcp and the like imported by it", len(cold["imported"]), 0, "{:.0f}")
    answer = summary["first_answer"]
    if isinstance(answer, str):
        yield "first answer, times an empty server", f"not measured: {answer[:80]}", "<= 1.2", "NO"
        return
    for version, found in answer.items():
        yield _target(f"first answer ({version}), times an empty server", found["first_ratio"], 1.2, "{:.2f}")
        ours, empty = (found[name]["first"]["median"] * 1000 for name in ("planwarden", "empty"))
        yield "  in ms, planwarden / empty", f"{ours:.0f} / {empty:.0f}", "", ""
        yield "  with tools/list, times an empty server", f"{found['tools_list_ratio']:.2f}", "", ""
    [found, *_] = answer.values()
    ours, empty = (found[name]["idle_bytes"]["median"] / 1e6 for name in ("planwarden", "empty"))
    yield _target("idle over stdio, MB more than an empty server", ours - empty, 25, "{:.1f}")


def _target(title: str, value: float, limit: float, form: str, *, at_least: bool = False) -> Row:
    met = value >= limit if at_least else value <= limit
    return title, form.format(value), f"{'>=' if at_least else '<='} {limit:g}", "yes" if met else "NO"


def _ms(spread: dict[str, float]) -> str:
    low, middle, high = (spread[key] * 1000 for key in ("min", "median", "max"))
    return f"{middle:.2f} ms ({low:.2f}-{high:.2f})"


def _markdown(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _about_line(facts: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in facts["libraries"].items())
    return (
        f"{facts['date']}, commit {facts['commit']}{' with local changes' if facts['modified'] else ''}; "
        f"{facts['processor']}, {facts['cores']} cores, load {facts['load']} at the start; {facts['system']}, "
        f"{facts['file_system']}; Python {facts['python']}, SQLite {facts['sqlite']}; {libraries}."
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return (
        done.stdout.strip() or "unknown" if done.returncode == 0 and arguments[0] != "status" else done.stdout.strip()
    )


def _processor() -> str:
    if sys.platform.startswith("linux"):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """Returns the type of the file system, where the system says it; a `tmpfs` would make every commit free."""
    done = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown file system"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
