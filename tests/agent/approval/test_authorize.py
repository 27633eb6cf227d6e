"""`authorize` against a second implementation: slow, one sentence of the law after the other."""

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from planwarden.agent.approval.authorize import Allow, Ask, Deny, Permit, Source, authorize
from planwarden.agent.approval.context import ApprovalContext, CallRequest
from planwarden.agent.approval.grants import GrantCache
from planwarden.agent.approval.questions import POLICY_DIGITS
from planwarden.agent.approval.rules import ArgumentRule, RuleBook, Then
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState, SuspensionState
from planwarden.agent.core.plan.plan import PlanStep
from planwarden.agent.core.tool import ExecutionMode, Risk, ToolDefinition
from planwarden.agent.ports.budgets_and_keys import Grant
from tests.kit import ManualClock, OperatorPolicy, Registry, ev, requirement

OWNER, OTHER = "ann", "bob"
RISKS: tuple[Risk, ...] = ("read", "confirm", "dangerous", "critical")
Who = Literal["claim", "form", "owner", "other", "silence"]
WORTH: dict[Who, int] = {"claim": 0, "form": 1, "owner": 2, "other": 3, "silence": 0}
NEEDED: dict[Risk, int] = {"read": 0, "confirm": 1, "dangerous": 2, "critical": 3}
ASSURANCE: dict[Who, ev.Assurance | None] = {"claim": "claimed", "form": "client", "silence": None}
AGAIN = ("approval", "attempt", "reconcile")


@dataclass(frozen=True)
class Answer:
    """What a person, or nobody, said to an earlier question about the call."""

    source: Source
    who: Who
    risk: Risk
    quorum: int
    is_same_tool: bool
    is_same_policy: bool


@dataclass(frozen=True)
class Case:
    risk: Risk
    mode: ExecutionMode
    then: Then | None
    has_changed: bool
    has_grant: bool
    answers: list[Answer] = field(default_factory=list[Answer])


def decide_slowly(case: Case) -> str:
    """Return what the law says, in the words `run by SOURCE`, `ask`, `ask again` and `deny`."""
    is_ruled = case.then is not None and case.mode == "immediate"
    if is_ruled and case.then == "deny":
        return "deny"
    risk = case.risk
    if is_ruled and case.then == "ask" and risk != "critical":
        risk = "dangerous"
    is_free = risk == "read" or (is_ruled and case.then == "allow" and risk != "critical")
    for answer in case.answers:
        if not answer.is_same_tool and answer.source != "confirmation":
            return "ask again"
        if is_enough(answer, risk, is_free=is_free):
            return f"run by {answer.source}"
        if answer.source in AGAIN:
            return "ask again"
    if case.has_changed:
        return "ask"
    if is_free or (case.mode == "blocking" and risk == "confirm"):
        return "run"
    # The grant was made by a person, so it is not enough for what needs a second one.
    return "run by grant" if case.has_grant and case.mode == "immediate" and risk != "critical" else "ask"


def is_enough(answer: Answer, risk: Risk, *, is_free: bool) -> bool:
    """Return whether the answer lets a call of this risk run; a free one needs nobody."""
    is_of_now = answer.is_same_policy and (is_free or RISKS.index(answer.risk) >= RISKS.index(risk))
    if answer.source in AGAIN and not is_of_now:
        return False
    if risk == "critical" and not is_free and answer.quorum < 2:
        return False
    if answer.who == "silence":
        return risk == "confirm" or (risk == "read" and answer.source in AGAIN)
    return is_free or WORTH[answer.who] >= NEEDED[risk]


answers = st.builds(
    Answer,
    source=st.sampled_from(("approval", "attempt", "reconcile", "row", "confirmation")),
    who=st.sampled_from(tuple(WORTH)),
    risk=st.sampled_from(RISKS),
    quorum=st.sampled_from((1, 2)),
    is_same_tool=st.booleans(),
    is_same_policy=st.booleans(),
)
cases = st.builds(
    Case,
    risk=st.sampled_from(RISKS),
    mode=st.sampled_from(("immediate", "blocking")),
    then=st.sampled_from((None, "allow", "ask", "deny")),
    has_changed=st.booleans(),
    has_grant=st.booleans(),
    answers=st.lists(answers, max_size=3),
)


def judge(case: Case) -> str:
    """Return what `authorize` says, in the same words."""
    definition = ToolDefinition(
        name="pay", description="", input_schema={}, risk=case.risk, execution_mode=case.mode, digest="d" * 64
    )
    rules = () if case.then is None else (ArgumentRule(number=1, tool="pay", then=case.then),)
    policy = OperatorPolicy(critical="second", quorum=2, rules=RuleBook(rules))
    clock, grants = ManualClock(), GrantCache(policy)
    if case.has_grant:
        grants.fill((build_grant(definition, clock.now()),))
    context = ApprovalContext(tools=Registry(), policy=policy, clock=clock, grants=grants)
    call = Call(call_id="a:1", origin="", tool_name="pay", proposed={}, by_model=False)
    permits = [build_permit(answer, number, definition, policy) for number, answer in enumerate(case.answers)]
    execution = ExecutionState(
        execution_id="e",
        thread_id="t",
        principal=OWNER,
        steps={"a": StepState(step=PlanStep(step_id="a", description="pay", step_type="tool"), calls=(call,))},
        pins={"pay": ("x" if case.has_changed else "d") * 32},
    )
    verdict = authorize(CallRequest(context, execution, call, definition), {}, permits)
    match verdict:
        case Deny():
            return "deny"
        case Ask():
            assert (verdict.permit is None or verdict.reason is not None) and verdict.requirement.needs is not None
            return "ask" if verdict.permit is None else "ask again"
        case Allow():
            source = "grant" if verdict.grant_id else verdict.permit.source if verdict.permit else ""
            return f"run by {source}" if source else "run"


def build_permit(answer: Answer, number: int, definition: ToolDefinition, policy: OperatorPolicy) -> Permit:
    question = ev.Question(
        suspension_id=f"s{number}",
        kind="approval",
        message="",
        call_id="a:1",
        tool_name="pay",
        definition_digest=definition.digest if answer.is_same_tool else "o" * 64,
        risk=answer.risk,
        quorum=answer.quorum,
        policy=policy.policy_digest[:POLICY_DIGITS] if answer.is_same_policy else "old",
    )
    suspension = SuspensionState(
        question=question,
        created_at=0.0,
        status="timed_out" if answer.who == "silence" else "decided",
        decision=ev.RecordedDecision(approved=True),
        assurance=ASSURANCE.get(answer.who, "human"),
        principal=OTHER if answer.who == "other" else OWNER,
    )
    return Permit(source=answer.source, suspension=suspension, arguments={}, basis=question)


def build_grant(definition: ToolDefinition, now: float) -> Grant:
    return Grant(
        grant_id="g",
        tool_name="pay",
        definition_digest=definition.digest,
        arguments={},
        uses=1,
        expires_at=now + 60,
        owner=None,
        created_by=OWNER,
        assurance="human",
        channel="test",
        created_at=now,
    )


@requirement("approval:authorize")
@given(cases)
def test_what_runs_asks_and_is_denied_is_what_a_slow_reading_of_the_law_says(case: Case) -> None:
    assert judge(case) == decide_slowly(case)
