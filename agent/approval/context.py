"""What every decision about a call takes into account: the tools, the operator's policy, grants, budgets and time."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.grants import GrantCache
from planwarden.agent.common.errors import BudgetExceeded
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.pointers import ArtifactPart, PartAddress
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.events import CoveredCall
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, SuspensionState
from planwarden.agent.core.plan.plan import Plan
from planwarden.agent.core.tool import ToolDefinition, highest_risk
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.holdings import ROUNDING, HeldKey
from planwarden.agent.ports.policy import Policy, RealPaths, Requirement
from planwarden.agent.ports.toolbox import Toolbox


class BudgetTracker(msgspec.Struct):
    """What a transaction knows of the budgets for which the store refused an earlier attempt to commit it."""

    refused: Mapping[str, BudgetExceeded] = {}
    """By budget: the store's refusal, which says how much is left."""
    amounts: dict[str, float] = {}
    """By budget: how much the calls of the transaction have taken so far."""

    def take(self, shares: Iterable[ev.BudgetShare]) -> None:
        """Count the shares that a call takes."""
        for share in shares:
            self.amounts[share.budget] = self.amounts.get(share.budget, 0.0) + share.amount

    def apply_to(self, requirement: Requirement, policy: Policy, definition: ToolDefinition) -> Requirement:
        """Return the requirement; if a budget of its rule has too little left, return what the tool itself needs."""
        for share in requirement.shares if self.refused and requirement.needs is None else ():
            refusal = self.refused.get(share.budget)
            if refusal is not None and self.amounts.get(share.budget, 0.0) + share.amount > refusal.left * ROUNDING:
                fallback = policy.for_risk(definition.risk)
                # If too little is left, a person is asked, even about a call that only reads.
                fallback = fallback if fallback.needs is not None else policy.for_risk("dangerous")
                return replace(fallback, rule=requirement.rule, found=_describe_spent(share, refusal))
        return requirement


def _describe_spent(share: ev.BudgetShare, refusal: BudgetExceeded) -> str:
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


class DecidedRows(msgspec.Struct, frozen=True):
    """A question about several calls, with its answer."""

    suspension: SuspensionState
    plan: Plan | None
    """The plan of the execution, which the digest of a review covers."""
    rows: Mapping[str, CoveredCall]
    """The rows by the ids of their calls. All are calls of a loop; other covered calls are stored without ids."""
    approved: frozenset[str]
    is_intact: bool
    """Whether the stored question is the one that was asked and decided, and the policy has not changed since."""


class ApprovalContext(msgspec.Struct, frozen=True, kw_only=True):
    """The tools, policy and caches of one engine. Functions of this folder take it, or a copy, and keep no state."""

    tools: Toolbox
    policy: Policy
    clock: Clock
    grants: GrantCache
    parts: Mapping[PartAddress, ArtifactPart] | None = {}
    """The parts of artifacts that were read for references. None while a call runs, because no parts are read then."""
    holders: Mapping[str, HeldKey | None] = {}
    """The holder of each business key looked up for this transaction, by the key's digest; None if the key is free."""
    budgets: BudgetTracker = msgspec.field(default_factory=BudgetTracker)
    """The budgets for which the store refused an earlier attempt to commit this transaction."""
    paths: RealPaths | None = None
    """Where the paths looked up so far lead. None if paths are not looked up: rules about paths then ask a person."""
    decided_rows: dict[str, DecidedRows] = {}
    """Answered questions by id, kept because checking the whole question again for each row would take too long."""

    def find_requirement(self, definition: ToolDefinition, arguments: Mapping[str, JsonValue]) -> Requirement:
        """Return what the policy and the operator's rules ask of a call with these arguments.

        Raises:
            PathsNeeded: as `Policy.requirement`.
        """
        requirement = self.policy.requirement(definition, arguments, self.paths)
        return self.budgets.apply_to(requirement, self.policy, definition)

    def find_full_requirement(self, definition: ToolDefinition, arguments: Mapping[str, JsonValue]) -> Requirement:
        """Return what `find_requirement` returns, but at least what `confirm` and the tool's own risk need. Use
        it for changed definitions and unknown outcomes, for which the operator wrote no rule."""
        base = self.find_requirement(definition, arguments)
        risk = highest_risk("confirm", definition.risk, base.risk)
        decides = base.needs is not None and risk == base.risk
        full = replace(self.policy.for_risk(risk), rule=base.rule if decides else None, denied=base.denied)
        return replace(full, found=base.found, has_no_key=base.has_no_key)


class CallRequest(msgspec.Struct, frozen=True, gc=False):
    """One call to judge, with its execution and with its tool as it is now."""

    context: ApprovalContext
    execution: ExecutionState
    call: Call
    definition: ToolDefinition

    @property
    def state(self) -> StepState:
        """The step that makes the call."""
        return self.execution.steps[self.call.step_id]
