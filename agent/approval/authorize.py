"""The one judgement whether a call may run: `authorize` says allow, ask a person, or deny.

The dispatcher asks it before every call, and so do the question about the rows of a loop and the forecast of a plan.
The replay of rules and the guard have no permits and ask the policy. The order is the law:

1. A call that a rule of the operator denies does not run, even if a person allowed it.
2. An answer that names exactly this call lets it run if the answer still counts: the tool is the one that was shown,
   and the answer is worth what the policy asks now. If a decision about the call itself does not count any more, the
   person is asked again and told why.
3. A tool that changed since the plan was accepted is asked about, and so is every call whose execution says so.
4. A blocking tool asks by itself; a call that needs nobody runs; then standing grants let calls run.
5. Every other call is asked about.
"""

from collections.abc import Iterable, Mapping

import msgspec

from planwarden.agent.approval.answers import can_decide
from planwarden.agent.approval.calls import describe_change, has_changed_since_plan, has_changed_since_question
from planwarden.agent.approval.context import ApprovalContext, CallRequest
from planwarden.agent.approval.permits import Permit, Source, find_row
from planwarden.agent.approval.questions import is_of_policy
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.tool import highest_risk
from planwarden.agent.ports.policy import Requirement

NEEDS_MORE = "It needs more now than when it was approved: a rule of the operator matches it otherwise."
ASKED_AGAIN: tuple[Source, ...] = ("approval", "attempt", "reconcile")
"""Answers about one call and nothing else: if they do not count any more, that person is asked again, and told why.
A row is asked about again only if its tool changed."""


class Allow(msgspec.Struct, frozen=True):
    """The call may run: because of the permit, the grant, or the rule; without all three nobody needs to be asked."""

    requirement: Requirement
    permit: Permit | None = None
    grant_id: str | None = None

    @property
    def shares(self) -> tuple[ev.BudgetShare, ...]:
        """What the call takes of the budgets of the rule that lets it run."""
        return self.requirement.shares if self.permit is None and self.grant_id is None else ()


class Ask(msgspec.Struct, frozen=True):
    """A person must be asked, for what the requirement needs."""

    requirement: Requirement
    reason: str | None = None
    """Why now, where something that counted before does not count any more; a sentence."""
    permit: Permit | None = None
    """What does not count any more."""


class Deny(msgspec.Struct, frozen=True):
    """The operator's rule refuses the call; nobody is asked."""

    requirement: Requirement


class Reject(msgspec.Struct, frozen=True):
    """A person left the call out when they answered about many."""

    suspension_id: str


def judge_row(request: CallRequest) -> Allow | Ask | Deny | Reject | None:
    """Return what follows for a call of a loop from the answer to one question about many calls.

    None where there is no answer, or it does not count any more; then the call is judged as it was written.
    """
    answered = find_row(request)
    if answered is None:
        return None
    batch, permit = answered
    if request.call.call_id not in batch.approved:
        return Reject(batch.suspension.question.suspension_id)
    if permit is None:
        return None
    verdict = authorize(request, permit.arguments, (permit,))
    return verdict if isinstance(verdict, Deny) or verdict.permit is permit else None


def authorize(
    request: CallRequest,
    arguments: dict[str, JsonValue],
    permits: Iterable[Permit] = (),
    *,
    uses: Mapping[str, int] | None = None,
) -> Allow | Ask | Deny:
    """Return whether the call may run with exactly these arguments.

    `uses` counts the uses of grants that a forecast has given to other calls.

    Raises:
        PathsNeeded: as `Policy.requirement`.
    """
    context, execution, definition = request.context, request.execution, request.definition
    requirement = context.find_requirement(definition, arguments)
    if requirement.denied is not None:
        return Deny(requirement)
    for permit in permits:
        if has_changed_since_question(definition, permit.since) and permit.source != "confirmation":
            reason = describe_change(request, permit.since)
        elif permit.source in ASKED_AGAIN and not is_of_policy(permit.suspension.question, context.policy):
            answer = "answered" if permit.source == "reconcile" else "approved"
            reason = f"The operator's policy changed after it was {answer}."
        elif counts(context, execution, permit, requirement):
            return Allow(requirement, permit)
        elif permit.source in ASKED_AGAIN:
            reason = NEEDS_MORE
        else:
            continue
        return Ask(context.find_full_requirement(definition, arguments), reason, permit)
    if has_changed_since_plan(execution, definition):
        reason = describe_change(request, None)
        return Ask(context.find_full_requirement(definition, arguments), reason)
    if execution.options.asks_because is not None:
        return Ask(context.find_full_requirement(definition, arguments), execution.options.asks_because)
    if requirement.needs is None or (definition.is_blocking and requirement.risk == "confirm"):
        return Allow(requirement)
    now = context.clock.now()
    grant_id = context.grants.find_covering(execution, request.call, definition, arguments, requirement, now, uses=uses)
    return Ask(requirement) if grant_id is None else Allow(requirement, grant_id=grant_id)


def counts(context: ApprovalContext, execution: ExecutionState, permit: Permit, requirement: Requirement) -> bool:
    """Return whether the permit's answer is worth what the call needs now, from as many people as it needs."""
    suspension, question = permit.suspension, permit.suspension.question
    if question.quorum < requirement.quorum:
        return False
    if (
        permit.source in ASKED_AGAIN
        and highest_risk(question.risk or "read", requirement.effective_risk) != question.risk
    ):
        return False
    if suspension.status == "timed_out":
        # Only questions of the lowest risk are ever approved by waiting; what needs nobody does not run because of it.
        return requirement.risk == "confirm" or (requirement.risk == "read" and permit.source in ASKED_AGAIN)
    assurance, decider = suspension.assurance, suspension.principal
    if assurance is None or decider is None:
        return False
    return can_decide(context.policy, execution, requirement.needs, decider, assurance) is not None
