"""Checks that a plan fits the tools: their names, which tools ask a person, literal arguments, and what is promised.

The tools' schemas check literal values. The work is limited, because a check holds up all else in the process. The
value of a binding is not known yet, so only the values around it are checked.

A plan may promise too much: a confirmation of unknown calls, or a step that has no tool for its task. Such a plan is
accepted, because its writer may mean it that way, and the writer gets a warning for each such step.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.binding.bindings import Path, replace_bindings_by_null
from planwarden.agent.core.binding.placeholders import list_texts, search
from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES
from planwarden.agent.core.plan.checks.steps import MAX_LISTED, join_faults
from planwarden.agent.core.plan.plan import MAX_NAME_CHARS, PlanStep, ToolFacts, find_steps_before, list_step_tools

CHECK_LIMIT = 2_500_000
"""The most work, in units of `schema_cost`, for one plan; further calls are checked when they are about to run."""
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
_NAME_MARK = r"[_./-]|[a-z][A-Z]"
"""What the name of a tool must contain, to be told apart from a common word."""
MAX_WARNINGS = 10


class WrittenCall(NamedTuple):
    """A call of a plan."""

    step_id: str
    tool_name: str
    arguments: dict[str, JsonValue]

    def __str__(self) -> str:
        return f"step {self.step_id!r}, {self.tool_name}"


def find_argument_faults(calls: Iterable[WrittenCall], tools: Mapping[str, ToolFacts]) -> list[str]:
    """Return where the arguments break the tools' schemas or are too large, in at most `MAX_LISTED` sentences."""
    faults: list[str] = []
    work_left = CHECK_LIMIT
    for call in calls:
        if len(faults) >= MAX_LISTED:
            break
        bound: list[Path] = []
        filled = {key: replace_bindings_by_null(value, bound, (key,)) for key, value in call.arguments.items()}
        if is_larger(filled, MAX_ARGUMENT_BYTES + len(bound) * len("null")):
            faults.append(f"{call}: the arguments are larger than {MAX_ARGUMENT_BYTES} bytes")
            continue
        check = tools[call.tool_name].check if call.tool_name in tools else None
        if check is None or work_left <= 0:
            continue
        call_faults, work = check(filled, bound, work_left)
        work_left -= work
        if call_faults:
            faults.extend(f"{call}: {fault}" for fault in call_faults)
    return faults[:MAX_LISTED]


def list_placeholders(calls: Iterable[WrittenCall], goal_and_inputs: JsonValue) -> list[str]:
    """Return a sentence for each value that is a placeholder or contains one, at most `MAX_LISTED`."""
    texts = ((call, path, text) for call in calls for path, text in list_texts(call.arguments))
    return list(islice((f"{call}: {fault}" for call, fault in search(texts, goal_and_inputs)), MAX_LISTED))


def describe_absent(name: str, names: Collection[str], unavailable: Mapping[str, str]) -> str:
    """Return the quoted name of a tool that plans cannot use now, with the reason or a similar name from `names`."""
    why = unavailable.get(name)
    return f"{name[:MAX_NAME_CHARS]!r}{did_you_mean(name, names) if why is None else f' (not available: {why})'}"


def check_tools(
    steps: tuple[PlanStep, ...],
    calls: list[WrittenCall],
    tools: Mapping[str, ToolFacts],
    unavailable: Mapping[str, str],
    problems: list[str],
) -> None:
    """Raise `InvalidPlan` if there are `problems` or if something does not fit the tools; the error reports both."""
    unknown: dict[str, list[str]] = {}
    for step in steps:
        step_tools = list_step_tools(step)
        for name in step_tools:
            if name not in tools:
                unknown.setdefault(name[:MAX_NAME_CHARS], []).append(step.step_id)
            elif tools[name].is_gated:
                problems.append(
                    f"step {step.step_id!r}: only hosts call {name}, through their gate; plans can call it when its "
                    "server is in planwarden.json"
                )
        if step.loop is None and not step.confirms:
            continue
        asking = [name for name in step_tools if name in tools and tools[name].is_blocking]
        if step.loop is not None and asking:
            problems.append(
                f"step {step.step_id!r}: {asking[0]} cannot ask once for each item; leave it out: calls that need a "
                "person are asked about in one question with a row for each"
            )
        if step.confirms and not asking:
            problems.append(f"step {step.step_id!r} confirms other steps but names no tool that asks a person")
    faults = find_argument_faults(calls, tools)
    problems.extend(faults)
    hint = "; get_tool_schemas shows what a tool takes" if faults else ""
    if unknown:
        available = sorted(name for name, facts in tools.items() if not facts.is_gated)
        names = ", ".join(
            f"{describe_absent(name, available, unavailable)} in {', '.join(ids)}"
            for name, ids in list(unknown.items())[:10]
        )
        kind = "tools that are not available" if unknown.keys() <= unavailable.keys() else "unknown tools"
        raise InvalidPlan(
            f"the plan names {kind}: {names}; available: {', '.join(available[:20])}"
            + (f" and {len(available) - 20} more (search_tools finds them)" if len(available) > 20 else "")
            + (f"; also: {join_faults(problems)}{hint}" if problems else ""),
            details={
                "unknownTools": list[JsonValue](list(unknown)[:MAX_LISTED]),
                "availableTools": list[JsonValue](available[:MAX_LISTED]),
                **({"problems": list[JsonValue](problems[:MAX_LISTED])} if problems else {}),
            },
        )
    if problems:
        raise InvalidPlan(
            f"nothing of this has run: {join_faults(problems)}{hint}",
            details={"problems": list[JsonValue](problems[:MAX_LISTED])},
        )


def find_missing_promises(steps: Sequence[PlanStep], tools: Mapping[str, ToolFacts]) -> Iterator[str]:
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
        tool = next((name for name in names if name in tools and re.search(_NAME_MARK, name)), None)
        if tool is not None:
            yield f"step {step.step_id!r} speaks of {tool}, but promises no tool; it will not be called"


def find_blind_confirmations(steps: Sequence[PlanStep], tools: Mapping[str, ToolFacts]) -> Iterator[str]:
    """Yield a warning for each confirmed step whose calls may ask a person but are not known when it is confirmed."""
    by_id = {step.step_id: step for step in steps}
    for step in steps:
        before = find_steps_before(steps, step.step_id) if step.confirms else set[str]()
        for covered in (by_id[name] for name in step.confirms):
            asking = {name for name in list_step_tools(covered) if name in tools and tools[name].may_ask}
            advice = _advise_to_ask_once(by_id, step, covered, before, asking) if asking else None
            if advice is not None:
                yield (
                    f"step {step.step_id!r} confirms step {covered.step_id!r}, whose calls are not known when it asks: "
                    f"each call that needs a person will still be asked about; to ask once, {advice}"
                )


def _advise_to_ask_once(
    by_id: Mapping[str, PlanStep], step: PlanStep, covered: PlanStep, before: set[str], asking: set[str]
) -> str | None:
    """Return how to ask once about the covered calls of the `asking` tools; None if the confirmation does so."""
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
