"""The checks of `doctor`.

Each check is independent: a broken settings file does not hide a broken database. No check sends anything or creates a
database. Opening an existing database migrates an older schema, as every command does.
"""

import importlib.util
import os
import platform
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.notifications import SUBSCRIBABLE
from planwarden.server.api.stalls import WARNING_S, read_stalls
from planwarden.server.api.stalls import describe as describe_stalls
from planwarden.server.cli.health import DoctorReport, HealthCheck
from planwarden.server.cli.terminal.lines import one_line
from planwarden.server.settings.catalogue import build_downstream, build_registry
from planwarden.server.settings.configuration import (
    FILE,
    MODEL_VARIABLE,
    SERVERS_FILE,
    Settings,
    find_home,
    load_settings,
)
from planwarden.server.settings.models import build_model
from planwarden.storage.sqlite.database import latest_version, needs_write_lock
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.downstream.health import ServerHealth
from planwarden.tools.web.search_service import search_endpoint_from_environment


def run_checks(home: Path | None, model: str | None, mcp_config: Path | None = None) -> DoctorReport:
    """Runs every check, after those that it depends on. It starts the downstream servers and ends them again."""
    folder = find_home(home, os.environ)
    settings, settings_check = _check_settings(home, model, mcp_config, folder)
    checks = (
        settings_check,
        # Before the store check: opening the store tightens the mode of the folder.
        _check_file_modes(settings),
        _run_check("store", lambda: _check_store(settings)),
        _check_sqlite(),
        _run_check("model", lambda: _check_model(settings)),
        _run_check("tools", lambda: _check_tools(settings)),
        _check_web_extra(),
        _run_check("search", lambda: _check_search(settings)),
        _run_check("notify", lambda: _check_notify(settings)),
        *_check_downstream(settings),
        *_check_stalls(settings),
    )
    return DoctorReport(
        version=version("planwarden"),
        python=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        home=str(folder),
        checks=checks,
    )


def _run_check(name: str, check: Callable[[], HealthCheck]) -> HealthCheck:
    try:
        return check()
    except PlanwardenError as error:
        return HealthCheck(name=name, status="broken", message=error.message)
    except OSError as error:
        return HealthCheck(name=name, status="broken", message=f"{error.filename or ''}: {error.strerror or error}")


def _check_settings(
    home: Path | None, model: str | None, mcp_config: Path | None, folder: Path
) -> tuple[Settings, HealthCheck]:
    path = folder / FILE
    try:
        settings = load_settings(home=home, model=model, mcp_config=mcp_config)
    except PlanwardenError as error:
        fallback = Settings(home=folder, model=model or os.environ.get(MODEL_VARIABLE) or "caller")
        return fallback, HealthCheck(name="settings", status="broken", message=error.message)
    if not path.exists():
        return settings, HealthCheck(name="settings", status="off", message=f"no {FILE}; the defaults apply")
    facts: dict[str, JsonValue] = {"file": str(path), "retentionDays": settings.retention_days}
    if settings.policy.trust_caller:
        text = "approvals.trust_caller is on: the calling model's word counts as an approval"
        return settings, HealthCheck(name="settings", status="warning", message=text, facts=facts)
    return settings, HealthCheck(name="settings", status="ok", message=str(path), facts=facts)


def _check_store(settings: Settings) -> HealthCheck:
    path = settings.database
    if not path.exists():
        text = f"{path} does not exist yet; the first execution creates it"
        return HealthCheck(name="store", status="off", message=text, facts={"file": str(path)})

    async def read() -> dict[str, int | str]:
        store = await anyio.to_thread.run_sync(SqliteStore.open, path)
        try:
            return await store.check()
        finally:
            await store.close()

    found = anyio.run(read)
    facts: dict[str, JsonValue] = {
        "file": str(path),
        "sizeBytes": found["size_bytes"],
        "integrity": found["integrity"],
        "schema": found["schema"],
        "newestSchema": latest_version(),
        "executions": found["executions"],
        "running": found["running"],
        "pendingSuspensions": found["pending"],
    }
    if found["integrity"] != "ok":
        text = f"{path} is damaged: {found['integrity']}; restore a backup, or move it away to start afresh"
        return HealthCheck(name="store", status="broken", message=text, facts=facts)
    text = (
        f"{path}: {_format_size(int(found['size_bytes']))}, schema {found['schema']}, intact; "
        f"{found['executions']} executions, {found['running']} running, open questions: {found['pending']}"
    )
    return HealthCheck(name="store", status="ok", message=text, facts=facts)


def _check_file_modes(settings: Settings) -> HealthCheck:
    """Plans and approvals are private, so only the owner may read the files."""
    if sys.platform == "win32":
        return HealthCheck(name="privacy", status="off", message="file modes are not checked on Windows")
    wanted = {settings.home: 0o700}
    wanted |= {Path(f"{settings.database}{tail}"): 0o600 for tail in ("", "-wal", "-shm", ".lock")}
    modes: dict[str, JsonValue] = {}
    open_to_others: list[str] = []
    for path, mode in wanted.items():
        try:
            found = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        modes[path.name] = f"{found:04o}"
        if found & 0o077:
            open_to_others.append(f"others can read {path} (mode {found:04o}): chmod {mode:o} {path}")
    if open_to_others:
        # Before the first execution the home holds only what a person put there.
        status = "broken" if settings.database.exists() else "warning"
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
    missing: dict[str, JsonValue] = {known.name: known.unavailable for known in definitions if known.unavailable}
    usable: list[JsonValue] = [known.name for known in definitions if not known.unavailable]
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
    """Shows hosts only, because the address of a webhook and the topic of a push service can be secrets."""
    if not settings.channels:
        return HealthCheck(
            name="notify", status="off", message=f"nobody is notified of questions; [[notify]] in {FILE} adds a channel"
        )
    waiting = _count_waiting(settings)
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
    problems = [f"{found.name}: {found.problem}" for found in settings.channels if found.problem is not None]
    if problems:
        # Not broken: the processes that send notifications may have the environment that this one lacks.
        text = f"not deliverable with this environment: {'; '.join(problems)}"
        return HealthCheck(name="notify", status="warning", message=text, facts=facts)
    text = ", ".join(
        f"{found.name} ({'everything' if len(found.events) == len(SUBSCRIBABLE) else ' '.join(sorted(found.events))})"
        for found in settings.channels
    )
    return HealthCheck(name="notify", status="ok", message=f"{text}; waiting: {sum(waiting.values())}", facts=facts)


def _count_waiting(settings: Settings) -> Mapping[str, int]:
    async def read() -> Mapping[str, int]:
        store = await anyio.to_thread.run_sync(SqliteStore.open, settings.database)
        try:
            return await store.notifications.waiting()
        finally:
            await store.close()

    if settings.database.exists():
        # The check of the store reports its problems.
        with suppress(PlanwardenError):
            return anyio.run(read)
    return {}


def _check_downstream(settings: Settings) -> Iterator[HealthCheck]:
    """Yields one check for the file and one for each server in it."""
    path, servers = settings.servers_file, settings.servers
    if path is None or not (path.exists() or servers.notes):
        yield HealthCheck(name="downstream", status="off", message=f"no {SERVERS_FILE}; no downstream MCP servers")
        return
    facts: dict[str, JsonValue] = {"file": str(path), "notes": list(servers.notes)}
    count = f"{len(servers.configs)} downstream server{'' if len(servers.configs) == 1 else 's'}"
    text = "; ".join([f"{path}: {count}", *servers.notes])
    yield HealthCheck(name="downstream", status="warning" if servers.notes else "ok", message=text, facts=facts)
    if servers.configs:
        try:
            yield from (_check_server(found) for found in anyio.run(_start_servers, settings))
        except PlanwardenError as error:
            yield HealthCheck(name="downstream", status="broken", message=error.message)


def _check_stalls(settings: Settings) -> Iterator[HealthCheck]:
    """Yields a check if the event loop of a server of this home stood still."""
    found = read_stalls(settings.home)
    if found is not None:
        when = datetime.fromtimestamp(found.at, UTC).isoformat(timespec="seconds")
        facts: dict[str, JsonValue] = {"count": found.count, "longestSeconds": round(found.longest_s, 3), "at": when}
        text = f"{describe_stalls(found)}; the longest ended at {when}"
        yield HealthCheck(
            name="stalls", status="warning" if found.longest_s >= WARNING_S else "ok", message=text, facts=facts
        )


async def _start_servers(settings: Settings) -> tuple[ServerHealth, ...]:
    downstream = build_downstream(settings, build_registry(settings))
    async with downstream:
        await downstream.start_all()
        return downstream.health()


def _check_server(found: ServerHealth) -> HealthCheck:
    facts: dict[str, JsonValue] = {
        "health": found.health,
        "tools": found.tools,
        "trusted": found.trusted,
        "log": found.log,
    }
    name = f"server {one_line(found.name, 48)}"
    if found.health == "disabled":
        return HealthCheck(
            name=name, status="off", message=f"disabled: {found.reason}" if found.reason else "disabled", facts=facts
        )
    if found.health != "ready":
        text = f"down: {found.reason or 'it did not start in time'}" + (
            f"; its log is {found.log}" if found.log else ""
        )
        return HealthCheck(name=name, status="broken", message=text, facts=facts)
    trust = (
        "trusted: its hints may lower risks" if found.trusted else "not trusted: its tools are dangerous unless you say"
    )
    text = f"{found.tools} tools; {trust}" + (f"; {found.reason}" if found.reason else "")
    return HealthCheck(name=name, status="warning" if found.reason else "ok", message=text, facts=facts)


def _format_size(size_bytes: int) -> str:
    return f"{size_bytes / 1024:.0f} KiB" if size_bytes < 1024 * 1024 else f"{size_bytes / 1024 / 1024:.1f} MiB"
