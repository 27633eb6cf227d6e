"""The checks of `doctor` on what may run and who may answer: grants, rules, guarded hosts, gates, the passphrase."""

import os
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from planwarden.agent.approval.grants import VERSION_DIGITS
from planwarden.agent.approval.rules import RuleBook
from planwarden.agent.ports.budgets_and_keys import Grant, GrantedStep
from planwarden.server.api.home import Home
from planwarden.server.api.rules import list_rule_notes
from planwarden.server.cli.checks.report import HealthCheck, join_some
from planwarden.server.cli.home import run_with, use_store
from planwarden.server.cli.hosts import build_hook_program
from planwarden.server.gate.host_servers import read_statuses
from planwarden.server.guard.hook_proof import HookStatus, check_hosts
from planwarden.server.inbox.passphrase import InboxPassphrase
from planwarden.server.settings.configuration import SETTINGS_FILE, Settings
from planwarden.server.settings.secrets import open_secrets
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text, shorten_id
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.tools.guarded.hosts import GUARDED_HOSTS


def check_passphrase(settings: Settings) -> HealthCheck | None:
    """Report that the inbox asks for a passphrase; None if the settings demand none. Raise like the inbox."""
    if settings.passphrase_file is None:
        return None
    run_with(open_secrets(settings), lambda secrets: InboxPassphrase(settings, secrets).read())
    return HealthCheck("inbox", "ok", "it asks for a passphrase after the code")


def check_grants(settings: Settings) -> HealthCheck | None:
    """Report the open grants, and those whose plan has changed; return None if no grant is open."""
    grants = use_store(settings, lambda store: store.grants(only_open=True)) if settings.store.is_made else ()
    if not grants:
        return None
    versions = {plan.name: plan.digest for plan in Home(settings).library.look_now().plans}
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
    text += f"; {join_some(changed)}" if changed else ""
    return HealthCheck("grants", "warning" if changed else "ok", text, facts)


def _describe_change(grant: Grant, step: GrantedStep, versions: Mapping[str, str]) -> str | None:
    name = step.plan_name
    if versions.get(name) == step.plan_digest:
        return None
    change = "has changed since then" if name in versions else "is no longer there"
    return (
        f"grant {shorten_id(grant.grant_id)} lets {escape_text(grant.tool_name)} run in {escape_text(name)}, version "
        f"{step.plan_digest[:VERSION_DIGITS]}, but the plan {change}, so new runs ask"
    )


def list_notes(home: Home, book: RuleBook) -> list[str]:
    """Return sentences about rules that the operator may not have meant as written."""
    tools = {definition.name: definition for definition in home.tools.definitions()}
    servers = tuple(f"{config.slug}_" for config in home.settings.servers.configs)
    return list(list_rule_notes(book, tools, servers))


def check_rules(settings: Settings) -> HealthCheck:
    """Report rules that may not mean what the operator intended. Unusable rules fail earlier, in the settings."""
    book = settings.policy.rules
    if book is None:
        return HealthCheck("rules", "off", f"none; [[rules]] in {SETTINGS_FILE} adds them")
    notes = list_notes(Home(settings), book)
    facts: dict[str, JsonValue] = {"rules": len(book.rules), "notes": list[JsonValue](notes)}
    text = f"{len(book.rules)} in {SETTINGS_FILE}{f'; {join_some(notes)}' if notes else ''}"
    return HealthCheck("rules", "warning" if notes else "ok", text, facts)


def check_guard(settings: Settings) -> HealthCheck:
    """Run each hook of this user's hosts, as `planwarden guard status` does, and report the result."""
    hosts = check_hosts(os.environ, None, build_hook_program(settings.home))
    statuses = [status for status in hosts if status.state != "not installed"]
    facts: dict[str, JsonValue] = {"hosts": [to_json(status) for status in statuses]}
    if not statuses:
        text = "no host is guarded; `planwarden guard install HOST` makes one ask before it acts"
        return HealthCheck("guard", "off", text, facts)
    broken = [text for status in statuses for text in _list_problems(status)]
    names = ", ".join(GUARDED_HOSTS[status.host].label for status in statuses)
    if broken:
        return HealthCheck("guard", "warning", "; ".join(broken), facts)
    text = f"{names}: hooks block when planwarden does not answer; `planwarden guard status` says what it cannot check"
    return HealthCheck("guard", "ok", text, facts)


def check_gates(_: Settings) -> HealthCheck:
    """Report how many servers of this user's hosts are behind the gate, and how many bypass it."""
    statuses = read_statuses(os.environ, None)
    facts: dict[str, JsonValue] = {"hosts": [status.to_json() for status in statuses]}
    broken = [f"{status.file.path}: {status.problem}" for status in statuses if status.problem]
    if broken:
        return HealthCheck("gate", "warning", join_some(broken), facts)
    states = [server.state for status in statuses for server in status.servers]
    behind, past = states.count("behind the gate"), states.count("passes by")
    if not behind:
        text = "no host's server is behind the gate; `planwarden gate install HOST` puts them there"
        return HealthCheck("gate", "off", text, facts)
    text = f"servers of hosts behind the gate: {behind}, bypassing it: {past}; `planwarden gate status` names them"
    return HealthCheck("gate", "ok", text, facts)


def _list_problems(status: HookStatus) -> Iterator[str]:
    label = GUARDED_HOSTS[status.host].label
    if status.problem:
        yield f"{label}: {status.problem}"
    for trial in status.trials:
        if not trial.is_right:
            yield f"{label}: {trial.what} {'blocks the call' if trial.blocks else 'lets the call run'}"
