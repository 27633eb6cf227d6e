"""Tools that changed since somebody relied on them: noticed here, and asked about again with the difference.

Reliance begins when a plan is accepted and is renewed by every approval of the tool as it is now. What changed in between
is never run on the old word, not even when the tool would need no approval otherwise.
"""

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.approval.questions import Questions
from planwarden.agent.core import events as ev
from planwarden.agent.core.pins import PIN_CHARS, describe_difference
from planwarden.agent.core.state import Call, ExecutionState
from planwarden.agent.core.tool import ToolDefinition, highest_risk
from planwarden.agent.ports.policy import Policy
from planwarden.agent.ports.toolbox import Toolbox

MESSAGE_CHARS = 500


class Staleness:
    """Compares and asks; holds no state of its own."""

    def __init__(self, tools: Toolbox, gate: Policy, questions: Questions) -> None:
        self._tools = tools
        self._gate = gate
        self._questions = questions

    def is_question(self, question: ev.Question) -> bool:
        """True when the tool is not the one that the question showed."""
        if question.tool_name is None:
            return False
        definition = self._tools.get(question.tool_name)
        return definition is None or definition.digest != question.definition_digest

    def is_call(self, execution: ExecutionState, definition: ToolDefinition) -> bool:
        """True when the tool is not the one that the plan was accepted with, and nobody approved it since as it is."""
        pinned = execution.pins.get(definition.name)
        if not pinned or definition.digest.startswith(pinned):
            return False
        return not any(
            found.decision is not None and found.decision.approved and _showed(found.question, definition)
            for found in execution.suspensions.values()
        )

    def again(
        self,
        execution: ExecutionState,
        call: Call,
        definition: ToolDefinition,
        arguments: dict[str, JsonValue],
        *,
        since: ev.Question | ToolDefinition | None = None,
    ) -> ev.Suspended:
        """The question that has to be answered before the tool runs as it is now.

        `since` is what was relied on: an earlier question, a definition, or None for what the plan was accepted with.
        """
        asked = self._gate.requirement(definition, arguments)
        requirement = self._gate.for_risk(highest_risk("confirm", asked.risk))
        suspended = self._questions.approval(execution, call, definition, arguments, requirement)
        return self.noted(execution, suspended, definition, since=since)

    def noted(
        self,
        execution: ExecutionState,
        suspended: ev.Suspended,
        definition: ToolDefinition,
        *,
        since: ev.Question | ToolDefinition | None = None,
    ) -> ev.Suspended:
        """The question with the difference in front of its message."""
        question = suspended.question
        match since:
            case ToolDefinition():
                when, before = "while it was called", since
            case ev.Question():
                when = "after it was approved" if since.kind == "approval" else "since it was asked about"
                before = self._tools.earlier(since.definition_digest)
            case None:
                when = "since the plan was accepted"
                before = self._tools.earlier(execution.pins.get(definition.name, "")[:PIN_CHARS])
        text = f"{definition.name} changed {when}: {describe_difference(before, definition)}. {question.message}"
        return replace(suspended, question=replace(question, message=text[:MESSAGE_CHARS]))


def _showed(question: ev.Question, definition: ToolDefinition) -> bool:
    """The question was about the tool as it is now, by itself or among what it covers."""
    shown = [(covered.tool_name, covered.definition_digest) for covered in question.covers]
    if question.kind == "approval":
        shown.append((question.tool_name or "", question.definition_digest))
    return (definition.name, definition.digest) in shown
