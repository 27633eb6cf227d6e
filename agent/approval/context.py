"""What every judgement about a call looks at: the tools, the operator's policy, the grants, time and ids."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.grants import GrantCache
from planwarden.agent.common.errors import BudgetSpent
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.pointers import ArtifactPart, PartAddress
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.events import CoveredCall
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, SuspensionState
from planwarden.agent.core.tool import ToolDefinition, highest_risk
from planwarden.agent.ports.budgets_and_keys import ROUNDING, HeldKey
from planwarden.agent.ports.environment import Clock, Ids
from planwarden.agent.ports.policy import Policy, RealPaths, Requirement
from planwarden.agent.ports.toolbox import Toolbox


class BudgetRoom(msgspec.Struct):
    """What one transaction knows of budgets that the store has refused."""

    refused: dict[str, BudgetSpent] = {}
    """How the store refused each budget."""
    amounts: dict[str, float] = {}
    """What the transaction takes of each budget so far."""

    def copy(self) -> "BudgetRoom":
        """Return a copy that counts further shares without effect on this one."""
        return BudgetRoom(self.refused, dict(self.amounts))

    def take(self, shares: Iterable[ev.BudgetShare]) -> None:
        """Count what an intent takes."""
        for share in shares:
            self.amounts[share.budget] = self.amounts.get(share.budget, 0.0) + share.amount

    def apply_to(self, requirement: Requirement, policy: Policy, definition: ToolDefinition) -> Requirement:
        """Return the requirement, or what the tool needs without its rule if a budget of the rule has no room."""
        for share in requirement.shares if self.refused and requirement.needs is None else ():
            refusal = self.refused.get(share.budget)
            if refusal is not None and self.amounts.get(share.budget, 0.0) + share.amount > refusal.left * ROUNDING:
                fallback = policy.for_risk(definition.risk)
                # Without room a person is asked, even about a call that only reads.
                fallback = fallback if fallback.needs is not None else policy.for_risk("dangerous")
                return replace(fallback, rule=requirement.rule, found=_describe_spent(share, refusal))
        return requirement


def _describe_spent(share: ev.BudgetShare, refusal: BudgetSpent) -> str:
    text = (
        f"The operator's rule lets such calls pass for {_write(share.limit)} in {_write(share.window_s / 3600)} hours; "
        f"{_write(refusal.left)} is left, and this call takes {_write(share.amount)}."
    )
    if refusal.room_at is None:
        return text
    at = datetime.fromtimestamp(refusal.room_at, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
    return f"{text} The budget has room again at {at}."


def _write(number: float) -> str:
    return f"{number:.15g}"


class DecidedBatch(msgspec.Struct, frozen=True):
    """What was answered to the one question about many calls of a loop, see `planwarden.agent.approval.batch`."""

    suspension: SuspensionState
    rows: Mapping[str, CoveredCall]
    """By the ids of their calls."""
    approved: frozenset[str]
    is_intact: bool
    """What is stored is what was asked and decided, under the policy as it is now."""


class ApprovalContext(msgspec.Struct, frozen=True, kw_only=True):
    """One for each engine; the functions of this folder take it and hold no state of their own."""

    tools: Toolbox
    policy: Policy
    clock: Clock
    ids: Ids
    grants: GrantCache
    parts: Mapping[PartAddress, ArtifactPart] | None = {}
    """Parts of artifacts that references may take, as far as they were read. None while a call runs."""
    once: Mapping[str, HeldKey | None] = {}
    """By the digest of a business key, who has it, or None; as far as it was looked up for this transaction."""
    room: BudgetRoom | None = None
    """What is left of budgets that the store has refused for this transaction."""
    paths: RealPaths | None = None
    """Where paths in arguments lead, as far as it was looked up; None where nobody looks it up, so that rules ask."""
    batches: dict[str, DecidedBatch] = {}
    """Answered questions by their ids: judging all rows again for each of them would take too long."""

    def find_requirement(self, definition: ToolDefinition, arguments: Mapping[str, JsonValue]) -> Requirement:
        """Return what the policy and the operator's rules ask of a call with these arguments.

        Raises:
            PathsNeeded: as `Policy.requirement`.
        """
        requirement = self.policy.requirement(definition, arguments, self.paths)
        return requirement if self.room is None else self.room.apply_to(requirement, self.policy, definition)

    def find_full_requirement(self, definition: ToolDefinition, arguments: Mapping[str, JsonValue]) -> Requirement:
        """Return what `find_requirement` does, but at least what the tool needs without rules: no rule was written for
        a definition that changed, or for a call whose outcome is unknown."""
        base = self.find_requirement(definition, arguments)
        risk = highest_risk("confirm", definition.risk, base.risk)
        decides = base.needs is not None and risk == base.risk
        return replace(self.policy.for_risk(risk), rule=base.rule if decides else None, denied=base.denied)


class CallRequest(msgspec.Struct, frozen=True, gc=False):
    """One call to judge, in its execution, with its tool as it is now."""

    context: ApprovalContext
    execution: ExecutionState
    call: Call
    definition: ToolDefinition

    @property
    def state(self) -> StepState:
        """The step that makes the call."""
        return self.execution.steps[self.call.step_id]
