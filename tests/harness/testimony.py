"""What the driver of a stage knows without planwarden: what it was told, and what it agreed to."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core import events as ev

Consent = tuple[str, str, str, str]
"""Execution, step, tool, and the arguments as canonical JSON."""


@dataclass(frozen=True)
class Verdict:
    """A decision that a channel acknowledged."""

    suspension_id: str
    approved: bool
    channel: str


@dataclass
class Testimony:
    started: list[str] = field(default_factory=list[str])
    """Executions whose start was acknowledged."""
    keys: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """The executions that were acknowledged for each idempotency key."""
    granted: int = 0
    """Calls that a person allowed beforehand, noted before the grant was made."""
    cancelled: list[str] = field(default_factory=list[str])
    """Executions that were said to be over, or about to be, because somebody cancelled them."""
    consents: set[Consent] = field(default_factory=set[Consent])
    """Everything that a person agreed to, noted before the agreement was sent."""
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    surrendered: dict[str, float] = field(default_factory=dict[str, float])
    """Calls that had not happened when a person gave them up, and when that was acknowledged."""
    reconciled: int = 0
    """Acknowledged answers about calls whose outcome nobody knew."""
    troubles: deque[str] = field(default_factory=lambda: deque[str](maxlen=8))
    """Why the last attempts that failed did."""

    def agree(self, execution_id: str, question: ev.Question) -> None:
        """A person is about to approve what this revision of the question shows."""
        if question.tool_name is not None and question.kind == "approval":
            self._note(execution_id, question.step_id, question.tool_name, question.arguments)
        for covered in question.covers:
            self._note(execution_id, covered.step_id, covered.tool_name, covered.arguments)

    def _note(self, execution_id: str, step_id: str | None, tool: str, arguments: Mapping[str, Any] | None) -> None:
        self.consents.add((execution_id, step_id or "", tool, canonical_json(dict(arguments or {}))))

    def acknowledge(self, suspension_id: str, approved: bool, channel: str) -> None:
        self.verdicts.append(Verdict(suspension_id, approved, channel))

    def surrender(self, key: str) -> None:
        self.surrendered[key] = time.monotonic()
