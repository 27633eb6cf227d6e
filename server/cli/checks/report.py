"""What `doctor` reports: the result of each check, and whether planwarden can be used."""

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import PlanwardenError

MAX_NAMED = 5
"""Problems in one message."""
CheckStatus = Literal["ok", "off", "warning", "broken"]


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
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

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "healthy": self.is_healthy,
            "version": self.version,
            "python": self.python,
            "home": self.home,
            "checks": [
                {"name": check.name, "status": check.status, "message": check.message, "facts": check.facts}
                for check in self.checks
            ],
        }


def run_check(name: str, check: Callable[[], HealthCheck], *, needs: str | None = None) -> HealthCheck:
    """Run the check, unless what it `needs` is broken: it would tell of defaults that do not hold."""
    if needs is not None:
        return HealthCheck(name=name, status="off", message=f"not checked, because {needs}")
    try:
        return check()
    except PlanwardenError as error:
        return HealthCheck(name=name, status="broken", message=error.message)
    except OSError as error:
        return HealthCheck(name=name, status="broken", message=f"{error.filename or ''}: {error.strerror or error}")


def join_some(problems: Sequence[str]) -> str:
    """Return the first problems, and how many more there are."""
    more = f"; and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
    return "; ".join(problems[:MAX_NAMED]) + more
