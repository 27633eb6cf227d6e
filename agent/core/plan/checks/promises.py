"""Warns about plans that promise too much: a confirmation of unknown calls, or a step that has no tool for its task.

Such a plan is accepted, because its writer may mean it that way. The writer gets a warning for each such step.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from planwarden.agent.core.plan.plan import MAX_NAME_CHARS, PlanStep, ToolFacts, find_steps_before, list_step_tools

EFFECTS: Mapping[str, tuple[str, str]] = {
    "book": ("booking", "booked"),
    "buy": ("buying", "bought"),
    "cancel": ("cancelling", "cancelled"),
    "charge": ("charging", "charged"),
    "delete": ("deleting", "deleted"),
    "deploy": ("deploying", "deployed"),
    "e-mail": ("e-mailing", "e-mailed"),
    "email": ("e-mailing", "e-mailed"),
    "invite": ("inviting", "invited"),
    "mail": ("mailing", "mailed"),
    "notify": ("notifying", "notified"),
    "pay": ("paying", "paid"),
    "post": ("posting", "posted"),
    "publish": ("publishing", "published"),
    "purchase": ("purchasing", "purchased"),
    "refund": ("refunding", "refunded"),
    "remind": ("reminding", "reminded"),
    "send": ("sending", "sent"),
    "submit": ("submitting", "submitted"),
    "transfer": ("transferring", "transferred"),
    "upload": ("uploading", "uploaded"),
}
"""Verbs with which a description asks for a change in the world, each with the two forms that a warning uses."""
_CLAUSE = r"(?:^|[.,:;!?\n][^\S\n]*|\b(?:and|then|or|also|please|now|first|next|finally)\s+)"
"""The beginning of a clause. No blank may belong to two matches, or the search would take quadratic time."""
_NOUNS = r"(?:amount|cost|count|date|detail|draft|fee|list|number|policy|rate|status|text|total|value)s?\b"
"""Before these words, a verb of the table is part of a name: `Refund amount: compute it`."""
_EFFECT = rf"(?i){_CLAUSE}({'|'.join(EFFECTS)})\b(?!-)(?!\s+{_NOUNS})"
_INTENTION = r"(?i)\bto\s+\w+(?:(?:\s*,\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+)\w+)*"
"""Phrases such as `to send` in `Decide whether to send it`: the step only thinks about doing so."""
_TOOL_NAME = rf"[a-z0-9][\w./-]{{0,{MAX_NAME_CHARS}}}"
_TOOL = rf"(?i)(?:{_CLAUSE}|\b(?:call|use|run|with|via|using|through)\s+)[`'\"]?(?=({_TOOL_NAME}))"
_NAME = r"[_./-]|[a-z][A-Z]"
"""What the name of a tool must contain, to be told apart from a common word."""
MAX_WARNINGS = 10


def find_unkept_promises(steps: Sequence[PlanStep], tools: Mapping[str, ToolFacts]) -> Iterator[str]:
    """Yield a warning for each step without tools whose description asks for a change or for a call of a tool."""
    for step in steps:
        if step.required_tools or step.tool_calls:
            continue
        description = re.sub(_INTENTION, "", step.description)
        effect = re.search(_EFFECT, description)
        if effect is not None:
            doing, past = EFFECTS[effect[1].lower()]
            yield f"step {step.step_id!r} speaks of {doing}, but promises no tool; nothing will be {past}"
            continue
        names = (match[1].rstrip(".") for match in re.finditer(_TOOL, description))
        tool = next((name for name in names if name in tools and re.search(_NAME, name)), None)
        if tool is not None:
            yield f"step {step.step_id!r} speaks of {tool}, but promises no tool; it will not be called"


def find_open_confirmations(steps: Sequence[PlanStep], tools: Mapping[str, ToolFacts]) -> Iterator[str]:
    """Yield a warning for each confirmed step whose calls may ask a person but are not known when it is confirmed."""
    by_id = {step.step_id: step for step in steps}
    for step in steps:
        before = find_steps_before(steps, step.step_id) if step.confirms else set[str]()
        for covered in (by_id[name] for name in step.confirms):
            asking = {name for name in list_step_tools(covered) if name in tools and tools[name].may_ask}
            advice = _advise(by_id, step, covered, before, asking) if asking else None
            if advice is not None:
                yield (
                    f"step {step.step_id!r} confirms step {covered.step_id!r}, whose calls are not known when it asks: "
                    f"each call that needs a person will still be asked about; to ask once, {advice}"
                )


def _advise(
    by_id: Mapping[str, PlanStep], step: PlanStep, covered: PlanStep, before: set[str], asking: set[str]
) -> str | None:
    """Return how to ask once about the covered step's calls of tools in `asking`; None if the confirmation does so."""
    calls = tuple(call for call in covered.tool_calls if call.tool_name in asking)
    references = [binding.reference for binding in replace(covered, tool_calls=calls).list_bindings()]
    late = [
        reference.step_id for reference in references if reference.step_id in by_id and reference.step_id not in before
    ]
    takes_calls = any(reference.call is not None for reference in references)
    if not late and not takes_calls and {call.tool_name for call in calls} >= asking:
        return None
    if covered.loop is not None:
        return "leave the confirmation out: the loop asks once, with a row for each call"
    if late and late[0] != step.step_id:
        return f"let step {step.step_id!r} come after step {late[0]!r}, from which its calls take values"
    return f"give step {covered.step_id!r} its toolCalls, with arguments that are known before step {step.step_id!r}"
