"""What can be said of a call at once: what is planwarden's own, what only reads, and what the operator's rules say.

None of it opens a store. What is left is asked about.
"""

import msgspec
from pydantic import JsonValue

from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.policy import PathsNeeded, Policy, Requirement
from planwarden.agent.runtime.real_paths import follow_links
from planwarden.server.guard.calls import GuardedCall, Verdict, deny
from planwarden.server.guard.protected_paths import OwnThings
from planwarden.tools.guarded.hosts import GUARD_TOOL, OWN_TOOLS, find_host_tool


class Judge(msgspec.Struct, frozen=True):
    """The operator's policy and files."""

    policy: Policy
    own: OwnThings

    def judge(self, call: GuardedCall) -> Verdict | None:
        """Return what is certain of the call; None when somebody must be asked, or a store must count."""
        own = call.tool.removeprefix(call.host.own_prefix)
        if own == GUARD_TOOL or call.tool == GUARD_TOOL:
            return deny("Refused: only the host's hook calls guard_call. It lets nothing pass for a model.")
        if own != call.tool and own in OWN_TOOLS:
            # What they start is asked about by planwarden itself.
            return Verdict(then="no opinion")
        refusal = self.own.find_refusal(call)
        if refusal is not None:
            return deny(f"Refused: {refusal}.", facts=describe(call, "refused"))
        requirement = self.find_requirement(call)
        return _judge_by_rule(call, requirement)

    def find_requirement(self, call: GuardedCall) -> Requirement:
        """Return what the call needs as the policy is now."""
        paths: dict[str, str | None] = {}
        while True:
            try:
                return self.policy.requirement(find_definition(call), call.arguments, paths)
            except PathsNeeded as needed:
                paths |= follow_links(needed.wanted - paths.keys())


def find_definition(call: GuardedCall) -> ToolDefinition:
    """Return the definition under which the call is judged and asked about."""
    tool = find_host_tool(call.name)
    assert tool is not None, call.name
    return tool.definition


def describe(call: GuardedCall, answer: str, requirement: Requirement | None = None) -> dict[str, JsonValue]:
    """Return what the audit records: no arguments, only their digest."""
    facts: dict[str, JsonValue] = {"tool": call.name, "answer": answer, "arguments": call.compute_digest("")[:32]}
    rule = None if requirement is None else requirement.rule
    return facts if rule is None else {**facts, "rule": rule.number}


def _judge_by_rule(call: GuardedCall, requirement: Requirement) -> Verdict | None:
    if requirement.denied is not None:
        because = requirement.denied or "a rule of the operator refuses it"
        return deny(f"Denied by the operator's rules: {because}.", facts=describe(call, "denied", requirement))
    if requirement.rule is None and call.tool in call.host.reads:
        return Verdict(then="no opinion")
    if requirement.needs is None and not requirement.shares:
        return Verdict(then="allow", reason="Allowed by rule.", facts=describe(call, "allowed", requirement))
    return None
