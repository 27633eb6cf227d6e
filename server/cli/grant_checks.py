"""The check of `doctor` on standing grants: what runs without a question now, and what no longer does."""

from collections.abc import Iterator, Mapping, Sequence

import anyio
from pydantic import JsonValue

from planwarden.agent.approval.grants import VERSION_DIGITS
from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.ports.grant import Grant, GrantedStep
from planwarden.server.cli.health import HealthCheck
from planwarden.server.cli.terminal.commands import shorten
from planwarden.server.plans.library import build_library
from planwarden.server.settings.configuration import PLAN_FOLDER, Settings
from planwarden.server.views.facts import escape_text
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.storage.opening import open_store

MAX_NAMED = 5


def check_grants(settings: Settings) -> Iterator[HealthCheck]:
    """Yields the check if there are grants that have not ended."""
    try:
        grants = anyio.run(_read_grants, settings)
    except PlanwardenError as error:
        yield HealthCheck(name="grants", status="broken", message=error.message)
        return
    if grants:
        plans = build_library(settings.home / PLAN_FOLDER, settings.plan_folders).look_now().plans
        yield _check_grants(grants, {plan.name: plan.digest for plan in plans})


async def _read_grants(settings: Settings) -> tuple[Grant, ...]:
    if not settings.store.is_made:
        return ()
    async with open_store(settings.store) as store:
        return await store.grants(only_open=True)


def _check_grants(grants: Sequence[Grant], versions: Mapping[str, str]) -> HealthCheck:
    for_steps = [(grant, grant.step) for grant in grants if grant.step is not None]
    changed = [text for grant, step in for_steps if (text := _describe_change(grant, step, versions)) is not None]
    last = format_instant(to_utc(max(grant.expires_at for grant in grants)), "minutes")
    facts: dict[str, JsonValue] = {
        "open": len(grants),
        "forSteps": len(for_steps),
        "lastEndsAt": last,
        "changed": list[JsonValue](changed),
    }
    text = f"{len(grants)} open, {len(for_steps)} of them for steps of saved plans; the last one ends at {last}"
    if not changed:
        return HealthCheck(name="grants", status="ok", message=text, facts=facts)
    more = f"; and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
    return HealthCheck(
        name="grants", status="warning", message=f"{text}; {'; '.join(changed[:MAX_NAMED])}{more}", facts=facts
    )


def _describe_change(grant: Grant, step: GrantedStep, versions: Mapping[str, str]) -> str | None:
    name = step.plan_name
    if versions.get(name) == step.plan_digest:
        return None
    happened = "is another version now" if name in versions else "is not there"
    return (
        f"grant {shorten(grant.grant_id)} lets {escape_text(grant.tool_name)} run in {escape_text(name)}, but version "
        f"{step.plan_digest[:VERSION_DIGITS]} {happened}, so new runs ask"
    )
