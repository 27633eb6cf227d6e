"""What the servers hold while they work, sample by sample, whether it grows, and a picture of it."""

import csv
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from dev.plot import COLOURS, LEFT, frame

KIB = 1024
MIB = 1024 * KIB
WARM_UP_MINUTES = 35
"""For half an hour the SDK keeps the session of an older client that said no goodbye; the load has many of them. A
shorter run has a quarter of warm-up."""


@dataclass(frozen=True)
class Measure:
    """One thing that is sampled. It may grow by `share` and `slack` from the first settled quarter to the last."""

    name: str
    unit: str
    share: float
    slack: float
    scale: float = 1


PROCESS_MEASURES = (
    Measure("memory", "MiB", 0.05, 4 * MIB, MIB),
    Measure("descriptors", "open files", 0.05, 8),
    Measure("threads", "threads", 0.05, 4),
)
WAL = Measure("wal", "MiB", 0.5, 8 * MIB, MIB)
DATABASE = Measure("database", "MiB", 0, 0, MIB)
"""It grows with what is kept, so nothing is held against it."""

Sample = dict[str, float]
"""`minute`, `MEASURE of SERVER` for each server, `wal`, `database`, `finished` and `failed` visits."""


def read_process(process_id: int) -> Sample:
    """Resident bytes, open file descriptors and threads of a process of this machine, from /proc."""
    folder = Path("/proc") / str(process_id)
    facts = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return {
        "memory": float(facts["VmRSS"].split()[0]) * KIB,
        "descriptors": len(os.listdir(folder / "fd")),
        "threads": float(facts["Threads"]),
    }


def read_files(database: Path) -> Sample:
    log = database.with_name(f"{database.name}-wal")
    return {"database": float(database.stat().st_size), "wal": float(log.stat().st_size) if log.exists() else 0.0}


@dataclass(frozen=True)
class Verdict:
    """Whether one series is flat once it has settled: its median in the last quarter against that in the first."""

    series: str
    first_quarter: float
    last_quarter: float
    highest: float
    allowed: float
    is_flat: bool

    def __str__(self) -> str:
        says = "flat" if self.is_flat else "GROWS"
        change = f"{self.first_quarter:,.0f} to {self.last_quarter:,.0f}"
        return f"{self.series}: {says}, {change}, at most {self.allowed:,.0f}"


def judge(samples: Sequence[Sample], series: str, measure: Measure) -> Verdict:
    """The warm-up does not count. A median does not notice single peaks, nor a machine that stalls."""
    settled = [sample for sample in samples if sample["minute"] >= WARM_UP_MINUTES] or samples[len(samples) // 4 :]
    values = [sample[series] for sample in settled]
    quarter = max(1, len(values) // 4)
    before, after = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
    allowed = before * (1 + measure.share) + measure.slack
    return Verdict(series, before, after, max(values), allowed, after <= allowed)


def judge_all(samples: Sequence[Sample], servers: Sequence[str]) -> list[Verdict]:
    """A verdict for each measure of each server, and for the write-ahead log."""
    found = [judge(samples, f"{measure.name} of {name}", measure) for name in servers for measure in PROCESS_MEASURES]
    return [*found, judge(samples, WAL.name, WAL)]


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(samples[0]))
        writer.writeheader()
        writer.writerows({name: round(value, 3) for name, value in sample.items()} for sample in samples)


WIDTH, PANEL, RIGHT, TOP, GAP = 760, 120, 110, 48, 44


def draw(samples: Sequence[Sample], servers: Sequence[str], title: str) -> str:
    """Return one SVG: a panel for each measure, a line for each server; the horizontal axis is the minute."""
    panels = [(measure, [(name, f"{measure.name} of {name}") for name in servers]) for measure in PROCESS_MEASURES]
    panels += [(measure, [(measure.name, measure.name)]) for measure in (WAL, DATABASE)]
    parts: list[str] = []
    for number, (measure, series) in enumerate(panels):
        parts.extend(_draw_panel(samples, measure, series, TOP + number * (PANEL + GAP)))
    return frame(title, WIDTH, TOP + len(panels) * (PANEL + GAP), parts)


def _draw_panel(
    samples: Sequence[Sample], measure: Measure, series: Sequence[tuple[str, str]], top: int
) -> Iterator[str]:
    limit = max(sample[name] for sample in samples for _, name in series) / measure.scale * 1.1 or 1.0
    last, right, bottom = samples[-1]["minute"] or 1.0, WIDTH - RIGHT, top + PANEL
    yield f'<text x="{LEFT}" y="{top - 6}">{escape(measure.name)} ({measure.unit})</text>'
    yield f'<path class="axis" d="M{LEFT} {top}V{bottom}H{right}"/>'
    yield f'<text x="{LEFT - 8}" y="{bottom}" text-anchor="end">0</text>'
    yield f'<text x="{LEFT - 8}" y="{top + 10}" text-anchor="end">{limit:.0f}</text>'
    yield f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{last:.0f} min</text>'
    for number, (label, name) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{LEFT + (right - LEFT) * sample['minute'] / last:.1f},"
            f"{bottom - PANEL * sample[name] / measure.scale / limit:.1f}"
            for sample in samples
        )
        yield f'<polyline class="line" stroke="{colour}" points="{points}"/>'
        end = f"{label}: {samples[-1][name] / measure.scale:.0f}"
        yield f'<text x="{right + 8}" y="{top + 14 + 18 * number}" style="fill:{colour}">{escape(end)}</text>'
