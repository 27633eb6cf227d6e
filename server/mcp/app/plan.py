"""The plan for the view: its state, its graph, its results and what became of the last decision.

It says what the plan's page in the inbox says, in the same words. Everything is text, except the drawing, in which the
renderer escapes what others wrote; the view has no other markup from here.
"""

from collections.abc import Iterator

from pydantic import JsonValue

from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.views.card import AGENT_CHARS
from planwarden.server.views.escaping import escape_text, format_value
from planwarden.server.views.graph.plan_graph import PlanGraph, build_graph
from planwarden.server.views.graph.svg import draw_svg
from planwarden.server.views.loop_items import PAGE_ITEMS
from planwarden.server.views.outcome import build_outcome
from planwarden.server.views.status_text import build_title, describe_progress, describe_state
from planwarden.server.views.status_words import WORDS, Mark

PLAN_KEY = "planwarden/plan"
WIDTH = 620
"""Pixels of the drawing: what most hosts have room for in a conversation."""
MAX_RESULTS = 12
"""Steps whose results the view shows; the latest ones."""
RESULT_CHARS = 300
_STOPS_AT: tuple[Mark, ...] = ("asks", "busy", "failed", "rejected")


def build_plan(execution: ExecutionState, question_id: str | None = None) -> JsonValue:
    """Return the plan for the view, not for the model, and what became of the question `question_id`, if given."""
    graph = None if execution.plan is None else build_graph(execution.plan, execution)
    suspension = execution.suspensions.get(question_id or "")
    outcome = None if suspension is None else build_outcome(execution, suspension)
    summary = (execution.synthesis or "")[:AGENT_CHARS]
    return {
        "threadId": execution.thread_id,
        "seen": name_version(execution),
        "title": build_title(execution),
        "state": f"The plan {describe_state(execution)}.",
        "tone": WORDS["execution"][execution.status].tone,
        "progress": describe_progress(execution),
        "place": "" if graph is None or execution.status == "completed" else _describe_place(graph),
        "graph": None if graph is None else draw_svg(graph, width=WIDTH),
        "results": list[JsonValue](_list_results(execution)),
        "words": escape_text(summary),
        "outcome": None if outcome is None else {"text": f"{outcome.verdict}. {outcome.text}", "tone": outcome.tone},
        "isOver": execution.is_finished,
    }


def name_version(execution: ExecutionState) -> str:
    """Return a name for what the view shows of the execution; another one after each event."""
    return f"{execution.execution_id}:{execution.version}"


def _describe_place(graph: PlanGraph) -> str:
    """Return the first step that waits, runs or went wrong, in words; empty if there is none."""
    for mark in _STOPS_AT:
        for number, row in enumerate(graph.rows, 1):
            if row.mark == mark:
                count = len(graph.rows) + graph.left_out
                return f"Step {number} of {count}, {row.step_id}: {row.state}."
    return ""


def _list_results(execution: ExecutionState) -> Iterator[JsonValue]:
    """Return what the tools of the last completed steps returned, and nothing that a model wrote."""
    completed = [step for step in execution.steps.values() if step.status == "completed" and step.calls]
    for step in completed[-MAX_RESULTS:]:
        result, more = step.result, ""
        if step.items is not None and isinstance(result, list) and len(result) > PAGE_ITEMS:
            result, more = result[:PAGE_ITEMS], f" and {len(result) - PAGE_ITEMS} more items"
        yield {"step": escape_text(step.step.step_id), "text": f"{format_value(result, RESULT_CHARS)}{more}"}
