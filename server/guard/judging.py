"""Judges a host's call by its tool and by the operator's rules, and checks whether the call may pass once. `Judge`
decides without a store about planwarden's own tools, calls that it refuses, calls that only read, and calls that a rule
without a budget allows. For any other call, the guard starts an execution. If a person, a grant or a rule released the
call of the execution within the last hour, the identical call of the host passes. A commit marks this pass as taken
before the host gets the answer, so that only one process can use the pass.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from pydantic import JsonValue

from planwarden.agent.approval.answers import can_decide
from planwarden.agent.common.canonical import canonical_json, digest
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.policy import PathsNeeded, Policy, Requirement
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.real_paths import follow_links
from planwarden.server.guard.calls import GuardedCall, Verdict, deny
from planwarden.server.guard.protected_paths import find_refusal
from planwarden.server.plans.library import HOME, PlanLibrary, build_library
from planwarden.server.settings.configuration import PLAN_FOLDER, Settings
from planwarden.tools.guarded.hosts import GUARD_TOOL, OWN_TOOLS, PASS_LIFETIME_S, find_host_tool

KEEP_S = 24 * PASS_LIFETIME_S
"""How long the store remembers a taken pass: longer than `PASS_LIFETIME_S`, because a clock may be set back."""
RELEASING: frozenset[ev.Assurance] = frozenset({"human", "signed", "second", "embedder"})
"""A decision releases a call only with one of these assurances. No setting adds to them."""


class Judge(msgspec.Struct, frozen=True):
    """Judges calls by the operator's policy, and by the paths in the calls."""

    policy: Policy
    home: Path
    environment: Mapping[str, str]
    library: PlanLibrary | None = None
    """The saved plans; None unless each plan is also a tool of planwarden."""

    def judge(self, call: GuardedCall) -> Verdict | None:
        """Return the verdict; None if it needs a store, because somebody must be asked or a budget must be counted."""
        own = call.tool.removeprefix(call.host.own_prefix)
        if own == GUARD_TOOL or call.tool == GUARD_TOOL:
            return deny("Refused: only the host's hook calls guard_call. It lets nothing pass for a model.")
        if own != call.tool and (own in OWN_TOOLS or self._is_plan(own)):
            # Planwarden itself asks about the calls of executions that these tools start.
            return Verdict(then="no opinion")
        refusal = find_refusal(self.home, self.environment, call)
        if refusal is not None:
            return deny(f"Refused: {refusal}.", facts=describe(call, "refused"))
        requirement = self.find_requirement(call)
        if requirement.denied is not None:
            because = requirement.denied or "a rule of the operator refuses it"
            return deny(f"Denied by the operator's rules: {because}.", facts=describe(call, "denied", requirement))
        if requirement.rule is None and call.tool in call.host.reads:
            return Verdict(then="no opinion")
        if requirement.needs is None and not requirement.shares:
            return Verdict(then="allow", reason="Allowed by rule.", facts=describe(call, "allowed", requirement))
        return None

    def _is_plan(self, name: str) -> bool:
        plan = None if self.library is None else self.library.look_now().get(name)
        # Outside the home, a model may write plans. If it called its plan `other_run`, some hosts would give the plan's
        # tool the same name as the tool `run` of a server `planwarden_other`, and calls of that tool would pass.
        return plan is not None and (plan.source == HOME or "_" not in name)

    def find_requirement(self, call: GuardedCall) -> Requirement:
        """Return what the current policy requires for the call."""
        tool = find_host_tool(call.name)
        assert tool is not None, call.name
        paths: dict[str, str | None] = {}
        while True:
            try:
                return self.policy.requirement(tool.definition, call.arguments, paths)
            except PathsNeeded as needed:
                paths |= follow_links(needed.keys - paths.keys())

    def is_released(self, execution: ExecutionState, call: GuardedCall, now: float) -> bool:
        """Return whether the call was released within the last hour, in a way that the current policy accepts."""
        tool_call, required = execution.only_call, self.find_requirement(call)
        if tool_call is None or tool_call.status != "succeeded" or tool_call.origin or tool_call.arguments is None:
            return False
        if required.denied is not None or canonical_json(tool_call.arguments) != canonical_json(call.arguments):
            return False
        suspension = execution.suspensions.get(tool_call.suspension_id or "")
        if suspension is None:
            # Nobody was asked: a grant released the call, or a rule with a budget did.
            is_let = required.needs is None or (tool_call.grant_id is not None and required.needs == "human")
            return is_let and tool_call.intended_at is not None and abs(now - tool_call.intended_at) < PASS_LIFETIME_S
        if suspension.decision is None or not suspension.decision.approved or suspension.assurance not in RELEASING:
            return False
        if suspension.decided_at is None or abs(now - suspension.decided_at) >= PASS_LIFETIME_S:
            return False
        if suspension.question.quorum < required.quorum:
            return False
        principal, assurance = suspension.principal or "", suspension.assurance
        return can_decide(self.policy, execution, required.needs, principal, assurance) is not None


def build_judge(settings: Settings) -> Judge:
    library = build_library(settings.home / PLAN_FOLDER, settings.plan_folders)
    has_plan_tools = settings.tables.plans.as_tools
    return Judge(settings.policy, settings.home, settings.environment, library if has_plan_tools else None)


def describe(call: GuardedCall, answer: str, requirement: Requirement | None = None) -> dict[str, JsonValue]:
    """Return what the audit records about the call: the digest of its arguments, not the arguments."""
    facts: dict[str, JsonValue] = {"tool": call.name, "answer": answer, "arguments": call.compute_digest("")[:32]}
    rule = None if requirement is None else requirement.rule
    return facts if rule is None else {**facts, "rule": rule.number}


async def take_pass(store: Store, execution: ExecutionState, call: GuardedCall) -> bool:
    """Take the pass; return False if it was already taken. Raises `StoreError` if the store cannot tell."""
    once = ev.OnceKey(key=digest(execution.execution_id, context="guard pass/v1"), values={}, keep_s=KEEP_S)
    entry = AuditEntry(kind="guarded", facts=describe(call, "passed"), execution_id=execution.execution_id)
    return await store.take_once_key(once, f"guard:{execution.execution_id}", entry)


def is_about(execution: ExecutionState, call: GuardedCall) -> bool:
    """Return whether the guard started the execution to ask about exactly this call.

    Only the guard starts such executions, because plans and models cannot name a host's tool. A retry does not count:
    it reuses results of another execution.
    """
    plan = execution.plan
    if plan is None or execution.retry_of is not None or len(plan.steps) != 1 or len(plan.steps[0].tool_calls) != 1:
        return False
    planned = plan.steps[0].tool_calls[0]
    return planned.tool_name == call.name and canonical_json(planned.arguments) == canonical_json(call.arguments)
