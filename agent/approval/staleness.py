"""Tools that changed after somebody relied on them.

Reliance begins when a plan is accepted. Every approval of the tool as it is now renews it. A tool that changed in
between never runs on the old approval, even if it would need no approval otherwise.
"""

from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.core import events as ev
from planwarden.agent.core.pins import PIN_CHARS, describe_difference
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.agent.core.tool import ToolDefinition


def has_changed_since_question(definition: ToolDefinition, question: ev.Question) -> bool:
    """True when the tool is not the one that the question showed."""
    return definition.digest != question.definition_digest


def has_changed_since_plan(execution: ExecutionState, definition: ToolDefinition) -> bool:
    """True when the tool is not the one that the plan was accepted with, and nobody has approved it since."""
    pinned = execution.pins.get(definition.name)
    if not pinned or definition.digest.startswith(pinned):
        return False
    return not any(
        found.decision is not None and found.decision.approved and _has_shown(found, definition)
        for found in execution.suspensions.values()
    )


def describe_change(
    context: ApprovalContext,
    execution: ExecutionState,
    definition: ToolDefinition,
    since: ev.Question | ToolDefinition | None,
) -> str:
    """One sentence that says how the tool changed.

    `since` is what somebody relied on: an earlier question, a definition, or None for the accepted plan.
    """
    match since:
        case ToolDefinition():
            when, before = "while it was called", since
        case ev.Question():
            when = "after it was approved" if since.traits.is_about_calls else "since it was asked about"
            before = context.tools.earlier(since.definition_digest)
        case None:
            when = "since the plan was accepted"
            before = context.tools.earlier(execution.pins.get(definition.name, "")[:PIN_CHARS])
    return f"{definition.name} changed {when}: {describe_difference(before, definition)}."


def _has_shown(approved: SuspensionState, definition: ToolDefinition) -> bool:
    """True when the question was about the tool as it is now, by itself or among the calls that it covers."""
    question = approved.question
    shown = [(covered.tool_name, covered.definition_digest) for covered in approved.covered]
    if question.traits.releases == "call":
        shown.append((question.tool_name or "", question.definition_digest))
    return (definition.name, definition.digest) in shown
