"""Whether the stored logs replay under the installed code; reads one log at a time, and changes nothing."""

import msgspec

from planwarden.agent.common.errors import LogUnreadable
from planwarden.agent.core.replay import ReplayFault, can_go_on, find_replay_fault
from planwarden.agent.core.state import new_execution
from planwarden.agent.ports.store import Header, Store

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
    """Replays the log of every execution that can go on; with `has_finished` of the others too.

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
