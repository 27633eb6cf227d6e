"""The states of executions by which people choose, each with its status; in a module that is quick to import."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planwarden.agent.core.state import ExecutionStatus

STATUSES: "Mapping[str, ExecutionStatus]" = {
    "running": "running",
    "waiting": "suspended",
    "planned": "planned",
    "completed": "completed",
    "failed": "failed",
    "rejected": "rejected",
    "cancelled": "cancelled",
    "incomplete": "incomplete",
    "rehearsed": "rehearsed",
}
FORMER = {"done": "completed"}
"""What a state was called before."""
STATES: "Mapping[ExecutionStatus, str]" = {status: state for state, status in STATUSES.items()}
