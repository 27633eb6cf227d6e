"""The question whether a plan may start: what it shows, how a person edits the plan, and what an answer can cover.

The question's digest includes the whole plan in the log. An approval lets the plan start; a call that needs a person
still asks when its turn comes. The person can say that the same answer also covers the calls whose arguments are
already known: exactly these calls, and never a critical one.
"""

from collections.abc import Iterator

from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.approval.covering_confirmations import look_ahead, update_covered_call
from planwarden.agent.approval.forecast import MAX_CALLS, CallForecast, forecast_calls
from planwarden.agent.approval.questions import (
    POLICY_CHANGED,
    add_edit,
    add_finding,
    bind_revision,
    is_of_policy,
    open_question,
)
from planwarden.agent.common.canonical import canonical_json, is_same_json
from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, count_of
from planwarden.agent.common.struct import copy_fields
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.fold import apply
from planwarden.agent.core.execution.state import ExecutionState, StepState
from planwarden.agent.core.execution.verify import needs_model
from planwarden.agent.core.plan.pins import build_pins
from planwarden.agent.core.plan.plan import Plan, plan_to_json
from planwarden.agent.core.plan.plan_parser import PlanIntake
from planwarden.agent.core.tool import Risk, highest_risk
from planwarden.agent.ports.environment import new_id

MAX_MESSAGE_CHARS = 20_000
MAX_NAMED = 20
_KEYS = ("plan", "cover")
_EXAMPLE = '{"plan": {"todoList": [...]}} for an edited plan, {"cover": true} to approve its known calls too, or both'


def ask_review(context: ApprovalContext, execution: ExecutionState) -> ev.Suspended:
    """Return the event that asks whether the plan may start, or go on after a model has revised it."""
    question = ev.Question(
        suspension_id=new_id(),
        kind="review",
        message=_quote_agent(execution),
        risk="confirm",
        needs=context.policy.for_risk("confirm").needs,
    )
    return open_question(context, execution, _look_again(context, execution, question))


def _look_again(context: ApprovalContext, execution: ExecutionState, question: ev.Question) -> ev.Question:
    """Return the question as it would be asked now: about the plan, tools, policy and grants as they are now."""
    begun = [step_id for step_id, state in execution.steps.items() if state.status != "pending"]
    execution = _begin_loops(context, execution)
    forecast = forecast_calls(context, execution)
    covers = tuple(
        copy_fields(ev.CoveredCall, call)
        for call in forecast
        # A call whose tool changed since the plan was accepted gets a question of its own, which shows the change.
        if call.asks == "approval"
        and not call.has_changed
        and call.arguments is not None
        and call.needs in ("client", "human")
        and call.quorum == 1
    )
    findings = tuple(_describe(context, execution, forecast, covers))
    if begun:
        findings = (f"A model revised the plan after {_name(begun)} began.", *findings)
    return replace(question, covers=covers, found=findings)


def _begin_loops(context: ApprovalContext, execution: ExecutionState) -> ExecutionState:
    """Return the execution as if each loop with known items had begun; stop before one that makes too many calls."""
    count = sum(map(_count_calls, execution.steps.values()))
    for step_id in [step_id for step_id, state in execution.steps.items() if state.step.loop is not None]:
        begun = look_ahead(context, execution, step_id)
        count += _count_calls(begun.steps[step_id]) - _count_calls(execution.steps[step_id])
        if count > MAX_CALLS:
            break
        execution = begun
    return execution


def _count_calls(state: StepState) -> int:
    """Return how many of the step's calls a forecast looks at before the step begins."""
    return len(state.step.tool_calls) if state.items is None else len(state.calls)


def _quote_agent(execution: ExecutionState) -> str:
    """Return the goal, the descriptions and the expected outcomes: the words of the plan's author."""
    lines = [execution.goal] if execution.goal else []
    for state in execution.steps.values():
        outcome = f" ({state.step.expected_outcome})" if state.step.expected_outcome else ""
        lines.append(f"{state.step.step_id}: {state.step.description}{outcome}")
    return "\n".join(lines)[:MAX_MESSAGE_CHARS]


def _describe(
    context: ApprovalContext,
    execution: ExecutionState,
    forecast: tuple[CallForecast, ...],
    covers: tuple[ev.CoveredCall, ...],
) -> Iterator[str]:
    asking = [call for call in forecast if call.asks is not None and call.asks != "wait"]
    # As long as a call's arguments are unknown, only the risk of its tool says whether the call will ask.
    unknown = [call for call in forecast if call.takes_from and call.grant_id is None]
    by_risk = sum(call.risk is not None and context.policy.for_risk(call.risk).needs is not None for call in unknown)
    yield f"{count_of(len(execution.steps), 'step')}; {count_of(len(asking) + by_risk, 'call')} will ask a person."
    if rows := [call.step_id for call in asking if execution.steps[call.step_id].step.loop is not None]:
        yield f"There will be one question for all rows of {_name(rows)}."
    for risk in ("dangerous", "critical"):
        if tool_names := [call.tool_name for call in forecast if call.risk == risk]:
            yield f"Calls of {_name(tool_names)} are {risk}."
    if covers:
        yield f"The answer can cover {count_of(len(covers), 'call')} now: their arguments are known, none is critical."
    if bound := [call.step_id for call in forecast if call.takes_from]:
        yield f"Only the run will know the arguments of {_name(bound)}; calls that need a person ask then."
    if model_steps := [step_id for step_id, state in execution.steps.items() if needs_model(state.step)]:
        yield f"A model writes the calls or the text of {_name(model_steps)}."
    if failing := [call.step_id for call in forecast if call.fault is not None]:
        yield f"Would fail now: {_name(failing)}."
    if (unseen := sum(map(_count_calls, execution.steps.values())) - len(forecast)) > 0:
        yield f"Not looked at, because they have begun or there are too many: {count_of(unseen, 'call')}."


def _name(names: list[str]) -> str:
    """Return names from the plan, quoted so that they cannot pass for words of planwarden."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - MAX_NAMED} more" if len(unique) > MAX_NAMED else ""
    return ", ".join(map(canonical_json, unique[:MAX_NAMED])) + more


def revise_stale_review(
    context: ApprovalContext, execution: ExecutionState, question: ev.Question
) -> tuple[ev.Question, str] | None:
    """Return the next revision and the reason; None if the policy and the covered calls are unchanged."""
    now = _look_again(context, execution, question)
    if not is_of_policy(question, context.policy):
        reason = POLICY_CHANGED
    elif not is_same_json(now.covers, question.covers):
        reason = "the calls that the answer can cover changed after the plan was shown"
    else:
        return None
    changed = replace(now, found=add_finding(now, f"{reason[:1].upper()}{reason[1:]}."))
    return bind_revision(context, execution, changed), reason


def read_review(answer: Decision) -> tuple[dict[str, JsonValue] | None, bool]:
    """Return the edited plan or None, and whether the answer covers the known calls. Raises `InvalidArguments`."""
    content = {} if answer.content is None else answer.content
    if not isinstance(content, dict) or content.keys() - {*_KEYS} or answer.modified_args is not None:
        raise InvalidArguments(f"a review takes no other content than {_EXAMPLE}")
    plan, covers = content.get("plan"), content.get("cover", False)
    if plan is not None and not isinstance(plan, dict):
        raise InvalidArguments(f"'plan' is not an object; send {_EXAMPLE}")
    if not isinstance(covers, bool):
        raise InvalidArguments("'cover' is true or false")
    return plan, covers


def find_cover_needs(context: ApprovalContext, execution: ExecutionState, question: ev.Question) -> ev.Needs | None:
    """Return the assurance that an answer must have to cover the question's calls, under the policy as it is now."""
    risks: list[Risk] = [update_covered_call(context, execution, covered)[1] for covered in question.covers]
    return context.policy.for_risk(highest_risk("confirm", *risks)).needs


def edit_plan(
    context: ApprovalContext,
    execution: ExecutionState,
    question: ev.Question,
    answer: Decision,
    editor: Authority,
    plans: PlanIntake,
) -> tuple[ev.Question, tuple[ev.Event, ...]]:
    """Return the question about the edited plan, and the events of the edit: none if the answer changes nothing.

    Raises:
        InvalidPlan, LimitExceeded, EarlierNeeded, ParsingNeeded: as `plans.read` does.
    """
    document, _ = read_review(answer)
    edit = None if document is None else _read_edit(execution, document, plans)
    if edit is None:
        return question, ()
    edited = apply(execution, edit, context.clock.now())
    names = tuple(dict.fromkeys((*edit.added, *edit.changed, *edit.removed, *edit.moved)))
    preview = replace(
        _look_again(context, edited, question), message=_quote_agent(edited), edits=add_edit(question, names, editor)
    )
    final = bind_revision(context, edited, preview)
    reason = f"plan edited by {editor.principal} through {editor.channel}"
    return final, (edit, ev.SuspensionRevised(question=final, reason=reason))


def _read_edit(execution: ExecutionState, document: dict[str, JsonValue], plans: PlanIntake) -> ev.PlanRevised | None:
    """Return the event that replaces the plan with the person's, after checking that plan; None if both are the same.

    Raises:
        InvalidPlan: also if the person changed the inputs or a step that has begun.
    """
    before = execution.plan
    assert before is not None
    # What the person left out, such as the inputs, stays as it is.
    rest = {key: value for key, value in plan_to_json(before).items() if key != "todoList" and key not in document}
    plan, _ = plans.read({**document, **rest}, author="caller")
    if not is_same_json(plan.inputs, before.inputs):
        raise InvalidPlan("the plan was given its inputs before, so 'inputs' cannot be edited; leave it as it is")
    after = {step.step_id: step for step in plan.steps}
    for step_id, state in execution.steps.items():
        if state.status != "pending" and not is_same_json(after.get(step_id), state.step):
            raise InvalidPlan(f"step {step_id!r} has begun and cannot be edited")
    if is_same_json(plan, before):
        return None
    return ev.PlanRevised(
        step_id="",
        plan=plan,
        **_find_differences(before, plan),
        pins=build_pins(plan, plans.tools),
        earlier=plans.list_results(plan, execution.earlier),
    )


def _find_differences(before: Plan, after: Plan) -> dict[str, tuple[str, ...]]:
    """Return the ids of the steps that differ, as fields of `PlanRevised`."""
    old, new = ({step.step_id: step for step in plan.steps} for plan in (before, after))
    was, now = [name for name in old if name in new], [name for name in new if name in old]
    return {
        "added": tuple(name for name in new if name not in old),
        "changed": tuple(name for name in now if not is_same_json(old[name], new[name])),
        "removed": tuple(name for name in old if name not in new),
        "moved": tuple(name for name, other in zip(now, was, strict=True) if name != other),
    }
