"""Saved plans as hosts see them: a list in `run_plan`, a prompt for each, and, if `as_tools` is set, a tool for each.

Titles, descriptions and schemas come from the plans' files. Titles and descriptions are cut to one line wherever
planwarden's own words surround them.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from mcp.types import INVALID_PARAMS, GetPromptResult, Prompt, PromptArgument, PromptMessage, TextContent, Tool
from pydantic import JsonValue

from planwarden.agent.core.plan.inputs import fill_inputs
from planwarden.server.mcp.lazy_service import translate_errors
from planwarden.server.mcp.prompts import PROMPTS, WAIT_FOR_PERSON
from planwarden.server.mcp.resources import ICONS
from planwarden.server.mcp.tools.listing import TOOLS_BY_NAME
from planwarden.server.mcp.tools.plans import run_plan
from planwarden.server.mcp.tools.tool import McpTool
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.views.fields import Field, build_fields, read_inputs
from planwarden.tools.guarded.hosts import GUARD_TOOL

MAX_LIST_CHARS = 600
"""The most characters of saved plans in the description of `run_plan`; every conversation pays for them."""
MAX_TITLE_CHARS = 80
MAX_NAMED_INPUTS = 6
MAX_TOOL_NAME_CHARS = 40
"""The longest tool name: hosts put their own prefix before it, and models accept at most 64 characters in all."""
MAX_DESCRIPTION_CHARS = 500
MAX_ARGUMENT_DESCRIPTION_CHARS = 200


def list_in_description(tool: Tool, plans: Sequence[SavedPlan]) -> Tool:
    """Return the entry of `run_plan` in `tools/list`, with as many saved plans as there is space for."""
    entries = [_describe_plan(plan) for plan in plans]
    if not entries:
        return tool
    text, remaining = "", len(entries)
    for entry in entries:
        if len(text) + len(entry) > MAX_LIST_CHARS:
            break
        text += f"; {entry}" if text else entry
        remaining -= 1
    more = f"{'; ' if text else ''}{remaining} more in planwarden://plans" if remaining else ""
    return tool.model_copy(update={"description": f"{tool.description} Saved: {text}{more}."})


def list_plan_tools(plans: Sequence[SavedPlan]) -> list[McpTool]:
    """Return a tool for each plan whose name can be the name of a tool."""
    return [_build_tool(plan) for plan in plans if find_tool_clash(plan.name) is None]


def list_prompts(plans: Sequence[SavedPlan]) -> list[Prompt]:
    """Return a prompt for each plan, with its inputs as arguments, unless planwarden has a prompt of that name."""
    return [_build_prompt(plan) for plan in plans if find_prompt_clash(plan.name) is None]


def name_skill(plan_name: str) -> str:
    """Return the name of the plan's skill: lowercase letters, digits and single hyphens; empty if nothing is left."""
    return "-".join(filter(None, plan_name.lower().replace("_", "-").split("-")))


def find_skill_clash(plan_name: str, plans: Sequence[SavedPlan]) -> str | None:
    """Return the reason why the plan with this name cannot be a skill, or None if it can."""
    name = name_skill(plan_name)
    if not name:
        return "its name has no letter and no digit"
    if Counter(name_skill(plan.name) for plan in plans)[name] > 1:
        others = [plan.name for plan in plans if plan.name != plan_name and name_skill(plan.name) == name]
        return f"its name as a skill, {name!r}, is that of {', '.join(others)} too"
    return None


def find_tool_clash(name: str) -> str | None:
    """Return the reason why a plan with this name cannot be a tool, or None if it can."""
    if name in TOOLS_BY_NAME or name == GUARD_TOOL:
        return "planwarden has a tool of this name"
    if len(name) > MAX_TOOL_NAME_CHARS:
        return f"a tool's name has at most {MAX_TOOL_NAME_CHARS} characters"
    return None


def find_prompt_clash(name: str) -> str | None:
    """Return the reason why a plan with this name cannot be a prompt, or None if it can."""
    return "planwarden has a prompt of this name" if any(prompt.name == name for prompt in PROMPTS) else None


def render_prompt(plan: SavedPlan, arguments: Mapping[str, str]) -> GetPromptResult:
    """Return what a host sends to its model when a person has chosen the plan.

    Raises:
        MCPError: the arguments do not fit the plan's inputs.
    """
    if arguments and arguments == {field.name: f"${number}" for number, field in enumerate(list_arguments(plan), 1)}:
        # Some hosts, such as opencode, ask once with `$1`, `$2` as values, and later put in what people type.
        call = _write_template(plan, arguments)
    else:
        optional = {field.name for field in build_fields(plan.inputs) if not field.must_be_given}
        # Hosts' forms send empty text for the inputs that a person left out.
        inputs = read_inputs(plan.inputs, [item for item in arguments.items() if item[1] or item[0] not in optional])
        with translate_errors(INVALID_PARAMS):
            fill_inputs(plan.inputs, inputs)
        entry: dict[str, JsonValue] = {"name": plan.name, **({"inputs": inputs} if inputs else {})}
        call = f"{json.dumps(entry, ensure_ascii=False)}, exactly so, then"
    text = (
        f"Call planwarden's run_plan with {call} do what nextAction in each result says until status is completed. "
        f"{WAIT_FOR_PERSON}"
    )
    return GetPromptResult(
        description=describe_plan(plan, MAX_DESCRIPTION_CHARS),
        messages=[PromptMessage(role="user", content=TextContent(type="text", text=text))],
    )


def _write_template(plan: SavedPlan, arguments: Mapping[str, str]) -> str:
    """Return the words for a call whose `$1`, `$2` etc. the host fills in; they tell the model to omit empty values."""
    inputs_text = "\n".join(f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in arguments.items())
    return (
        f"name {json.dumps(plan.name)} and these inputs, word for word: text where the plan takes text, JSON "
        f"otherwise. Leave out inputs without a value.\n\n{inputs_text}\n\nThen"
    )


def _build_tool(plan: SavedPlan) -> McpTool:
    return McpTool(
        name=plan.name,
        title=cut_line(plan.title or plan.name, MAX_TITLE_CHARS),
        description=f"{describe_plan(plan, MAX_DESCRIPTION_CHARS)} (A saved plan: runs durably, stops for a person.)",
        handler=run_plan.handler,
        properties={},
        inputs={"additionalProperties": False, **(plan.inputs or {}), "type": "object"},
    )


def _build_prompt(plan: SavedPlan) -> Prompt:
    arguments = [
        PromptArgument(
            name=field.name,
            description=cut_line(field.description, MAX_ARGUMENT_DESCRIPTION_CHARS) or None,
            required=field.must_be_given,
        )
        for field in list_arguments(plan)
    ]
    return Prompt(
        name=plan.name,
        title=cut_line(plan.title or plan.name, MAX_TITLE_CHARS),
        description=describe_plan(plan, MAX_DESCRIPTION_CHARS),
        arguments=arguments or None,
        icons=ICONS,
    )


def list_arguments(plan: SavedPlan) -> list[Field]:
    """Return the inputs, required ones first, because hosts fill in arguments by position."""
    return sorted(build_fields(plan.inputs), key=lambda field: not field.must_be_given)


def _describe_plan(plan: SavedPlan) -> str:
    fields = build_fields(plan.inputs)
    names = [cut_line(field.name, 32) + ("" if field.must_be_given else "?") for field in fields[:MAX_NAMED_INPUTS]]
    more = ["..."] if len(fields) > MAX_NAMED_INPUTS else []
    takes = f"({', '.join([*names, *more])})" if names else ""
    purpose = cut_line(plan.title or plan.description or "", MAX_TITLE_CHARS)
    return f"{plan.name}{takes}: {purpose}" if purpose else f"{plan.name}{takes}"


def describe_plan(plan: SavedPlan, limit: int) -> str:
    """Return what the plan is for, on one line."""
    return cut_line(plan.description or plan.title or f"The saved plan {plan.name}.", limit)


def cut_line(text: str, limit: int) -> str:
    """Return the text on one line of at most `limit` characters, without unprintable ones."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
