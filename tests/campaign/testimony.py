"""What the driver knows without planwarden: what it was told, what it agreed to, and what the ledger says happened."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core import events as ev
from tests.campaign.ledger import Ledger, Line, is_running, is_stopped

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


def has_happened(stage: Path, key: str) -> bool | None:
    """Whether the call had its effect; None while somebody may still carry it out, so that nobody can say."""
    lines = Ledger(stage).lines()
    if any(line.what == "done" and line.key == key for line in lines):
        return True
    ended = {line.pid for line in lines if line.what == "ended" and line.key == key}
    if any(line.what == "begun" and line.key == key and _goes_on(line, ended) for line in lines):
        return None
    # What was sent may still be in the pipe to a downstream server that is stopped, or whose process is dead.
    desks = [line for line in lines if line.what == "desk" and is_running(line.pid)]
    return None if any(is_stopped(desk.pid) or not is_running(desk.facts["parent"]) for desk in desks) else False


def _goes_on(line: Line, ended: set[int]) -> bool:
    return line.pid not in ended and is_running(line.pid)
