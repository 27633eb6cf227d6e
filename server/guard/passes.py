"""Whether a call of the host was let through, and its one pass.

A pass is what the log says: the execution that asked about exactly this call has made it, and a person, a grant or a
rule released it within the last hour. Taking it is committed before the host hears of it, once over all processes.
"""

import os
from pathlib import Path
from typing import Protocol

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.state import Call, ExecutionState
from planwarden.agent.ports.policy import Policy
from planwarden.agent.ports.store import Store
from planwarden.server.guard.calls import GuardedCall
from planwarden.server.guard.judging import describe, find_definition
from planwarden.tools.guarded.host_tool import PASS_S

RELEASING: frozenset[ev.Assurance] = frozenset({"human", "signed", "second", "embedder"})
"""What a decision must be worth; no setting lowers it."""


class PassTaker(Protocol):
    """Takes passes, each once."""

    async def take(self, execution: ExecutionState, call: GuardedCall) -> bool:
        """Whether the pass was still there. Raises `StoreError` when that cannot be known."""
        ...


class FolderPasses:
    """Passes as files of the home, which the file system creates once."""

    def __init__(self, home: Path, store: Store) -> None:
        self._folder = home / "passes"
        self._store = store

    async def take(self, execution: ExecutionState, call: GuardedCall) -> bool:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(self._folder / execution.execution_id, flags, 0o600)
        except FileExistsError:
            return False
        except OSError as error:
            raise StoreError(f"cannot take the pass: {error.strerror}") from error
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        await self._store.audit((build_entry(execution, call),))
        return True


def build_entry(execution: ExecutionState, call: GuardedCall) -> AuditEntry:
    """Returns the row that says that the host was let make the call."""
    return AuditEntry(kind="guarded", facts=describe(call, "passed"), execution_id=execution.execution_id)


def is_about(execution: ExecutionState, call: GuardedCall) -> bool:
    """Whether the guard started the execution to ask about exactly this call.

    Plans and models cannot name a host's tool, so nobody else starts one; a retry takes results over that it has not
    earned.
    """
    plan = execution.plan
    if plan is None or execution.retry_of is not None or len(plan.steps) != 1 or len(plan.steps[0].tool_calls) != 1:
        return False
    planned = plan.steps[0].tool_calls[0]
    return planned.tool_name == call.name and canonical_json(planned.arguments) == canonical_json(call.arguments)


def find_made_call(execution: ExecutionState) -> Call | None:
    """Returns the one call of an execution of the guard."""
    calls = [made for state in execution.steps.values() for made in state.calls]
    return calls[0] if len(calls) == 1 else None


def is_released(execution: ExecutionState, call: GuardedCall, policy: Policy, now: float) -> bool:
    """Whether the call was let through within the last hour, by what the policy asks for now."""
    made = find_made_call(execution)
    if made is None or made.status != "succeeded" or made.origin or made.arguments is None:
        return False
    if canonical_json(made.arguments) != canonical_json(call.arguments):
        return False
    required = policy.requirement(find_definition(call), call.arguments)
    if required.denied is not None:
        return False
    asked = execution.suspensions.get(made.suspension_id or "")
    if asked is None:
        # A grant, or a rule whose budget the store counted.
        is_let = required.needs is None or (made.grant_id is not None and required.needs == "human")
        return is_let and made.intended_at is not None and abs(now - made.intended_at) <= PASS_S
    if asked.decision is None or not asked.decision.approved or asked.assurance not in RELEASING:
        return False
    if asked.question.quorum < required.quorum or asked.decided_at is None or abs(now - asked.decided_at) > PASS_S:
        return False
    return policy.worth(asked.assurance, asked.principal or "", execution.principal, required.needs) is not None
