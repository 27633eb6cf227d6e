"""The checks of `doctor`.

Each check is independent: a broken settings file does not hide a broken database. No check sends anything or creates a
database; the one of the home writes a file that is gone at once. Opening an existing database migrates an older schema,
as every command does.
"""

import importlib.util
import os
import platform
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.execution.notifications import SUBSCRIBABLE
from planwarden.server.api.stalls import WARNING_S, read_stalls
from planwarden.server.api.stalls import describe as describe_stalls
from planwarden.server.cli.arguments import describe_missing_home, is_home_named
from planwarden.server.cli.checks.permits import check_gates, check_grants, check_guard, check_rules
from planwarden.server.cli.checks.plans import check_plans, check_starts
from planwarden.server.cli.checks.processes import check_shared
from planwarden.server.cli.checks.replay import Replay, check_replay
from planwarden.server.cli.checks.report import DoctorReport, HealthCheck, run_check
from planwarden.server.cli.checks.servers import check_downstream
from planwarden.server.settings.catalogue import build_registry
from planwarden.server.settings.configuration import DATABASE, FILE, Settings, find_home, load_settings
from planwarden.server.settings.models import build_model
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.storage.opening import open_store
from planwarden.storage.sqlite.database import needs_write_lock
from planwarden.tools.web.search import search_endpoint_from_environment

PROBE_BYTES = 4096
"""Written into the home, and gone at once: a full disk may still take an empty file."""
SLOW_COMMIT_MS = 250
LATE_SEAL_MS = 10_000
"""Rows of the audit are sealed every half second while a process lives; after this, no process seals."""


def run_checks(
    home: Path | None,
    model: str | None,
    mcp_config: Path | None = None,
    store: str | None = None,
    replay: Replay | None = None,
) -> DoctorReport:
    """Run every check, after those that it depends on. It starts the downstream servers and ends them again."""
    folder = find_home(home, os.environ)
    settings, *read = _read_settings(home, model, mcp_config, store, folder)
    is_broken = read[0].status == "broken"
    no_settings = "the settings are broken" if is_broken else None
    no_servers = no_settings or (None if len(read) == 1 else "the file of the servers is broken")
    checks = (
        _check_home(folder, settings, is_named=is_home_named(home)),
        read[0],
        # Before the store check: opening the store tightens the mode of the folder.
        _check_file_modes(settings),
        run_check("store", lambda: _check_store(settings)),
        *check_shared(settings),
        *check_replay(settings, replay),
        _check_sqlite(),
        run_check("model", lambda: _check_model(settings), needs=no_settings),
        run_check("tools", lambda: _check_tools(settings), needs=no_servers),
        run_check("rules", lambda: check_rules(settings), needs=no_servers),
        run_check("plans", lambda: check_plans(settings), needs=no_settings),
        _check_web_extra(),
        run_check("search", lambda: _check_search(settings), needs=no_settings),
        run_check("notify", lambda: _check_notify(settings), needs=no_settings),
        *(read[1:] or check_downstream(settings, needs=no_settings, has_home=folder.is_dir())),
        *(() if is_broken else check_starts(settings)),
        *(() if is_broken else check_grants(settings)),
        run_check("guard", lambda: check_guard(settings)),
        run_check("gate", check_gates),
        *_check_stalls(settings),
    )
    return DoctorReport(
        version=version("planwarden"),
        python=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        home=str(folder),
        checks=checks,
    )


def _check_home(folder: Path, settings: Settings, *, is_named: bool) -> HealthCheck:
    """Return whether the folder is there and can be written: the default one is made by the first execution."""
    facts: dict[str, JsonValue] = {"folder": str(folder)}
    if (missing := describe_missing_home(folder)) is not None:
        is_broken = is_named or os.path.lexists(folder)
        return HealthCheck(name="home", status="broken" if is_broken else "off", message=missing, facts=facts)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
    except OSError as error:
        text = f"{folder} cannot be written to: {error.strerror}; make it writable for this user, or name another home"
        status = "broken" if settings.store.path == folder / DATABASE else "warning"
        return HealthCheck(name="home", status=status, message=text, facts=facts)
    return HealthCheck(name="home", status="ok", message=str(folder), facts=facts)


def _read_settings(
    home: Path | None, model: str | None, mcp_config: Path | None, store: str | None, folder: Path
) -> tuple[Settings, *tuple[HealthCheck, ...]]:
    """Return the settings as far as they can be read, the check of their file, and the one of the servers' file where
    that is broken."""
    try:
        settings = load_settings(home=home, model=model, mcp_config=mcp_config, store=store, has_servers=False)
    except PlanwardenError as error:
        return Settings(home=folder), HealthCheck(name="settings", status="broken", message=error.message)
    check = _check_settings(settings)
    try:
        return load_settings(home=home, model=model, mcp_config=mcp_config, store=store), check
    except PlanwardenError as error:
        return settings, check, HealthCheck(name="downstream", status="broken", message=error.message)


def _check_settings(settings: Settings) -> HealthCheck:
    path = settings.home / FILE
    if not path.exists():
        return HealthCheck(name="settings", status="off", message=f"no {FILE}; the defaults apply")
    facts: dict[str, JsonValue] = {"file": str(path), "retentionDays": settings.tables.retention.days}
    if settings.policy.trust_caller:
        text = "approvals.trust_caller is on: the calling model's word counts as an approval"
        return HealthCheck(name="settings", status="warning", message=text, facts=facts)
    return HealthCheck(name="settings", status="ok", message=str(path), facts=facts)


def _check_store(settings: Settings) -> HealthCheck:
    location = settings.store
    place: dict[str, JsonValue] = {"url" if location.path is None else "file": str(location)}
    if not location.is_made:
        text = f"{location} does not exist yet; the first execution creates it"
        return HealthCheck(name="store", status="off", message=text, facts=place)

    async def read() -> dict[str, int | str]:
        async with open_store(location) as store:
            return await store.check()

    report = anyio.run(read)
    facts: dict[str, JsonValue] = {
        **place,
        "sizeBytes": report["size_bytes"],
        "integrity": report["integrity"],
        "schema": report["schema"],
        "executions": report["executions"],
        "running": report["running"],
        "pendingSuspensions": report["pending"],
    }
    if report["integrity"] != "ok":
        text = f"{location} is damaged: {report['integrity']}; restore a backup, or move it away to start afresh"
        return HealthCheck(name="store", status="broken", message=text, facts=facts)
    kind = ""
    if "server" in report:
        kind = f"PostgreSQL {report['server']}, a commit takes {report['commit_ms']} ms, "
        facts["serverVersion"] = report["server"]
        facts["commitMs"] = report["commit_ms"]
        facts["audit"] = {"unsealed": report["unsealed"], "unsealedForMs": report["unsealed_ms"]}
        facts["leases"] = {"held": report["leases"], "runOut": report["expired_leases"]}
    text = (
        f"{location}: {kind}{_format_size(int(report['size_bytes']))}, schema {report['schema']}, intact; "
        f"{report['executions']} executions, {report['running']} running, open questions: {report['pending']}"
    )
    is_slow = int(report.get("commit_ms", 0)) > SLOW_COMMIT_MS or int(report.get("unsealed_ms", 0)) > LATE_SEAL_MS
    return HealthCheck(name="store", status="warning" if is_slow else "ok", message=text, facts=facts)


def _check_file_modes(settings: Settings) -> HealthCheck:
    """Plans and approvals are private, so only the owner may read the files."""
    if sys.platform == "win32":
        return HealthCheck(name="privacy", status="off", message="file modes are not checked on Windows")
    required_modes = {settings.home: 0o700}
    database = settings.store.path
    if database is not None:
        required_modes |= {Path(f"{database}{tail}"): 0o600 for tail in ("", "-wal", "-shm", ".lock")}
    modes: dict[str, JsonValue] = {}
    open_to_others: list[str] = []
    for path, mode in required_modes.items():
        try:
            actual_mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        modes[path.name] = f"{actual_mode:04o}"
        if actual_mode & 0o077:
            open_to_others.append(f"others can read {path} (mode {actual_mode:04o}): chmod {mode:o} {path}")
    if open_to_others:
        # Before the first execution the home holds only what a person put there.
        status = "broken" if database is not None and database.exists() else "warning"
        return HealthCheck(name="privacy", status=status, message="; ".join(open_to_others), facts={"modes": modes})
    text = "only this user can read the home" if modes else "no home yet"
    return HealthCheck(name="privacy", status="ok" if modes else "off", message=text, facts={"modes": modes})


def _check_sqlite() -> HealthCheck:
    locks = needs_write_lock()
    how = "older than 3.51.3, so writers also take a lock file" if locks else "writers need no lock file"
    facts: dict[str, JsonValue] = {"version": sqlite3.sqlite_version, "usesWriteLock": locks}
    return HealthCheck(name="sqlite", status="ok", message=f"{sqlite3.sqlite_version}, {how}", facts=facts)


def _check_model(settings: Settings) -> HealthCheck:
    build_model(settings.model, settings.environment)
    text = "the calling assistant thinks; no key needed" if settings.model == "caller" else settings.model
    return HealthCheck(name="model", status="ok", message=text, facts={"model": settings.model})


def _check_tools(settings: Settings) -> HealthCheck:
    definitions = build_registry(settings).definitions()
    missing: dict[str, JsonValue] = {tool.name: tool.unavailable for tool in definitions if tool.unavailable}
    usable: list[JsonValue] = [tool.name for tool in definitions if not tool.unavailable]
    text = f"{len(usable)} usable: {', '.join(map(str, usable[:12]))}" + (" …" if len(usable) > 12 else "")
    return HealthCheck(name="tools", status="ok", message=text, facts={"available": usable, "unavailable": missing})


def _check_web_extra() -> HealthCheck:
    if importlib.util.find_spec("trafilatura") is None:
        return HealthCheck(name="web extra", status="off", message="not installed; webExtract needs planwarden[web]")
    return HealthCheck(name="web extra", status="ok", message=f"trafilatura {version('trafilatura')}")


def _check_search(settings: Settings) -> HealthCheck:
    endpoint = search_endpoint_from_environment(settings.environment)
    if endpoint is None:
        return HealthCheck(name="search", status="off", message="no search service; PLANWARDEN_SEARCH names one")
    facts: dict[str, JsonValue] = {"provider": endpoint.provider, "baseUrl": endpoint.base_url}
    return HealthCheck(name="search", status="ok", message=f"{endpoint.provider} at {endpoint.base_url}", facts=facts)


def _check_notify(settings: Settings) -> HealthCheck:
    """Show hosts only, because the address of a webhook and the topic of an ntfy server can be secrets."""
    waiting = _read_waiting(settings)
    listed: list[JsonValue] = [
        {
            "name": channel.name,
            "kind": channel.kind,
            "host": channel.host,
            "events": [kind for kind in SUBSCRIBABLE if kind in channel.events],
            "waiting": waiting.get(channel.name, 0),
            "problem": channel.problem,
        }
        for channel in settings.channels
    ]
    facts: dict[str, JsonValue] = {"channels": listed}
    problems = [f"{item.name}: {item.problem}" for item in settings.channels if item.problem is not None]
    if problems:
        # Not broken: the processes that send notifications may have the environment that this one lacks.
        text = f"not deliverable with this environment: {'; '.join(problems)}"
        return HealthCheck(name="notify", status="warning", message=text, facts=facts)
    names = [
        f"{item.name} ({'everything' if len(item.events) == len(SUBSCRIBABLE) else ' '.join(sorted(item.events))})"
        for item in settings.channels
    ]
    if not names:
        text = f"nobody is notified of questions; [[notify]] in {FILE} adds a channel"
        return HealthCheck(name="notify", status="off", message=text)
    text = f"{', '.join(names)}; waiting: {sum(waiting.values())}"
    return HealthCheck(name="notify", status="ok", message=text, facts=facts)


def _read_waiting(settings: Settings) -> Mapping[str, int]:
    """Return how many notifications wait for each channel."""

    async def read() -> Mapping[str, int]:
        async with open_store(settings.store) as store:
            return await store.notifications.waiting()

    if settings.store.is_made:
        # The check of the store reports its problems.
        with suppress(PlanwardenError):
            return anyio.run(read)
    return {}


def _check_stalls(settings: Settings) -> Iterator[HealthCheck]:
    """Yield a check if the event loop of a server of this home stood still."""
    stalls = read_stalls(settings.home)
    if stalls is not None:
        when = format_instant(to_utc(stalls.at))
        facts: dict[str, JsonValue] = {"count": stalls.count, "longestSeconds": round(stalls.longest_s, 3), "at": when}
        text = f"{describe_stalls(stalls)}; the longest ended at {when}"
        yield HealthCheck(
            name="stalls", status="warning" if stalls.longest_s >= WARNING_S else "ok", message=text, facts=facts
        )


def _format_size(size_bytes: int) -> str:
    return f"{size_bytes / 1024:.0f} KiB" if size_bytes < 1024 * 1024 else f"{size_bytes / 1024 / 1024:.1f} MiB"
