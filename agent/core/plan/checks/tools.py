"""Checks that a plan fits the tools: their names, which tools ask a person, and literal arguments.

The tools' schemas check literal values. The work is limited, because a check holds up all else in the process. The
value of a binding is not known yet, so only the values around it are checked.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from pydantic import JsonValue

from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.binding.bindings import Path, leave_out_bindings
from planwarden.agent.core.binding.placeholders import list_texts, search
from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES
from planwarden.agent.core.plan.checks.faults import MAX_LISTED, join_faults
from planwarden.agent.core.plan.plan import MAX_NAME_CHARS, PlanStep, ToolFacts, list_step_tools

CHECK_LIMIT = 2_500_000
"""The most work, in units of `schema_cost`, for one plan; further calls are checked when they are about to run."""


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
        filled = {key: leave_out_bindings(value, bound, (key,)) for key, value in call.arguments.items()}
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
