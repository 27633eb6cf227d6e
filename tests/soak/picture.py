"""Draws the samples as one SVG: a panel for each measure, a line for each server."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dev.svg import COLOURS, LEFT, frame

from tests.soak.samples import DATABASE, PROCESS_MEASURES, WAL, Measure, Sample

WIDTH, PANEL, RIGHT, TOP, GAP = 760, 120, 110, 48, 44


@dataclass(frozen=True)
class Panel:
    """One measure with the series that it shows, as label and name."""

    title: str
    measure: Measure
    series: tuple[tuple[str, str], ...]


def draw(samples: Sequence[Sample], servers: Sequence[str], title: str) -> str:
    """Returns the picture; the horizontal axis is the minute."""
    panels = [
        Panel(
            f"{measure.name} ({measure.unit})", measure, tuple((name, f"{measure.name} of {name}") for name in servers)
        )
        for measure in PROCESS_MEASURES
    ]
    panels.append(Panel("write-ahead log (MiB)", WAL, (("log", WAL.name),)))
    panels.append(Panel("database (MiB)", DATABASE, (("database", DATABASE.name),)))
    height = TOP + len(panels) * (PANEL + GAP)
    parts: list[str] = []
    for number, panel in enumerate(panels):
        parts.extend(_draw_panel(samples, panel, TOP + number * (PANEL + GAP)))
    return frame(title, WIDTH, height, parts)


def _draw_panel(samples: Sequence[Sample], panel: Panel, top: int) -> list[str]:
    highest = max(sample[name] for sample in samples for _, name in panel.series) / panel.measure.scale
    limit = highest * 1.1 or 1.0
    last = samples[-1]["minute"] or 1.0
    right, bottom = WIDTH - RIGHT, top + PANEL
    parts = [
        f'<text x="{LEFT}" y="{top - 6}">{escape(panel.title)}</text>',
        f'<path class="axis" d="M{LEFT} {top}V{bottom}H{right}"/>',
        f'<text x="{LEFT - 8}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{LEFT - 8}" y="{top + 10}" text-anchor="end">{limit:.0f}</text>',
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{last:.0f} min</text>',
    ]
    for number, (label, name) in enumerate(panel.series):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(
            f"{LEFT + (right - LEFT) * sample['minute'] / last:.1f},"
            f"{bottom - PANEL * sample[name] / panel.measure.scale / limit:.1f}"
            for sample in samples
        )
        parts.append(f'<polyline class="line" stroke="{colour}" points="{points}"/>')
        end = f"{label}: {samples[-1][name] / panel.measure.scale:.0f}"
        parts.append(f'<text x="{right + 8}" y="{top + 14 + 18 * number}" style="fill:{colour}">{escape(end)}</text>')
    return parts
