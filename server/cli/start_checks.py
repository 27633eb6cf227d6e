"""The checks of `doctor` on what starts saved plans: schedules and hooks. A home that has none has no line."""

import shlex
from collections.abc import Iterator
from datetime import datetime

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, PlanwardenError
from planwarden.server.cli.health import HealthCheck
from planwarden.server.cli.terminal.commands import shorten
from planwarden.server.plans.library import build_library
from planwarden.server.schedules.cron import find_zone
from planwarden.server.settings.catalogue import build_command_prefix
from planwarden.server.settings.configuration import PLAN_FOLDER, Settings
from planwarden.server.views.schedule import NOT_ATTENDED
from planwarden.storage.opening import open_store
from planwarden.storage.ports.schedules import PlanSchedule

MAX_NAMED = 5


def check_starts(settings: Settings) -> Iterator[HealthCheck]:
    """Yields a check of the schedules and one of the hooks, where there are any."""
    plans = {plan.name for plan in build_library(settings.home / PLAN_FOLDER, settings.plan_folders).look_now().plans}
    try:
        schedules, is_attended = anyio.run(_read_schedules, settings)
    except PlanwardenError as error:
        yield HealthCheck(name="schedules", status="broken", message=error.message)
    else:
        if schedules:
            command = shlex.join([*build_command_prefix(settings.home, settings.servers_file), "serve", "--http"])
            yield _check_schedules(schedules, plans, None if is_attended else command)
    if settings.hooks:
        yield _check_hooks(settings, plans)


async def _read_schedules(settings: Settings) -> tuple[tuple[PlanSchedule, ...], bool]:
    """Return the schedules, and whether a process starts what is due."""
    if not settings.store.is_made:
        return (), False
    async with open_store(settings.store) as store:
        return await store.schedules.all(), await store.schedules.is_attended()


def _check_schedules(schedules: tuple[PlanSchedule, ...], plans: set[str], serve_command: str | None) -> HealthCheck:
    """Return the check; `serve_command` starts a server where none starts what is due."""
    problems: list[str] = []
    for schedule in schedules:
        if schedule.plan not in plans:
            problems.append(
                f"schedule {shorten(schedule.schedule_id)} starts the plan {schedule.plan!r}, which is not there"
            )
        try:
            find_zone(schedule.timezone)
        except InvalidArguments as error:
            problems.append(f"schedule {shorten(schedule.schedule_id)}: {error.message}")
    waiting = [schedule for schedule in schedules if schedule.paused_at is None]
    facts: dict[str, JsonValue] = {"count": len(schedules), "paused": len(schedules) - len(waiting)}
    if problems:
        return _report("schedules", problems, facts)
    text = f"{len(schedules)}, {len(schedules) - len(waiting)} of them paused"
    if waiting:
        first = min(waiting, key=lambda schedule: schedule.next_at)
        when = datetime.fromtimestamp(first.next_at, find_zone(first.timezone)).isoformat(timespec="minutes")
        facts["nextAt"] = when
        text += f"; the next tick is at {when}, plan {first.plan!r}"
        if serve_command is not None:
            text += f"; {NOT_ATTENDED}: a host with planwarden, or `{serve_command}`"
    is_idle = bool(waiting) and serve_command is not None
    return HealthCheck(name="schedules", status="warning" if is_idle else "ok", message=text, facts=facts)


def _check_hooks(settings: Settings, plans: set[str]) -> HealthCheck:
    facts: dict[str, JsonValue] = {"hooks": [hook.name for hook in settings.hooks]}
    missing = [
        f"hook {hook.name!r} starts the plan {hook.plan!r}, which is not there"
        for hook in settings.hooks
        if hook.plan not in plans
    ]
    problems = [f"hook {hook.name!r}: {hook.problem}" for hook in settings.hooks if hook.problem is not None]
    if missing:
        return _report("hooks", [*missing, *problems], facts)
    if problems:
        # Not broken: the server may have the environment that this process lacks.
        text = f"with this environment, {'; '.join(problems)}"
        return HealthCheck(name="hooks", status="warning", message=text, facts=facts)
    text = ", ".join(f"/hooks/{hook.name} starts {hook.plan!r}" for hook in settings.hooks[:MAX_NAMED])
    return HealthCheck(name="hooks", status="ok", message=text, facts=facts)


def _report(name: str, problems: list[str], facts: dict[str, JsonValue]) -> HealthCheck:
    more = f"; and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
    return HealthCheck(name=name, status="broken", message="; ".join(problems[:MAX_NAMED]) + more, facts=facts)
