"""The command `doctor`: checks everything that planwarden needs, and says what to do about each problem."""

import importlib.util
import os
import platform
import shlex
import sqlite3
import stat
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

from pydantic import JsonValue

from planwarden.agent.common.errors import PlanwardenError, UsageError
from planwarden.agent.core.execution.notifications import SUBSCRIBABLE
from planwarden.server.api.stalls import STALL_WARNING_S, describe_stalls, read_stalls
from planwarden.server.cli.arguments import CommandParser, describe_missing_home, is_home_named, read_settings
from planwarden.server.cli.checks.access import check_gates, check_grants, check_guard, check_passphrase, check_rules
from planwarden.server.cli.checks.plans import check_hooks, check_plans, check_schedules
from planwarden.server.cli.checks.report import DoctorReport, HealthCheck, run_check
from planwarden.server.cli.checks.servers import check_downstream
from planwarden.server.cli.checks.store import Replay, check_processes, check_replay, check_secrets, check_store
from planwarden.server.cli.home import use_store
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.lines import Part, one_line
from planwarden.server.cli.terminal.terminal import Terminal, write_result
from planwarden.server.settings.catalogue import build_registry
from planwarden.server.settings.configuration import DATABASE, SETTINGS_FILE, Settings, find_home
from planwarden.server.settings.models import build_model
from planwarden.server.views.encoding import to_json
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.server.views.status_words import WORDS
from planwarden.storage.sqlite.database import needs_write_lock
from planwarden.tools.web.search import search_endpoint_from_environment

PROBE_BYTES = 4096
"""The size of the test file in the home, in bytes. A full disk may still accept an empty file."""


def add_doctor(parser: CommandParser) -> None:
    parser.handle(handle_doctor, uses_servers=True, needs_home=False)
    parser.declare("--replay", "also check that this version can continue every stored execution")
    parser.declare("--all", "with --replay: check finished executions as well")


def handle_doctor(arguments: Namespace) -> int:
    if arguments.all and not arguments.replay:
        raise UsageError("--all says which logs --replay checks; give both")
    replay: Replay | None = None if not arguments.replay else "all" if arguments.all else "unfinished"
    report = run_checks(arguments, replay)
    write_result(arguments, {"healthy": report.is_healthy, **to_json(report)}, draw_report, report)
    return DONE if report.is_healthy else FAILED


def draw_report(terminal: Terminal, report: DoctorReport) -> None:
    terminal.line((f"planwarden {report.version}", "bold"), (f"  Python {report.python}", "dim"))
    terminal.line((f"home {report.home}", "dim"))
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        title: Part = (check.name.ljust(width), "dim" if check.status == "off" else "bold")
        terminal.line(title, "  ", one_line(check.message, 400), mark=WORDS["check"][check.status].mark)
        unavailable = check.facts.get("unavailable")
        for name, reason in unavailable.items() if isinstance(unavailable, dict) else ():
            terminal.line((one_line(f"{name}: {reason}", 300), "dim"), indent=1)
    if report.is_healthy:
        terminal.line(("Everything that planwarden needs is there.", "good"), mark="done")
    else:
        broken = ", ".join(check.name for check in report.checks if check.status == "broken")
        terminal.line((f"Broken: {broken}.", "bad"), mark="failed")


def run_checks(arguments: Namespace, replay: Replay | None) -> DoctorReport:
    """Run every check after the checks that it depends on, and return the report; start and end downstream servers."""
    folder = find_home(arguments.home, os.environ)
    settings, settings_check, *servers_check = _read_settings(arguments, folder)
    is_broken = settings_check.status == "broken"
    no_settings = "the settings are broken" if is_broken else None
    no_servers = no_settings or ("the file of the servers is broken" if servers_check else None)
    tools_check = run_check("tools", _check_tools, settings, needs=no_servers)
    is_unusable = tools_check is not None and tools_check.status == "broken"
    no_tools = "the tools are broken" if is_unusable else no_servers
    checks = (
        _check_home(folder, settings, is_named=is_home_named(arguments.home)),
        settings_check,
        # Before the store check: opening the store tightens the mode of the folder.
        _check_file_modes(settings),
        run_check("store", check_store, settings),
        run_check("secrets", check_secrets, settings),
        run_check("inbox", check_passphrase, settings),
        run_check("processes", check_processes, settings),
        None if replay is None else run_check("replay", partial(check_replay, replay=replay), settings),
        _check_sqlite(),
        run_check("model", _check_model, settings, needs=no_settings),
        tools_check,
        run_check("rules", check_rules, settings, needs=no_tools),
        run_check("plans", check_plans, settings, needs=no_settings),
        _check_web_extra(),
        run_check("search", _check_search, settings, needs=no_settings),
        run_check("notify", _check_notify, settings, needs=no_settings),
        *(servers_check or check_downstream(settings, needs=no_tools, has_home=os.path.isdir(folder))),
        None if is_broken else run_check("schedules", check_schedules, settings),
        None if is_broken else check_hooks(settings),
        None if is_broken else run_check("grants", check_grants, settings),
        run_check("guard", check_guard, settings),
        run_check("gate", check_gates, settings),
        _check_stalls(settings),
    )
    return DoctorReport(
        version=version("planwarden"),
        python=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        home=str(folder),
        checks=tuple(check for check in checks if check is not None),
    )


def _check_home(folder: Path, settings: Settings, *, is_named: bool) -> HealthCheck:
    """Check that the folder exists and is writable; the default one may be missing until the first execution."""
    facts: dict[str, JsonValue] = {"folder": str(folder)}
    if (missing := describe_missing_home(folder)) is not None:
        is_broken = is_named or os.path.lexists(folder)
        return HealthCheck("home", "broken" if is_broken else "off", missing, facts)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
    except OSError as error:
        text = f"{folder} cannot be written to: {error.strerror}; make it writable for this user, or name another home"
        status = "broken" if settings.store.path == folder / DATABASE else "warning"
        return HealthCheck("home", status, text, facts)
    return HealthCheck("home", "ok", str(folder), facts)


def _read_settings(arguments: Namespace, folder: Path) -> tuple[Settings, *tuple[HealthCheck, ...]]:
    """Return the settings (defaults if broken), a check of their file, and a check of a broken file of servers."""
    try:
        settings = read_settings(arguments, has_servers=False)
    except PlanwardenError as error:
        return Settings(home=folder), HealthCheck("settings", "broken", error.message)
    path = settings.home / SETTINGS_FILE
    facts: dict[str, JsonValue] = {"file": str(path), "retentionDays": settings.tables.retention.days}
    if not path.exists():
        check = HealthCheck("settings", "off", f"no {SETTINGS_FILE}; the defaults apply")
    elif settings.policy.trust_caller:
        text = "approvals.trust_caller is on: the calling model's word counts as an approval"
        check = HealthCheck("settings", "warning", text, facts)
    else:
        check = HealthCheck("settings", "ok", str(path), facts)
    try:
        return read_settings(arguments), check
    except PlanwardenError as error:
        return settings, check, HealthCheck("downstream", "broken", error.message)


def _check_file_modes(settings: Settings) -> HealthCheck:
    """Check that only the owner can read the files, because plans and approvals are private."""
    if sys.platform == "win32":
        return HealthCheck("privacy", "off", "file modes are not checked on Windows")
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
            command = shlex.join(("chmod", f"{mode:o}", str(path)))
            open_to_others.append(f"others can read {path} (mode {actual_mode:04o}): {command}")
    if open_to_others:
        # Before the first execution the home holds only what a person put there.
        status = "broken" if database is not None and database.exists() else "warning"
        return HealthCheck("privacy", status, "; ".join(open_to_others), {"modes": modes})
    text = "only this user can read the home" if modes else "no home yet"
    return HealthCheck("privacy", "ok" if modes else "off", text, {"modes": modes})


def _check_sqlite() -> HealthCheck:
    locks = needs_write_lock()
    how = "older than 3.51.3, so writers also take a lock file" if locks else "writers need no lock file"
    facts: dict[str, JsonValue] = {"version": sqlite3.sqlite_version, "usesWriteLock": locks}
    return HealthCheck("sqlite", "ok", f"{sqlite3.sqlite_version}, {how}", facts)


def _check_model(settings: Settings) -> HealthCheck:
    build_model(settings.model, settings.environment)
    text = "the calling assistant thinks; no key needed" if settings.model == "caller" else settings.model
    return HealthCheck("model", "ok", text, {"model": settings.model})


def _check_tools(settings: Settings) -> HealthCheck:
    definitions = build_registry(settings).definitions()
    missing: dict[str, JsonValue] = {tool.name: tool.unavailable for tool in definitions if tool.unavailable}
    usable: list[JsonValue] = [tool.name for tool in definitions if not tool.unavailable]
    text = f"{len(usable)} usable: {', '.join(map(str, usable[:12]))}" + (" …" if len(usable) > 12 else "")
    return HealthCheck("tools", "ok", text, {"available": usable, "unavailable": missing})


def _check_web_extra() -> HealthCheck:
    if importlib.util.find_spec("trafilatura") is None:
        return HealthCheck("web extra", "off", "not installed; webExtract needs planwarden[web]")
    return HealthCheck("web extra", "ok", f"trafilatura {version('trafilatura')}")


def _check_search(settings: Settings) -> HealthCheck:
    endpoint = search_endpoint_from_environment(settings.environment)
    if endpoint is None:
        return HealthCheck("search", "off", "no search service; PLANWARDEN_SEARCH names one")
    facts: dict[str, JsonValue] = {"provider": endpoint.provider, "baseUrl": endpoint.base_url}
    return HealthCheck("search", "ok", f"{endpoint.provider} at {endpoint.base_url}", facts)


def _check_notify(settings: Settings) -> HealthCheck:
    """Check the notification channels; show only their hosts: a webhook's address or an ntfy topic can be a secret."""
    waiting: Mapping[str, int] = {}
    if settings.store.is_made:
        # If the store cannot be read, the check of the store says so.
        with suppress(PlanwardenError):
            waiting = use_store(settings, lambda store: store.notifications.waiting())
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
        # A warning is enough: the processes that send notifications may have variables that this one lacks.
        text = f"not deliverable with this environment: {'; '.join(problems)}"
        return HealthCheck("notify", "warning", text, facts)
    names = [
        f"{item.name} ({'everything' if len(item.events) == len(SUBSCRIBABLE) else ' '.join(sorted(item.events))})"
        for item in settings.channels
    ]
    if not names:
        text = f"nobody is notified of questions; [[notify]] in {SETTINGS_FILE} adds a channel"
        return HealthCheck("notify", "off", text)
    text = f"{', '.join(names)}; waiting: {sum(waiting.values())}"
    return HealthCheck("notify", "ok", text, facts)


def _check_stalls(settings: Settings) -> HealthCheck | None:
    """Return a check if the event loop of a server of this home has stalled; otherwise None."""
    stalls = read_stalls(settings.home)
    if stalls is None:
        return None
    when = format_instant(to_utc(stalls.at))
    facts: dict[str, JsonValue] = {"count": stalls.count, "longestSeconds": round(stalls.longest_s, 3), "at": when}
    text = f"{describe_stalls(stalls)}; the longest ended at {when}"
    return HealthCheck("stalls", "warning" if stalls.longest_s >= STALL_WARNING_S else "ok", text, facts)
