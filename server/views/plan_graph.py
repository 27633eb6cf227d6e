"""What a drawing of a plan shows: a row for each step, and links between rows. Also writes it as text or Mermaid.

All text of a plan, a tool or a model is made safe to display here; the writers of SVG and Mermaid still add the escapes
of their languages. In Mermaid (https://mermaid.js.org/syntax/flowchart.html), all but letters, digits and a few signs
become character codes, so that no text can add a node, a link or a line. Steps that ask a person are hexagons there,
and thick links carry values.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import TopologicalSorter

import msgspec

from planwarden.agent.common.errors import count_of
from planwarden.agent.core.execution.state import ExecutionState, StepState
from planwarden.agent.core.execution.synopsis import list_shown_steps
from planwarden.agent.core.plan.plan import Plan, PlanStep, list_step_tools
from planwarden.server.views.decisions import describe_shortfall
from planwarden.server.views.escaping import name_some, shorten_text
from planwarden.server.views.status_text import describe_wait
from planwarden.server.views.status_words import SIGNS, WORDS, Mark

MAX_ROWS = 500
"""The most steps that a drawing shows; for a longer plan it says how many more there are."""
TEXT_CHARS = 120
MAX_NAMES = 3
"""The most tools, and the most earlier steps, that one row names."""
MAX_LABEL_CHARS = 80
_ODD = re.compile(r"[^A-Za-z0-9 ._,-]")


class GraphRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step."""

    key: str
    """Its id as in the plan, not for display."""
    step_id: str
    description: str
    mark: Mark
    """The mark of its state; before anything runs it is `none`, `asks` or `skipped`."""
    state: str
    """Its state in words; empty before anything runs."""
    tools: str
    """The tools that it calls or requires; if it has none, words that say that a model writes text."""
    note: str
    """What else matters: how far along a loop is, that the step is conditional, why it failed."""
    after: str
    """The steps that must be over first, in words; empty if there are none, or only the step of the row above."""


class GraphLink(msgspec.Struct, frozen=True):
    """A line between two rows: the step of the row `target` starts after the step of the row `source`."""

    source: int
    target: int
    carries_value: bool
    """Whether the target takes a value from the source."""


class PlanGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Rows in the order in which their steps may start, so that every link leads down."""

    rows: tuple[GraphRow, ...]
    links: tuple[GraphLink, ...]
    left_out: int = 0
    """The number of steps beyond the last row."""

    @property
    def summary(self) -> str:
        """In words, how many steps there are in all, and how many in each state."""
        count = len(self.rows) + self.left_out
        states = Counter(row.state for row in self.rows if row.state)
        counts = ", ".join(f"{number} {state}" for state, number in states.items())
        return f"{count_of(count, 'step')}{': ' if counts else ''}{counts}"


def build_graph(
    plan: Plan,
    execution: ExecutionState | None = None,
    *,
    asking: Collection[str] = frozenset(),
    skipped: Collection[str] = frozenset(),
) -> PlanGraph:
    """Return the graph of a plan, with the states of its steps if there is an `execution` of it.

    `asking` names the steps that, according to a forecast, will ask a person; `skipped` names those that will not run.
    """
    ordered = list_in_order(plan)
    first_steps = ordered[:MAX_ROWS]
    places = {step.step_id: number for number, step in enumerate(first_steps)}
    addressees = {} if execution is None else _find_addressees(execution)
    steps = () if execution is None else list_shown_steps(execution)
    states = {state.step.step_id: state for state in steps}
    marks: dict[str, Mark] = {**dict.fromkeys(asking, "asks"), **dict.fromkeys(skipped, "skipped")}
    rows = tuple(
        _build_row(step, states.get(step.step_id), addressees.get(step.step_id), marks.get(step.step_id, "none"), above)
        for step, above in zip(first_steps, [None, *first_steps], strict=False)
    )
    links = tuple(link for step in first_steps for link in _list_links(step, places))
    return PlanGraph(rows=rows, links=links, left_out=len(ordered) - len(first_steps))


def list_in_order(plan: Plan) -> list[PlanStep]:
    """Return the steps in the plan's order or, if that puts a step before its dependencies, in topological order."""
    steps = {step.step_id: step for step in plan.steps}
    position = {step_id: number for number, step_id in enumerate(steps)}
    if all(position[name] < position[step.step_id] for step in plan.steps for name in step.dependencies):
        return list(plan.steps)
    sorter = TopologicalSorter({step_id: step.dependencies for step_id, step in steps.items()})
    sorter.prepare()
    ordered: list[PlanStep] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=position.__getitem__)
        ordered.extend(steps[step_id] for step_id in ready)
        sorter.done(*ready)
    return ordered


def _list_links(step: PlanStep, places: Mapping[str, int]) -> Iterable[GraphLink]:
    sources = {binding.reference.step_id for binding in step.list_bindings()}
    for name in step.dependencies:
        yield GraphLink(places[name], places[step.step_id], name in sources)


def _build_row(
    step: PlanStep, state: StepState | None, waits_for: str | None, mark: Mark, above: PlanStep | None
) -> GraphRow:
    words = {"asks": "asks a person", "skipped": "skipped"}.get(mark, "")
    if state is not None:
        status = WORDS["step"]["partly" if describe_shortfall(state) else state.status]
        mark, words = status.mark, describe_wait({waits_for or ""}) if status.mark == "asks" else status.word
    is_usual = not step.dependencies or (above is not None and step.dependencies == (above.step_id,))
    return GraphRow(
        key=step.step_id,
        step_id=_cut(step.step_id),
        description=_cut(step.description if step.description != step.step_id else ""),
        mark=mark,
        state=words,
        tools=name_some([*map(_cut, list_step_tools(step))], MAX_NAMES) or "text of a model",
        note=_describe(step, state, will_run=mark != "skipped"),
        after="" if is_usual else f"after {name_some([*map(_cut, step.dependencies)], MAX_NAMES)}",
    )


def _describe(step: PlanStep, state: StepState | None, *, will_run: bool) -> str:
    notes: list[str] = []
    if state is not None and state.items is not None:
        notes.append(f"{_count_ended(state)} of {len(state.items)} items")
    elif step.loop is not None:
        notes.append("for each item")
    if state is not None and (shortfall := describe_shortfall(state)):
        notes.append(shortfall)
    if state is not None and state.taken_from is not None:
        notes.append("taken over from an earlier run")
    if state is not None and state.error_message:
        notes.append(_cut(state.error_message))
    elif state is not None and state.status == "skipped" and state.skipped_by:
        notes.append(
            "its condition did not hold" if state.skipped_by == "when" else f"because of {_cut(state.skipped_by)}"
        )
    elif step.when and will_run and (state is None or state.status == "pending"):
        notes.append("only if its condition holds")
    return " · ".join(notes)


def _count_ended(state: StepState) -> int:
    size = len(state.step.tool_calls) or 1
    settled = sum(call.status in ("succeeded", "failed", "rejected", "rehearsed") for call in state.calls)
    return settled // size


def _find_addressees(execution: ExecutionState) -> dict[str, str]:
    """Return whom each suspended step waits for; if it waits for several, a person comes first."""
    addressees: dict[str, str] = {}
    for suspension in execution.open_suspensions:
        question = suspension.question
        if question.step_id is not None and addressees.get(question.step_id) != "human":
            addressees[question.step_id] = question.addressee
    return addressees


def _cut(text: str) -> str:
    return shorten_text(" ".join(text[: 4 * TEXT_CHARS].split()), TEXT_CHARS)


def write_outline(graph: PlanGraph) -> Iterator[str]:
    """Yield the summary, and then one line for each step."""
    yield graph.summary
    for number, row in enumerate(graph.rows, 1):
        line = " · ".join(text for text in (row.state, row.tools, row.after, row.note) if text)
        yield f"{SIGNS[row.mark].text} {number}. {row.step_id}: {line}"
    if graph.left_out:
        yield f"and {count_of(graph.left_out, 'more step')}"


def write_mermaid(graph: PlanGraph) -> str:
    """Return the graph as a flowchart from top to bottom; each node has the state of its step as its class."""
    lines = ["flowchart TD"]
    for number, row in enumerate(graph.rows):
        label = "<br/>".join(_encode(text) for text in (row.step_id, row.tools, row.state) if text)
        shape = ('{{"', '"}}') if row.mark == "asks" else ('["', '"]')
        state = "" if row.mark == "none" else f":::{row.mark}"
        lines.append(f"  n{number}{label.join(shape)}{state}")
    if graph.left_out:
        lines.append(f'  more["and {count_of(graph.left_out, "more step")}"]')
    lines += (f"  n{link.source} {'==>' if link.carries_value else '-->'} n{link.target}" for link in graph.links)
    return "\n".join(lines) + "\n"


def _encode(text: str) -> str:
    cut = text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 3]}..."
    return _ODD.sub(lambda match: f"#{ord(match.group())};", cut)
