"""All tools of the MCP surface, in the order of `tools/list`, and how saved plans appear there.

`run_plan` names the saved plans in its description. If `as_tools` is set, each plan is also a tool, with the
schema from its file.
"""

from collections.abc import Mapping, Sequence

from mcp.types import Tool

from planwarden.server.mcp.prompts import (
    MAX_DESCRIPTION_CHARS,
    MAX_TITLE_CHARS,
    cut_line,
    describe_plan,
    find_prompt_clash,
)
from planwarden.server.mcp.skills import find_skill_clash
from planwarden.server.mcp.tools import plans, suspensions
from planwarden.server.mcp.tools.tool import McpTool
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.views.fields import build_fields
from planwarden.tools.guarded.hosts import GUARD_TOOL

TOOLS: tuple[McpTool, ...] = (
    plans.search_tools,
    plans.get_tool_schemas,
    plans.create_plan,
    plans.run_goal,
    plans.execute_plan,
    plans.run_plan,
    plans.retry_execution,
    suspensions.ask_person,
    plans.get_execution,
    suspensions.list_suspensions,
    suspensions.submit_answer,
    suspensions.resume_execution,
    plans.cancel_execution,
)
APP_TOOLS = (suspensions.app_decide, plans.app_show)
"""Tools that only the app's view calls."""
TOOLS_BY_NAME: Mapping[str, McpTool] = {tool.name: tool for tool in (*TOOLS, *APP_TOOLS)}

MAX_LIST_CHARS = 600
"""The most characters of saved plans in the description of `run_plan`; every conversation pays for them."""
MAX_NAMED_INPUTS = 6
MAX_TOOL_NAME_CHARS = 40
"""The longest tool name: hosts put their own prefix before it, and models accept at most 64 characters in all."""


def list_in_description(tool: Tool, saved: Sequence[SavedPlan]) -> Tool:
    """Return the entry of `run_plan` in `tools/list`, with as many saved plans as there is space for."""
    entries = [_describe_plan(plan) for plan in saved]
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


def _describe_plan(plan: SavedPlan) -> str:
    fields = build_fields(plan.inputs)
    names = [cut_line(field.name, 32) + ("" if field.must_be_given else "?") for field in fields[:MAX_NAMED_INPUTS]]
    more = ["..."] if len(fields) > MAX_NAMED_INPUTS else []
    takes = f"({', '.join([*names, *more])})" if names else ""
    purpose = cut_line(plan.title or plan.description or "", MAX_TITLE_CHARS)
    return f"{plan.name}{takes}: {purpose}" if purpose else f"{plan.name}{takes}"


def list_plan_tools(saved: Sequence[SavedPlan]) -> list[McpTool]:
    """Return a tool for each plan whose name can be the name of a tool."""
    return [_build_tool(plan) for plan in saved if find_tool_clash(plan.name) is None]


def find_tool_clash(name: str) -> str | None:
    """Return the reason why a plan with this name cannot be a tool, or None if it can."""
    if name in TOOLS_BY_NAME or name == GUARD_TOOL:
        return "planwarden has a tool of this name"
    if len(name) > MAX_TOOL_NAME_CHARS:
        return f"a tool's name has at most {MAX_TOOL_NAME_CHARS} characters"
    return None


def describe_clash(name: str, saved: Sequence[SavedPlan], *, as_tools: bool) -> str | None:
    """Return why hosts do not get the plan as a tool, prompt or skill; None if they get it in each form."""
    if (prompt := find_prompt_clash(name)) is not None:
        return f"hosts do not offer it as a prompt: {prompt}"
    if as_tools and (tool := find_tool_clash(name)) is not None:
        return f"it is not a tool of its own: {tool}"
    skill = find_skill_clash(name, saved)
    return None if skill is None else f"it is not offered to hosts as a skill: {skill}"


def _build_tool(plan: SavedPlan) -> McpTool:
    return McpTool(
        name=plan.name,
        title=cut_line(plan.title or plan.name, MAX_TITLE_CHARS),
        description=f"{describe_plan(plan, MAX_DESCRIPTION_CHARS)} (A saved plan: runs durably, stops for a person.)",
        handler=plans.run_plan.handler,
        properties={},
        inputs={"additionalProperties": False, **(plan.inputs or {}), "type": "object"},
    )
