"""The check of `doctor` that runs the hooks of guarded hosts."""

import os
from collections.abc import Iterator

from pydantic import JsonValue

from planwarden.server.cli.guard_install import build_hook_program
from planwarden.server.cli.health import HealthCheck
from planwarden.server.guard.install.proof import HookStatus, check_hosts
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.encoding import to_json
from planwarden.tools.guarded.hosts import GUARDED_HOSTS


def check_guard(settings: Settings) -> HealthCheck:
    """Runs each hook of this user's hosts as `planwarden guard status` does."""
    found = [
        status
        for status in check_hosts(os.environ, None, build_hook_program(settings.home))
        if status.state != "not installed"
    ]
    facts: dict[str, JsonValue] = {"hosts": [to_json(status) for status in found]}
    if not found:
        text = "no host is guarded; `planwarden guard install HOST` lets one ask before it acts itself"
        return HealthCheck(name="guard", status="off", message=text, facts=facts)
    broken = [text for status in found for text in _list_problems(status)]
    names = ", ".join(GUARDED_HOSTS[status.host].label for status in found)
    if broken:
        return HealthCheck(name="guard", status="warning", message="; ".join(broken), facts=facts)
    text = (
        f"{names}: each hook blocks when planwarden does not answer; `planwarden guard status` says what is not known"
    )
    return HealthCheck(name="guard", status="ok", message=text, facts=facts)


def _list_problems(status: HookStatus) -> Iterator[str]:
    label = GUARDED_HOSTS[status.host].label
    if status.problem:
        yield f"{label}: {status.problem}"
    for trial in status.trials:
        if not trial.is_right:
            yield f"{label}: {trial.what} {'blocks the call' if trial.blocks else 'lets the call run'}"
