"""Pictures of measurements as SVG: their frame, and panels of lines with logarithmic axes.

A panel is for a kind of size, a line for an operation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

LEFT = 64
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
WIDTH, PANEL, RIGHT, TOP, GAP = 760, 150, 250, 52, 62
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#334155}.title{font-size:14px;font-weight:600}"
    ".axis{stroke:#cbd5e1;fill:none}.line{fill:none;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#cbd5e1}.axis{stroke:#475569}}"
)


def frame(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """Returns the whole picture, `width` by `height` units, with its title above the parts."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>',
    )
    return "\n".join([*head, *parts, "</svg>", ""])


@dataclass(frozen=True)
class Panel:
    """Values by operation and size."""

    title: str
    lines: Mapping[str, Mapping[str, float]]
    unit: str = " ms"


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Returns the picture."""
    height = TOP + len(panels) * (PANEL + GAP)
    parts: list[str] = []
    for number, panel in enumerate(panels):
        parts.extend(_draw_panel(panel, TOP + number * (PANEL + GAP)))
    return frame(title, WIDTH, height, parts)


def _draw_panel(panel: Panel, top: int) -> list[str]:
    sizes = [int(size) for size in next(iter(panel.lines.values()))]
    values = [value for line in panel.lines.values() for value in line.values()]
    lowest, highest = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    right, bottom = WIDTH - RIGHT, top + PANEL

    def place(size: float, value: float) -> tuple[float, float]:
        along = (math.log10(size) - math.log10(sizes[0])) / (math.log10(sizes[-1]) - math.log10(sizes[0]))
        up = (math.log10(value) - lowest) / ((highest - lowest) or 1)
        return LEFT + (right - LEFT) * along, bottom - PANEL * up

    parts = [
        f'<text x="{LEFT}" y="{top - 8}">{escape(panel.title)}</text>',
        f'<path class="axis" d="M{LEFT} {top}V{bottom}H{right}"/>',
    ]
    for power in range(lowest, highest + 1):
        y = place(sizes[0], 10.0**power)[1]
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for size in sizes:
        x = place(size, 10.0**lowest)[0]
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{size:,}</text>')
    for number, (label, line) in enumerate(panel.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [place(int(size), value) for size, value in line.items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="line" stroke="{colour}" points="{path}"/>')
        end = f"{label}: {list(line.values())[-1]:.3g}{panel.unit}"
        parts.append(f'<text x="{right + 14}" y="{top + 14 + 20 * number}" style="fill:{colour}">{escape(end)}</text>')
    return parts
