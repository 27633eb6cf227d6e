"""What `doctor` reports: the result of each check, and whether planwarden can be used."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.settings.configuration import Settings

MAX_NAMED = 5
"""The most problems that a message names."""
CheckStatus = Literal["ok", "off", "warning", "broken"]


class HealthCheck(msgspec.Struct, frozen=True):
    """The result of one check."""

    name: str
    status: CheckStatus
    message: str
    facts: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    python: str
    home: str
    checks: tuple[HealthCheck, ...]

    @property
    def is_healthy(self) -> bool:
        return all(check.status != "broken" for check in self.checks)


def run_check(
    name: str, check: Callable[[Settings], HealthCheck | None], settings: Settings, *, needs: str | None = None
) -> HealthCheck | None:
    """Return the result of the check; `off` if its settings are broken, as `needs` says: it would check only
    defaults."""
    if needs is not None:
        return HealthCheck(name, "off", f"not checked, because {needs}")
    try:
        return check(settings)
    except PlanwardenError as error:
        return HealthCheck(name, "broken", error.message)
    except OSError as error:
        return HealthCheck(name, "broken", f"{error.filename or ''}: {error.strerror or error}")


def join_some(problems: Sequence[str]) -> str:
    """Return the first problems, and how many more there are."""
    more = f"; and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
    return "; ".join(problems[:MAX_NAMED]) + more
