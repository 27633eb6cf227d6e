"""What a call needs when a budget of the rule that would let it pass is spent: what it needs without the rule.

The store counts, in the transaction of the intent, and refuses. Then the transaction is prepared again, knowing what is
left; calls that fit into that still pass. The next transaction asks the store anew.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.errors import BudgetSpent
from planwarden.agent.core import events as ev
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.holdings import ROUNDING
from planwarden.agent.ports.policy import Policy, Requirement


class BudgetRoom(msgspec.Struct):
    """What one transaction knows of budgets that the store has refused."""

    refused: dict[str, BudgetSpent] = {}
    """By budget."""
    taken: dict[str, float] = {}
    """By budget, what the transaction takes of it so far."""

    def copy(self) -> "BudgetRoom":
        """The same, to be counted on without effect on this one."""
        return BudgetRoom(self.refused, dict(self.taken))

    def take(self, shares: Iterable[ev.BudgetShare]) -> None:
        """Count what an intent takes."""
        for share in shares:
            self.taken[share.budget] = self.taken.get(share.budget, 0.0) + share.amount

    def apply_to(self, requirement: Requirement, policy: Policy, definition: ToolDefinition) -> Requirement:
        """The requirement; without what the rule takes away, if a budget of it has no room for the call."""
        for share in requirement.shares if self.refused and requirement.needs is None else ():
            refusal = self.refused.get(share.budget)
            if refusal is not None and self.taken.get(share.budget, 0.0) + share.amount > refusal.left * ROUNDING:
                needed = policy.for_risk(definition.risk)
                # It asks, also about what only reads.
                needed = needed if needed.needs is not None else policy.for_risk("dangerous")
                return replace(needed, rule=requirement.rule, found=_describe_spent(share, refusal))
        return requirement


def _describe_spent(share: ev.BudgetShare, refusal: BudgetSpent) -> str:
    text = (
        f"The operator's rule lets such calls pass for {_write(share.limit)} in {_write(share.window_s / 3600)} hours, "
        f"of which {_write(refusal.left)} is left; this call takes {_write(share.amount)}."
    )
    if refusal.room_at is None:
        return text
    at = datetime.fromtimestamp(refusal.room_at, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
    return f"{text} There is room again at {at}."


def _write(number: float) -> str:
    return f"{number:.15g}"
