"""A graph as an outline and as Mermaid text (https://mermaid.js.org/syntax/flowchart.html).

Everything that a plan or a tool wrote appears in it as letters, digits and character codes, so no text can add a
node, a link or a line. Steps that ask a person are hexagons, and values flow along thick links.
"""

import re
from collections.abc import Iterator

from planwarden.server.views.graph.plan_graph import PlanGraph
from planwarden.server.views.status_words import SIGNS

MAX_LABEL_CHARS = 80
_ODD = re.compile(r"[^A-Za-z0-9 ._,-]")


def write_outline(graph: PlanGraph) -> Iterator[str]:
    """Yield the summary, and then one line a step."""
    yield graph.summary
    for number, row in enumerate(graph.rows, 1):
        line = " · ".join(text for text in (row.state, row.tools, row.after, row.note) if text)
        yield f"{SIGNS[row.mark].text} {number}. {row.step_id}: {line}"
    if graph.left_out:
        yield f"and {graph.left_out} more steps"


def write_mermaid(graph: PlanGraph) -> str:
    """Return the graph as a flowchart from top to bottom; each node has the state of its step as its class."""
    return "\n".join(["flowchart TD", *_write_nodes(graph), *_write_links(graph)]) + "\n"


def _write_nodes(graph: PlanGraph) -> Iterator[str]:
    for number, row in enumerate(graph.rows):
        label = "<br/>".join(_escape(text) for text in (row.step_id, row.tools, row.state) if text)
        shape = ('{{"', '"}}') if row.mark == "asks" else ('["', '"]')
        state = "" if row.mark == "none" else f":::{row.mark}"
        yield f"  n{number}{label.join(shape)}{state}"
    if graph.left_out:
        yield f'  more["and {graph.left_out} more steps"]'


def _write_links(graph: PlanGraph) -> Iterator[str]:
    for link in graph.links:
        yield f"  n{link.source} {'==>' if link.carries_value else '-->'} n{link.target}"


def _escape(text: str) -> str:
    cut = text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 3]}..."
    return _ODD.sub(lambda match: f"#{ord(match.group())};", cut)
