"""The checks of `doctor` on the store: its integrity, secrets and processes, and executions that wait for a process.

`doctor --replay` also checks whether this version can continue the stored executions.
"""

from importlib.metadata import version
from typing import Literal

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import LogUnreadable, PlanwardenError, count_of
from planwarden.agent.core.control.replay import ReplayFault, can_go_on, find_replay_fault
from planwarden.agent.core.execution.state import new_execution
from planwarden.agent.ports.store import Header, Store
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.server.api.waiting import describe_missing
from planwarden.server.cli.checks.report import HealthCheck
from planwarden.server.cli.home import use_store
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.escaping import shorten_id
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.storage.opening import CompleteStore
from planwarden.storage.sealing import SealedSecrets
from planwarden.storage.secret_files import SECRET_KEY_VARIABLE
from planwarden.storage.sql.processes import ProcessFacts, registry_of

PAGE = 200
MAX_FAULTS = 20
"""The most logs with faults that are listed; the others are only counted."""
SLOW_COMMIT_MS = 250
LATE_SEAL_MS = 10_000
"""Living processes seal audit rows twice a second. If a row of this age is not sealed, no process does so."""
Replay = Literal["unfinished", "all"]
"""Which logs are checked."""
MAX_NAMED = 3
"""The most logs with faults that the message names; the facts list up to `MAX_FAULTS`."""
MAX_WAITING = 20
"""The most executions without an owner that are checked."""
SHOWN_DIGITS = 12


def check_store(settings: Settings) -> HealthCheck:
    """Say whether the database is whole and how much is in it."""
    location = settings.store
    named_store: dict[str, JsonValue] = {"url" if location.path is None else "file": str(location)}
    if not location.is_made:
        text = f"{location} does not exist yet; the first execution creates it"
        return HealthCheck("store", "off", text, named_store)
    report = use_store(settings, lambda store: store.check())
    facts: dict[str, JsonValue] = {
        **named_store,
        "sizeBytes": report["size_bytes"],
        "integrity": report["integrity"],
        "schema": report["schema"],
        "executions": report["executions"],
        "running": report["running"],
        "pendingSuspensions": report["pending"],
    }
    if report["integrity"] != "ok":
        text = f"{location} is damaged: {report['integrity']}; restore a backup, or move it away to start afresh"
        return HealthCheck("store", "broken", text, facts)
    kind, size_kib = "", int(report["size_bytes"]) / 1024
    size = f"{size_kib:.0f} KiB" if size_kib < 1024 else f"{size_kib / 1024:.1f} MiB"
    if "server" in report:
        kind = f"PostgreSQL {report['server']}, a commit takes {report['commit_ms']} ms, "
        facts["serverVersion"] = report["server"]
        facts["commitMs"] = report["commit_ms"]
        facts["audit"] = {"unsealed": report["unsealed"], "unsealedForMs": report["unsealed_ms"]}
        facts["leases"] = {"held": report["leases"], "runOut": report["expired_leases"]}
    text = (
        f"{location}: {kind}{size}, schema {report['schema']}, intact; "
        f"{report['executions']} executions, {report['running']} running, open questions: {report['pending']}"
    )
    is_slow = int(report.get("commit_ms", 0)) > SLOW_COMMIT_MS or int(report.get("unsealed_ms", 0)) > LATE_SEAL_MS
    return HealthCheck("store", "warning" if is_slow else "ok", text, facts)


class ReplayReport(msgspec.Struct, kw_only=True):
    """The result of replaying logs."""

    executions: int = 0
    events: int = 0
    """The events in the logs that could be read."""
    fault_count: int = 0
    faults: list[tuple[Header, ReplayFault]] = msgspec.field(default_factory=list[tuple[Header, ReplayFault]])
    """The first logs that do not replay, in the order of their ids."""


async def replay_logs(store: Store, *, has_finished: bool) -> ReplayReport:
    """Return a report on replaying the log of every execution that can go on; with `has_finished`, of every one.

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
            report.faults.append((header, fault))


def check_replay(settings: Settings, replay: Replay) -> HealthCheck:
    """Replay the logs that `replay` selects, and report those that fail."""
    if not settings.store.is_made:
        return HealthCheck("replay", "off", "there is no store yet")
    report = use_store(settings, lambda store: replay_logs(store, has_finished=replay == "all"))
    which = "execution" if replay == "all" else "unfinished execution"
    facts: dict[str, JsonValue] = {
        "checked": replay,
        "executions": report.executions,
        "events": report.events,
        "faultCount": report.fault_count,
        "faults": [
            {
                "executionId": header.execution_id,
                "threadId": header.thread_id,
                "sequence": fault.sequence,
                "event": fault.event,
                "reason": fault.reason,
            }
            for header, fault in report.faults
        ],
    }
    if not report.fault_count:
        text = f"{count_of(report.executions, which)} replay under {version('planwarden')}, {report.events} events"
        return HealthCheck("replay", "ok", text, facts)
    examples = "; ".join(
        f"execution {shorten_id(header.execution_id)} {fault.describe()}" for header, fault in report.faults[:MAX_NAMED]
    )
    more = f"; {report.fault_count - MAX_NAMED} more" if report.fault_count > MAX_NAMED else ""
    text = f"{report.fault_count} of {count_of(report.executions, which)} do not replay: {examples}{more}"
    return HealthCheck("replay", "broken", text, facts)


def check_secrets(settings: Settings) -> HealthCheck | None:
    """Say whether the store has a key for its secrets; return None for a store that only one machine uses."""
    if settings.store.path is not None:
        return None
    key = settings.environment.get(SECRET_KEY_VARIABLE, "")
    if use_store(settings, lambda store: SealedSecrets(store, key).is_in_use()):
        return HealthCheck("secrets", "ok", f"{SECRET_KEY_VARIABLE} is the key of this store")
    text = f"the store has no key yet; the first server or worker makes {SECRET_KEY_VARIABLE} its key"
    return HealthCheck("secrets", "off", text)


def check_processes(settings: Settings) -> HealthCheck | None:
    """Say which processes live and which executions wait for a process; None for a store that only one machine uses."""
    if settings.store.path is not None:
        return None

    async def read(store: CompleteStore) -> tuple[tuple[ProcessFacts, ...], dict[str, str]]:
        registry = registry_of(store)
        living = () if registry is None else await registry.living()
        return living, await _find_waiting(store, living)

    living, waiting = use_store(settings, read)
    facts: dict[str, JsonValue] = {
        "processes": [
            {
                "host": process.host,
                "pid": process.pid,
                "role": process.role,
                "version": process.version,
                "startedAt": format_instant(to_utc(process.started_at)),
                "policy": process.policy[:SHOWN_DIGITS],
                "tools": len(process.tools),
            }
            for process in living
        ],
        "waiting": [{"executionId": name, "waitsFor": text} for name, text in waiting.items()],
    }
    if not living:
        text = "no process serves or works on this store now" + ("" if not waiting else f"; {_first(waiting)}")
        return HealthCheck("processes", "warning" if waiting else "off", text, facts)
    text = ", ".join(f"{process.host}:{process.pid} ({process.role}, {process.version})" for process in living)
    problems = [_first(waiting)] if waiting else []
    outdated = [f"{process.host}:{process.pid}" for process in living if process.policy != living[0].policy]
    if outdated:
        problems.append(
            f"{', '.join(outdated)} started with another policy than {living[0].host}:{living[0].pid}, which started "
            "last: they still finish their executions; restart them with the newer planwarden.toml"
        )
    message = "; ".join([text, *problems])
    return HealthCheck("processes", "warning" if problems else "ok", message, facts)


async def _find_waiting(store: Store, living: tuple[ProcessFacts, ...]) -> dict[str, str]:
    """Return what each running execution without an owner waits for, by the id of the execution."""
    reasons: dict[str, str] = {}
    for execution_id in await store.orphans(MAX_WAITING):
        header = await store.header(execution_id)
        if header is None or header.owner is not None:
            continue
        try:
            reasons[execution_id] = describe_missing(await load_execution(store, header), living)
        except PlanwardenError as error:
            reasons[execution_id] = error.message
    return reasons


def _first(waiting: dict[str, str]) -> str:
    execution_id, text = next(iter(waiting.items()))
    more = "" if len(waiting) == 1 else f" ({len(waiting) - 1} more wait)"
    return f"execution {shorten_id(execution_id)}: {text[:1].lower()}{text[1:].rstrip('.')}{more}"
