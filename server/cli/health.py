"""What `doctor` reports: the result of each check, and whether planwarden can be used."""

from typing import Literal

import msgspec
from pydantic import JsonValue

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
