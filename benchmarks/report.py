"""The tables of `make bench`."""

from collections.abc import Iterator
from typing import Any

from dev.page import write_table

from benchmarks.harness import Row, write_machine, write_spread, write_target
from benchmarks.side import IN_FLIGHT

HEADLINE = "langgraph step-nodes"
MODES = ("one after the other", f"{IN_FLIGHT} at once")


def write_bench(summary: dict[str, Any]) -> str:
    """Return the generated part of the README, from `results/latest.json`."""
    sides = summary["sides"]
    parts = {
        "Time and commits per execution": write_table(["", *MODES, "commits", "log written"], _time_rows(sides)),
        "planwarden is so many times as fast": write_table(["than", *MODES], _ratio_rows(sides)),
        "On disk and in memory": write_table(
            ["", "finished", "suspended", "memory idle", "memory peak"], _size_rows(sides)
        ),
        "Figures to reach": write_table(["", "measured", "to reach", ""], _target_rows(summary)),
    }
    return "\n\n".join([write_machine(summary["about"]), *(f"## {title}\n\n{part}" for title, part in parts.items())])


def _time_rows(sides: dict[str, Any]) -> Iterator[Row]:
    for name, side in sides.items():
        times = (write_spread(side[f"{mode}_seconds"], "{:.2f}", " ms", 1000) for mode in ("sequential", "concurrent"))
        yield name, *times, f"{side['commits']:g}", f"{side['log_bytes'] / 1000:.0f} KB"


def _divide(sides: dict[str, Any], name: str, mode: str, kind: str = "median") -> float:
    """Return how many times longer another side takes than planwarden."""
    return sides[name][f"{mode}_seconds"][kind] / sides["planwarden"][f"{mode}_seconds"][kind]


def _ratio_rows(sides: dict[str, Any]) -> Iterator[Row]:
    for name in (name for name in sides if name != "planwarden"):
        digits = 2 if name == "floor" else 1
        ratios = (
            f"{_divide(sides, name, mode):.{digits}f} ({_divide(sides, name, mode, 'min'):.{digits}f})"
            for mode in ("sequential", "concurrent")
        )
        yield f"{name} (headline)" if name == HEADLINE else name, *ratios


def _size_rows(sides: dict[str, Any]) -> Iterator[Row]:
    for name, side in sides.items():
        if side.get("finished_bytes") is not None:
            sizes = (f"{side[key]:.0f} B" for key in ("finished_bytes", "suspended_bytes"))
            memory = (f"{side[key] / 1e6:.0f} MB" for key in ("idle_bytes", "peak_bytes"))
            yield name, *sizes, *memory


def _target_rows(summary: dict[str, Any]) -> Iterator[Row]:
    sides, cold = summary["sides"], summary["cold_resume"]
    ours = sides["planwarden"]
    for mode, title, least in zip(("sequential", "concurrent"), MODES, (4, 13), strict=True):
        yield write_target(f"times LangGraph, {title}", _divide(sides, HEADLINE, mode), least, "{:.1f}", at_least=True)
    yield write_target("commits per execution", ours["commits"], 8, "{:g}")
    yield write_target("bytes per finished execution", ours["finished_bytes"], 6144, "{:.0f}")
    yield write_target("bytes per suspended execution", ours["suspended_bytes"], 5120, "{:.0f}")
    yield write_target("cold resume among 10,000, ms", cold["seconds"]["median"] * 1000, 350, "{:.0f}")
    for name, values in summary["commands"].items():
        yield write_target(f"planwarden {name}, start to exit, ms", values["median"] * 1000, 350, "{:.0f}")
    yield "  Python alone, ms", f"{cold['interpreter']['median'] * 1000:.0f}", "", ""
    yield write_target("of mcp and the like imported by it", len(cold["imported"]), 0, "{:.0f}")
    held_mb: list[float] = []
    for version, servers in summary["first_answer"].items():
        both = [servers[name] for name in ("planwarden", "empty")]
        (first, empty_first), (tools, empty_tools) = (
            [server[key]["median"] for server in both] for key in ("first", "tools_list")
        )
        held_mb.append((both[0]["idle_bytes"]["median"] - both[1]["idle_bytes"]["median"]) / 1e6)
        yield write_target(f"first answer ({version}), times an empty server", first / empty_first, 1.2)
        yield "  in ms, planwarden / empty", f"{first * 1000:.0f} / {empty_first * 1000:.0f}", "", ""
        yield "  with tools/list, times an empty server", f"{tools / empty_tools:.2f}", "", ""
    yield write_target("idle over stdio, MB more than an empty server", held_mb[0], 25, "{:.1f}")
