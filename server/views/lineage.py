"""Where an execution comes from, in words for people: facts that planwarden knows from its own log."""

from collections.abc import Iterator

import msgspec

from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.views.escaping import cut_text, escape_text, name_some

VERSION_CHARS = 12
"""Of a plan's version, for people."""
NAME_CHARS = 80
MAX_NAMED = 5
SAVED_PLAN = "Saved plan"
REHEARSAL = "nothing is done, whatever the answer is"


class LineageFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact; its texts are escaped."""

    name: str
    text: str
    execution_id: str = ""
    """The other execution that it is about; empty if it is about none."""


def list_lineage_facts(execution: ExecutionState) -> Iterator[LineageFact]:
    """Yield where the execution comes from; nothing where it comes from no saved plan and no other execution."""
    if execution.saved_plan is not None:
        changed = ", changed since by a model or in a review" if execution.is_revised else ""
        yield LineageFact(name=SAVED_PLAN, text=f"{format_version(execution.saved_plan)}{changed}")
    if execution.retry_of is not None:
        steps = [name for name, state in execution.steps.items() if state.taken_from is not None]
        reuse_text = f"; took over from there: {name_some([*map(_shorten, steps)], MAX_NAMED)}" if steps else ""
        text = f"execution {escape_text(execution.retry_of)}{reuse_text}"
        yield LineageFact(name="Goes on from", text=text, execution_id=execution.retry_of)
    if execution.options.rehearse:
        yield LineageFact(name="Rehearsal", text=REHEARSAL)


def format_version(version: ev.PlanVersion) -> str:
    """Return the name of a saved plan and the beginning of its version."""
    return f"{_shorten(version.name)}, version {escape_text(version.digest[:VERSION_CHARS])}"


def _shorten(name: str) -> str:
    return cut_text(escape_text(name[:NAME_CHARS]), NAME_CHARS)
