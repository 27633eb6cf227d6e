"""The checks of `doctor` on saved plans and on what starts them: schedules and hooks."""

import shlex
from collections.abc import Iterator
from datetime import datetime

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.schema_defaults import read_defaults, read_properties
from planwarden.agent.core.plan.inputs import close_schema
from planwarden.server.api.home import Home
from planwarden.server.cli.checks.report import HealthCheck, join_some
from planwarden.server.cli.home import use_store
from planwarden.server.plans.library import PlanCatalogue
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.schedules.cron import find_zone
from planwarden.server.settings.catalogue import build_command_prefix
from planwarden.server.settings.configuration import PLAN_FOLDER, Settings
from planwarden.server.views.escaping import shorten_id
from planwarden.server.views.listing import NOT_ATTENDED
from planwarden.storage.opening import CompleteStore
from planwarden.storage.schedules import PlanSchedule, ScheduleStore

MAX_HOOKS, MAX_PLANS = 5, 12
"""How many plans the report names, and how many hooks if all hooks are usable."""


def check_schedules(settings: Settings) -> HealthCheck | None:
    """Report what starts next, and what cannot start; None if there are no schedules."""
    if not settings.store.is_made:
        return None

    async def read(store: CompleteStore) -> tuple[tuple[PlanSchedule, ...], bool]:
        return await ScheduleStore(store).all(), await ScheduleStore(store).has_scheduler()

    schedules, has_scheduler = use_store(settings, read)
    if not schedules:
        return None
    plans = Home(settings).library.look_now().names
    problems: list[str] = []
    for schedule in schedules:
        if schedule.plan not in plans:
            problems.append(
                f"schedule {shorten_id(schedule.schedule_id)} starts the plan {schedule.plan!r}, which is not there"
            )
        try:
            find_zone(schedule.timezone)
        except InvalidArguments as error:
            problems.append(f"schedule {shorten_id(schedule.schedule_id)}: {error.message}")
    waiting = [schedule for schedule in schedules if schedule.paused_at is None]
    facts: dict[str, JsonValue] = {"count": len(schedules), "paused": len(schedules) - len(waiting)}
    if problems:
        return HealthCheck("schedules", "broken", join_some(problems), facts)
    text = f"{len(schedules)}, {len(schedules) - len(waiting)} of them paused"
    if waiting:
        first = min(waiting, key=lambda schedule: schedule.next_at)
        when = datetime.fromtimestamp(first.next_at, find_zone(first.timezone)).isoformat(timespec="minutes")
        facts["nextAt"] = when
        text += f"; the next tick is at {when}, plan {first.plan!r}"
        if not has_scheduler:
            command = shlex.join([*build_command_prefix(settings), "serve", "--http"])
            text += f"; {NOT_ATTENDED}: a host with planwarden, or `{command}`"
            return HealthCheck("schedules", "warning", text, facts)
    return HealthCheck("schedules", "ok", text, facts)


def check_hooks(settings: Settings) -> HealthCheck | None:
    """Report which plans the hooks start, and which they cannot start; None if there are no hooks."""
    if not settings.hooks:
        return None
    plans = Home(settings).library.look_now()
    facts: dict[str, JsonValue] = {"hooks": [hook.name for hook in settings.hooks]}
    faults = [
        f"hook {hook.name!r} starts the plan {hook.plan!r}, which {fault}"
        for hook in settings.hooks
        if (fault := _find_fault_for_hooks(plans.get(hook.plan))) is not None
    ]
    problems = [f"hook {hook.name!r}: {hook.problem}" for hook in settings.hooks if hook.problem is not None]
    if faults:
        return HealthCheck("hooks", "broken", join_some([*faults, *problems]), facts)
    if problems:
        # Only a warning: the server may have environment variables that this process lacks.
        text = f"with this environment, {'; '.join(problems)}"
        return HealthCheck("hooks", "warning", text, facts)
    text = ", ".join(f"/hooks/{hook.name} starts {hook.plan!r}" for hook in settings.hooks[:MAX_HOOKS])
    return HealthCheck("hooks", "ok", text, facts)


def _find_fault_for_hooks(plan: SavedPlan | None) -> str | None:
    """Return why a hook cannot start the plan; None if it can. A hook gives only the input `event`."""
    if plan is None:
        return "is not there"
    inputs = close_schema(plan.inputs or {})
    takes_others = inputs["additionalProperties"] is not False or "patternProperties" in inputs
    if plan.inputs is None or ("event" not in read_properties(inputs) and not takes_others):
        return "takes no input 'event'"
    required, defaults = inputs.get("required"), read_defaults(inputs)
    names = required if isinstance(required, list) else []
    missing = [repr(name) for name in names if name != "event" and name not in defaults]
    return f"needs {', '.join(missing)}, while a hook gives only 'event'" if missing else None


def check_plans(settings: Settings) -> HealthCheck:
    """Report every unusable file in the plan folders, only as a warning, because planwarden works without that file."""
    library = Home(settings).library
    plans = library.look_now()
    folders: list[JsonValue] = [*map(str, library.folders)]
    # At most one problem for each file, because the report has one line for each.
    problems: dict[str, JsonValue] = dict(_list_problems(plans, settings))
    facts: dict[str, JsonValue] = {"folders": folders, "plans": list[JsonValue](plans.names), "unavailable": problems}
    if not plans.plans and not problems:
        text = f"none; they are files NAME.yaml or NAME.json in {settings.home / PLAN_FOLDER}"
        return HealthCheck("plans", "off", text, facts)
    more = " …" if len(plans.names) > MAX_PLANS else ""
    text = f"{len(plans.names)} saved: {', '.join(plans.names[:MAX_PLANS])}{more}" if plans.names else "none usable"
    text += f"; problems: {len(problems)}" if problems else ""
    return HealthCheck("plans", "warning" if problems else "ok", text, facts)


def _list_problems(catalogue: PlanCatalogue, settings: Settings) -> Iterator[tuple[str, str]]:
    yield from ((str(fault.path), fault.reason) for fault in catalogue.faults)
    yield from ((str(hidden.path), f"not used: {hidden.by} has its name") for hidden in catalogue.hidden)
    if catalogue.plans:
        yield from _list_clashes(catalogue.plans, settings)


def _list_clashes(plans: tuple[SavedPlan, ...], settings: Settings) -> Iterator[tuple[str, str]]:
    # Imported here, because `listing` imports the SDK, which most checks do not need.
    from planwarden.server.mcp.tools.listing import describe_clash

    for plan in plans:
        clash = describe_clash(plan.name, plans, as_tools=settings.tables.plans.as_tools)
        if clash is not None:
            yield str(plan.path), f"`planwarden run` runs it, but {clash}"
