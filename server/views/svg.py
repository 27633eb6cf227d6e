"""A graph as SVG 1.1 (https://www.w3.org/TR/SVG11/): one row for each step, its state as shape, sign and word.

All steps are in one column, in the order in which they may start. A link to the next row is a straight line. Any
other link leaves to the left, runs down in a lane and comes back. Links that leave the same step share a lane, as do
those that end at the same step, so a hundred parallel steps need one lane, not a hundred.

An HTML page gets the drawing in pieces of a few rows, one below the other: a printed page can break between two
pieces, but would cut through a single tall drawing.

The state is never shown by colour alone. In an HTML page, the page's style sheet sets the colours, because the
page's policy forbids styles inside the page; a drawing in its own file brings colours for light, dark and paper.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from unicodedata import east_asian_width

import msgspec

from planwarden.agent.common.errors import count_of
from planwarden.server.views.plan_graph import GraphLink, GraphRow, PlanGraph, write_outline
from planwarden.server.views.status_words import SIGNS

MAX_LANES = 10
"""The most lanes. A link that finds no free lane is not drawn; its target's row still names the steps before it."""
WIDTH = 760
"""The width of the drawing in pixels; longer texts are cut."""
ROW = 52
MARGIN = 14
LANE = 14
PIECE = 5
"""The most rows in one piece of the drawing on a page."""
RADIUS = 10
CHARACTER = 7.4
"""Average width of a character, in pixels, at a font size of 14 pixels."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A line beside the steps, from its first row to its last."""

    column: int
    """The place of the line; 0 is next to the steps."""
    sources: tuple[int, ...]
    """Rows at which a link enters the line."""
    targets: tuple[int, ...]
    """Rows at which a link leaves the line."""
    carries_value: bool


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    straight: tuple[GraphLink, ...]
    """Links from a row to the next one."""
    lanes: tuple[Lane, ...]
    columns: int
    """How many lanes are side by side."""


def lay_out(graph: PlanGraph) -> Layout:
    """Return the lines of a graph; the same graph always gets the same lines."""
    straight = tuple(link for link in graph.links if link.target == link.source + 1)
    others = [link for link in graph.links if link.target > link.source + 1]
    leaving, arriving = Counter(link.source for link in others), Counter(link.target for link in others)
    bundles: dict[tuple[str, int, bool], list[GraphLink]] = {}
    for link in others:
        is_shared_start = leaving[link.source] >= arriving[link.target]
        kind, row = ("from", link.source) if is_shared_start else ("to", link.target)
        bundles.setdefault((kind, row, link.carries_value), []).append(link)
    lanes = _assign(list(bundles.values()))
    return Layout(straight=straight, lanes=lanes, columns=max((lane.column + 1 for lane in lanes), default=0))


def _assign(bundles: Sequence[Sequence[GraphLink]]) -> tuple[Lane, ...]:
    """Give each bundle, short ones first, the nearest lane that is free along its whole length."""
    lanes: list[Lane] = []
    columns: list[list[tuple[int, int]]] = [[] for _ in range(MAX_LANES)]
    ends = [(min(link.source for link in bundle), max(link.target for link in bundle)) for bundle in bundles]
    pairs = zip(ends, bundles, strict=True)
    for (first, last), bundle in sorted(pairs, key=lambda pair: (pair[0][1] - pair[0][0], pair[0][0])):
        for column, spans in enumerate(columns):
            if all(last <= begin or end <= first for begin, end in spans):
                spans.append((first, last))
                lanes.append(
                    Lane(
                        column=column,
                        sources=tuple(sorted({link.source for link in bundle})),
                        targets=tuple(sorted({link.target for link in bundle})),
                        carries_value=bundle[0].carries_value,
                    )
                )
                break
    return tuple(lanes)


@cache
def read_style_sheet(name: str = "graph.css") -> str:
    """Return a style sheet, by default that of every graph. It sets no font or colours; `graph_alone.css` does."""
    return files("planwarden.server.views").joinpath(name).read_text(encoding="utf-8")


def draw_svg(graph: PlanGraph, *, stands_alone: bool = False, width: int = WIDTH) -> str:
    """Return the drawing; `stands_alone` makes it a file of its own, with a background and its own colours."""
    height = _measure_height(graph)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    label = f'role="img" aria-label="{escape(graph.summary)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" {size} {label}>',
        f"<desc>{escape(chr(10).join(write_outline(graph)))}</desc>",
    ]
    if stands_alone:
        parts.append(f"<style>\n{read_style_sheet('graph_alone.css')}{read_style_sheet()}</style>")
        parts.append(f'<rect class="ground" width="{width}" height="{height}"/>')
    return "\n".join([*parts, *_draw(graph, lay_out(graph), width, range(len(graph.rows))), "</svg>"]) + "\n"


def draw_for_page(graph: PlanGraph) -> str:
    """Return the drawing as HTML: pieces of `PIECE` rows in one element, with the summary as its label."""
    layout = lay_out(graph)
    bottom, rows = _measure_height(graph), len(graph.rows)
    parts = [f'<div class="graph" role="img" aria-label="{escape(graph.summary)}">']
    for first in range(0, rows, PIECE):
        last = min(first + PIECE, rows)
        top, end = (MARGIN + ROW * first if first else 0), (MARGIN + ROW * last if last < rows else bottom)
        size = f'width="{WIDTH}" height="{end - top}" viewBox="0 {top} {WIDTH} {end - top}"'
        parts.append(f'<svg xmlns="http://www.w3.org/2000/svg" {size} aria-hidden="true">')
        parts.extend(_draw(graph, layout, WIDTH, range(first, last)))
        parts.append("</svg>")
    return "\n".join([*parts, "</div>"]) + "\n"


def _measure_height(graph: PlanGraph) -> int:
    return 2 * MARGIN + ROW * len(graph.rows) + (ROW // 2 if graph.left_out else 0)


def _draw(graph: PlanGraph, layout: Layout, width: int, rows: range) -> Iterator[str]:
    """Yield these rows, and every line that touches them; the frame cuts off what is outside."""
    x = MARGIN + RADIUS + LANE * layout.columns + (LANE // 2 if layout.columns else 0)
    for link in layout.straight:
        if link.source in rows or link.target in rows:
            yield from _draw_straight(link, x)
    for lane in layout.lanes:
        if lane.sources[0] < rows.stop and lane.targets[-1] >= rows.start:
            yield from _draw_lane(lane, x, rows)
    for number in rows:
        yield from _draw_row(graph.rows[number], x, _middle(number), width)
    if graph.left_out and rows.stop == len(graph.rows):
        text_x, y = x + RADIUS + 12, _middle(len(graph.rows)) - ROW // 4
        yield f'<text class="soft" x="{text_x}" y="{y}">and {count_of(graph.left_out, "more step")}</text>'


def _middle(number: int) -> int:
    return MARGIN + ROW * number + ROW // 2


def _draw_straight(link: GraphLink, x: int) -> Iterator[str]:
    begin, end = _middle(link.source) + RADIUS, _middle(link.target) - RADIUS - 2
    yield f'<path class="link{_link_class(link.carries_value)}" d="M{x} {begin}V{end - 5}"/>'
    yield f'<path class="tip" d="M{x - 4.5} {end - 6}h9L{x} {end}z"/>'


def _draw_lane(lane: Lane, x: int, rows: range) -> Iterator[str]:
    """Yield the lines of a lane: each starts below its step's middle and ends above another's, so none meet."""
    line = x - RADIUS - LANE * (lane.column + 1)
    link_class, edge = _link_class(lane.carries_value), x - RADIUS
    first, last = _middle(lane.sources[0]) + 5, _middle(lane.targets[-1]) - 5
    yield f'<path class="link{link_class}" d="M{line} {first + 5}V{last - 5}"/>'
    for source in filter(rows.__contains__, lane.sources):
        y = _middle(source) + 5
        yield f'<path class="link{link_class}" d="M{edge} {y}H{line + 5}q-5 0 -5 5"/>'
    for target in filter(rows.__contains__, lane.targets):
        y = _middle(target) - 5
        yield f'<path class="link{link_class}" d="M{line} {y - 5}q0 5 5 5H{edge - 5}"/>'
        yield f'<path class="tip" d="M{edge - 7} {y - 4.5}v9L{edge} {y}z"/>'


def _link_class(carries_value: bool) -> str:
    return " value" if carries_value else ""


def _draw_row(row: GraphRow, x: int, y: int, width: int) -> Iterator[str]:
    room = int((width - MARGIN - x - RADIUS - 12) / CHARACTER)
    text_x = x + RADIUS + 12
    name = _cut(row.step_id, room)
    state = _cut(row.state, max(0, room - _measure(name) - 2))
    words = _cut(row.description, max(0, room - _measure(name) - _measure(state) - 4))
    below = _cut(" · ".join(text for text in (row.tools, row.after, row.note) if text), int(room * 1.1))
    yield f'<g class="{row.mark}"><circle class="dot" cx="{x}" cy="{y}" r="{RADIUS}"/>'
    if row.mark not in ("none", "waits"):
        yield f'<text class="sign" x="{x}" y="{y + 4.5}">{SIGNS[row.mark].text}</text>'
    parts = [f'<tspan class="id">{escape(name)}</tspan>']
    parts += [f'<tspan class="state" dx="8">{escape(state)}</tspan>'] if state else []
    parts += [f'<tspan class="words" dx="8">{escape(words)}</tspan>'] if words else []
    yield f'<text x="{text_x}" y="{y - 3}">{"".join(parts)}</text>'
    yield f'<text class="soft" x="{text_x}" y="{y + 15}">{escape(below)}</text></g>'


def _measure(text: str) -> int:
    """Return the width in average characters; letters of East Asian scripts count twice."""
    return len(text) if text.isascii() else sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def _cut(text: str, room: int) -> str:
    if _measure(text) <= room:
        return text
    cut = text[: max(0, room - 1)]
    while cut and _measure(cut) > room - 1:
        cut = cut[:-1]
    return f"{cut.rstrip()}…" if cut else ""
