"""Where the links of a graph run: beside the column of steps, in as few lanes as possible.

All steps stand in one column, in the order in which they may start. A link to the next row is a straight line. Every
other one leaves to the left, runs down in a lane and comes back. Links that leave one step together share a lane, as do
those that meet at one step, so a hundred steps side by side need one lane, not a hundred. Three hundred steps are as
readable as three, and a narrow screen shows as much of a row as fits.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from planwarden.server.views.graph.plan_graph import GraphLink, PlanGraph

MAX_LANES = 10
"""Links that find no free lane are not drawn; the row names the steps that it follows."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """A line beside the steps, from its first row to its last."""

    column: int
    """0 is next to the steps."""
    sources: tuple[int, ...]
    """Rows at which a link enters the line."""
    targets: tuple[int, ...]
    """Rows at which one leaves it."""
    carries_value: bool


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    straight: tuple[GraphLink, ...]
    """Links from a row to the next one."""
    lanes: tuple[Lane, ...]
    columns: int
    """How many lanes stand side by side."""


def lay_out(graph: PlanGraph) -> Layout:
    """Return the lines of a graph; the same graph always has the same ones."""
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
    """Give each bundle the nearest lane that is free all along, the short ones first."""
    lanes: list[Lane] = []
    taken: list[list[tuple[int, int]]] = [[] for _ in range(MAX_LANES)]
    for bundle in sorted(bundles, key=_measure):
        first, last = min(link.source for link in bundle), max(link.target for link in bundle)
        for column, spans in enumerate(taken):
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


def _measure(bundle: Sequence[GraphLink]) -> tuple[int, int]:
    first = min(link.source for link in bundle)
    return max(link.target for link in bundle) - first, first
