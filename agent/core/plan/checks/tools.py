"""Whether a plan fits the tools: their names, who asks a person, and literal arguments."""

from collections.abc import Mapping

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.plan.checks.arguments import WrittenCall, find_argument_faults
from planwarden.agent.core.plan.checks.faults import MAX_LISTED, join_faults
from planwarden.agent.core.plan.plan import PlanStep, ToolFacts, list_step_tools
from planwarden.agent.core.plan.plan_words import MAX_NAME_CHARS


def check_tools(
    steps: tuple[PlanStep, ...], calls: list[WrittenCall], tools: Mapping[str, ToolFacts], problems: list[str]
) -> None:
    """Raise `InvalidPlan` with the `problems` and what does not fit the tools."""
    unknown: dict[str, list[str]] = {}
    for step in steps:
        step_tools = list_step_tools(step)
        for name in step_tools:
            if name not in tools:
                unknown.setdefault(name[:MAX_NAME_CHARS], []).append(step.step_id)
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
    checks = {call.tool_name: tools[call.tool_name].check for call in calls if call.tool_name in tools}
    faults = find_argument_faults(calls, checks)
    problems.extend(faults)
    hint = "; get_tool_schemas shows what a tool takes" if faults else ""
    if unknown:
        available = sorted(tools)
        names = ", ".join(
            f"{name!r}{did_you_mean(name, available)} in {', '.join(ids)}" for name, ids in list(unknown.items())[:10]
        )
        raise InvalidPlan(
            f"the plan names unknown tools: {names}; available: {', '.join(available[:20])}"
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
            f"nothing of the plan has run: {join_faults(problems)}{hint}",
            details={"problems": list[JsonValue](problems[:MAX_LISTED])},
        )
