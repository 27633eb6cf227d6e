"""A graph as lines of text: what a terminal shows, and what a screen reader reads in place of the drawing."""

from collections.abc import Iterator

from planwarden.server.views.graph.plan_graph import PlanGraph
from planwarden.server.views.status_words import SIGNS


def write_outline(graph: PlanGraph) -> Iterator[str]:
    """Yields the summary, and then one line a step."""
    yield graph.summary
    for number, row in enumerate(graph.rows, 1):
        said = " · ".join(text for text in (row.state, row.tools, row.after, row.note) if text)
        yield f"{SIGNS[row.mark].text} {number}. {row.step_id}: {said}"
    if graph.left_out:
        yield f"and {graph.left_out} more steps"
