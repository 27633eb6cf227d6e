"""The check of `doctor --replay`: whether this version can continue the stored executions."""

from importlib.metadata import version
from typing import Literal

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import LogUnreadable
from planwarden.agent.core.control.replay import ReplayFault, can_go_on, find_replay_fault
from planwarden.agent.core.execution.state import new_execution
from planwarden.agent.ports.store import Header, Store
from planwarden.server.cli.checks.report import HealthCheck
from planwarden.server.cli.home import use_store
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.escaping import shorten_id

PAGE = 200
MAX_FAULTS = 20
"""Logs that are named; the others are only counted."""


class UnreplayableLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log that does not replay."""

    execution_id: str
    thread_id: str
    fault: ReplayFault


class ReplayReport(msgspec.Struct, kw_only=True):
    """What became of the logs that were replayed."""

    executions: int = 0
    events: int = 0
    """Of the logs that could be read."""
    fault_count: int = 0
    faults: list[UnreplayableLog] = msgspec.field(default_factory=list[UnreplayableLog])
    """The first ones, by id."""


async def replay_logs(store: Store, *, has_finished: bool) -> ReplayReport:
    """Replay the log of every execution that can go on; with `has_finished` of the others too.

    Raises:
        StoreError: the store cannot be read; a single damaged log is a fault in the report instead.
    """
    report = ReplayReport()
    page = await store.walk("", PAGE)
    while page:
        for header in page:
            if has_finished or can_go_on(header.status):
                await _replay(store, header, report)
        page = await store.walk(page[-1].execution_id, PAGE)
    return report


async def _replay(store: Store, header: Header, report: ReplayReport) -> None:
    report.executions += 1
    try:
        recorded = await store.read(header.execution_id)
    except LogUnreadable as error:
        fault = ReplayFault.of_unreadable(error)
    else:
        report.events += len(recorded)
        fault = find_replay_fault(new_execution(header.execution_id, header.thread_id, header.principal), recorded)
    if fault is not None:
        report.fault_count += 1
        if len(report.faults) < MAX_FAULTS:
            log = UnreplayableLog(execution_id=header.execution_id, thread_id=header.thread_id, fault=fault)
            report.faults.append(log)


Replay = Literal["unfinished", "all"]
"""Which logs are checked."""
MAX_NAMED = 3
"""Logs that the sentence names; the facts hold more."""


def check_replay(settings: Settings, replay: Replay) -> HealthCheck:
    """Replay the logs of the store that the option names."""
    if not settings.store.is_made:
        return HealthCheck("replay", "off", "there is no store yet")
    report = use_store(settings, lambda store: replay_logs(store, has_finished=replay == "all"))
    which = "execution(s)" if replay == "all" else "unfinished execution(s)"
    facts: dict[str, JsonValue] = {
        "checked": replay,
        "executions": report.executions,
        "events": report.events,
        "faultCount": report.fault_count,
        "faults": [
            {
                "executionId": log.execution_id,
                "threadId": log.thread_id,
                "sequence": log.fault.sequence,
                "event": log.fault.event,
                "reason": log.fault.reason,
            }
            for log in report.faults
        ],
    }
    if not report.fault_count:
        text = f"{report.executions} {which} replay under {version('planwarden')}, {report.events} events"
        return HealthCheck("replay", "ok", text, facts)
    examples = "; ".join(
        f"execution {shorten_id(log.execution_id)} {log.fault.describe()}" for log in report.faults[:MAX_NAMED]
    )
    more = f"; {report.fault_count - MAX_NAMED} more" if report.fault_count > MAX_NAMED else ""
    text = f"{report.fault_count} of {report.executions} {which} do not replay: {examples}{more}"
    return HealthCheck("replay", "broken", text, facts)
