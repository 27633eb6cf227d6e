"""The check of `doctor` about saved plans: what there is, what cannot be used and why, and whose name is taken."""

from collections.abc import Iterator

from pydantic import JsonValue

from planwarden.server.cli.health import HealthCheck
from planwarden.server.plans.folders import PlanCatalogue
from planwarden.server.plans.library import build_library
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.settings.configuration import PLAN_FOLDER, Settings

MAX_NAMED = 12


def check_plans(settings: Settings) -> HealthCheck:
    """Names every file of the folders that is no usable plan. None of it keeps planwarden from working."""
    library = build_library(settings.home / PLAN_FOLDER, settings.plan_folders)
    found = library.look_now()
    folders: list[JsonValue] = [str(folder.path) for folder in library.folders]
    # Shown line by line, by file.
    problems: dict[str, JsonValue] = dict(_list_problems(found, settings))
    facts: dict[str, JsonValue] = {"folders": folders, "plans": list[JsonValue](found.names), "unavailable": problems}
    if not found.plans and not problems:
        text = f"none; they are files NAME.yaml or NAME.json in {settings.home / PLAN_FOLDER}"
        return HealthCheck(name="plans", status="off", message=text, facts=facts)
    more = " …" if len(found.names) > MAX_NAMED else ""
    text = f"{len(found.names)} saved: {', '.join(found.names[:MAX_NAMED])}{more}" if found.names else "none to be used"
    if problems:
        text += f"; to be looked at: {len(problems)}"
    return HealthCheck(name="plans", status="warning" if problems else "ok", message=text, facts=facts)


def _list_problems(found: PlanCatalogue, settings: Settings) -> Iterator[tuple[str, str]]:
    yield from ((str(fault.path), fault.reason) for fault in found.faults)
    yield from ((str(hidden.path), f"not used: {hidden.by} has its name") for hidden in found.hidden)
    if found.plans:
        yield from _list_clashes(found.plans, settings)


def _list_clashes(plans: tuple[SavedPlan, ...], settings: Settings) -> Iterator[tuple[str, str]]:
    # It imports the SDK, which most checks do without.
    from planwarden.server.mcp.saved_plans import find_prompt_clash, find_tool_clash

    for plan in plans:
        prompt = find_prompt_clash(plan.name)
        tool = find_tool_clash(plan.name) if settings.plans_as_tools else None
        if prompt is not None:
            yield str(plan.path), f"`planwarden run` runs it, but hosts do not offer it as a prompt: {prompt}"
        elif tool is not None:
            yield str(plan.path), f"`planwarden run` runs it, but it is not a tool of its own: {tool}"
