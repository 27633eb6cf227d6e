"""The check of `doctor --replay`: whether this version can continue the stored executions."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Literal

import anyio
from pydantic import JsonValue

from planwarden.server.api.replay import ReplayReport, UnreplayableLog, replay_logs
from planwarden.server.cli.checks.report import HealthCheck, run_check
from planwarden.server.cli.terminal.commands import shorten
from planwarden.server.settings.configuration import Settings
from planwarden.storage.opening import open_store

Replay = Literal["unfinished", "all"]
"""Which logs are checked."""
MAX_NAMED = 3
"""Logs that the sentence names; the facts hold more."""


def check_replay(settings: Settings, replay: Replay | None) -> Iterator[HealthCheck]:
    """Yields the check if it was asked for."""
    if replay is not None:
        yield run_check("replay", lambda: _check_logs(settings, replay))


def _check_logs(settings: Settings, replay: Replay) -> HealthCheck:
    if not settings.store.is_made:
        return HealthCheck(name="replay", status="off", message="there is no store yet")

    async def read() -> ReplayReport:
        async with open_store(settings.store) as store:
            return await replay_logs(store, has_finished=replay == "all")

    report = anyio.run(read)
    which = "execution(s)" if replay == "all" else "unfinished execution(s)"
    facts: dict[str, JsonValue] = {
        "checked": replay,
        "executions": report.executions,
        "events": report.events,
        "faultCount": report.fault_count,
        "faults": [
            {
                "executionId": found.execution_id,
                "threadId": found.thread_id,
                "sequence": found.fault.sequence,
                "event": found.fault.event,
                "reason": found.fault.reason,
            }
            for found in report.faults
        ],
    }
    if not report.fault_count:
        text = f"{report.executions} {which} replay under {version('planwarden')}, {report.events} events"
        return HealthCheck(name="replay", status="ok", message=text, facts=facts)
    named = "; ".join(map(_describe_log, report.faults[:MAX_NAMED]))
    more = f"; {report.fault_count - MAX_NAMED} more" if report.fault_count > MAX_NAMED else ""
    text = f"{report.fault_count} of {report.executions} {which} do not replay: {named}{more}"
    return HealthCheck(name="replay", status="broken", message=text, facts=facts)


def _describe_log(found: UnreplayableLog) -> str:
    return f"execution {shorten(found.execution_id)} {found.fault.describe()}"
