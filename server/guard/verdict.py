"""What the guard says about one call."""

from typing import Literal

import msgspec
from pydantic import JsonValue


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the host."""

    then: Literal["allow", "no opinion", "deny"]
    """`allow` lets the call run; with `no opinion` the host's own rules decide, as without planwarden."""
    reason: str = ""
    """Why, for the model and the person who reads along."""
    suspension_id: str | None = None
    """The question that is open about the call."""
    facts: dict[str, JsonValue] | None = None
    """What the audit records of a decision by rule; None for what it need not record."""


def deny(reason: str, *, facts: dict[str, JsonValue] | None = None) -> Verdict:
    return Verdict(then="deny", reason=reason, facts=facts)
