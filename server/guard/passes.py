"""Whether a call of the host was let through, and its one pass.

A pass is what the log says: the execution that asked about exactly this call has made it, and a person, a grant or a
rule released it within the last hour. Taking it is committed before the host hears of it, once over all processes.
"""

from planwarden.agent.approval.answers import can_decide
from planwarden.agent.common.canonical import canonical_json, digest
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.ports.policy import Policy, Requirement
from planwarden.agent.ports.store import Store
from planwarden.server.guard.calls import GuardedCall
from planwarden.server.guard.judging import describe
from planwarden.tools.guarded.hosts import PASS_S

KEEP_S = 24 * PASS_S
"""How long a pass is known to be taken; nothing passes later than `PASS_S`, whatever the clock does."""
RELEASING: frozenset[ev.Assurance] = frozenset({"human", "signed", "second", "embedder"})
"""What a decision must be worth; no setting lowers it."""


async def take_pass(store: Store, execution: ExecutionState, call: GuardedCall) -> bool:
    """Return whether the pass was still there, and is this caller's now. Raises `StoreError` when that cannot be
    known."""
    once = ev.OnceKey(key=digest(execution.execution_id, context="guard pass/v1"), values={}, keep_s=KEEP_S)
    entry = AuditEntry(kind="guarded", facts=describe(call, "passed"), execution_id=execution.execution_id)
    return await store.take_once(once, f"guard:{execution.execution_id}", entry)


def is_about(execution: ExecutionState, call: GuardedCall) -> bool:
    """Return whether the guard started the execution to ask about exactly this call.

    Plans and models cannot name a host's tool, so nobody else starts one; a retry takes results over that it has not
    earned.
    """
    plan = execution.plan
    if plan is None or execution.retry_of is not None or len(plan.steps) != 1 or len(plan.steps[0].tool_calls) != 1:
        return False
    planned = plan.steps[0].tool_calls[0]
    return planned.tool_name == call.name and canonical_json(planned.arguments) == canonical_json(call.arguments)


def find_made_call(execution: ExecutionState) -> Call | None:
    """Return the one call of an execution of the guard."""
    calls = [call for state in execution.steps.values() for call in state.calls]
    return calls[0] if len(calls) == 1 else None


def is_released(
    execution: ExecutionState, call: GuardedCall, policy: Policy, required: Requirement, now: float
) -> bool:
    """Return whether the call was let through within the last hour, by what the policy asks for now: `required`."""
    tool_call = find_made_call(execution)
    if tool_call is None or tool_call.status != "succeeded" or tool_call.origin or tool_call.arguments is None:
        return False
    if canonical_json(tool_call.arguments) != canonical_json(call.arguments):
        return False
    if required.denied is not None:
        return False
    suspension = execution.suspensions.get(tool_call.suspension_id or "")
    if suspension is None:
        # A grant, or a rule whose budget the store counted.
        is_let = required.needs is None or (tool_call.grant_id is not None and required.needs == "human")
        return is_let and tool_call.intended_at is not None and abs(now - tool_call.intended_at) < PASS_S
    if suspension.decision is None or not suspension.decision.approved or suspension.assurance not in RELEASING:
        return False
    if (
        suspension.question.quorum < required.quorum
        or suspension.decided_at is None
        or abs(now - suspension.decided_at) >= PASS_S
    ):
        return False
    return can_decide(policy, execution, required.needs, suspension.principal or "", suspension.assurance) is not None
