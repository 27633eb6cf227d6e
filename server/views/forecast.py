"""The view of a forecast: whom a plan that has not run yet will ask, what only the run will know, and its graph."""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import msgspec

from planwarden.agent.approval.forecast import CallForecast, judge_conditions
from planwarden.agent.common.struct import copy_fields
from planwarden.agent.core.binding.bindings import WHEN
from planwarden.agent.core.execution.question import MatchedRule
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.execution.verify import needs_model
from planwarden.agent.core.plan.plan import PlanStep, list_step_tools
from planwarden.server.views.escaping import name_some, shorten_id, shorten_text
from planwarden.server.views.plan_graph import build_graph, list_in_order, write_mermaid
from planwarden.server.views.status_words import DECIDERS, Tone

NAME_CHARS, TOOL_CHARS, BECAUSE_CHARS = 64, 128, 300
MAX_NAMES = 10


class ForecastStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a forecast says about one step of the plan."""

    id: str
    """As in the plan."""
    tools: tuple[str, ...]
    """The tools that it requires or calls."""
    after: tuple[str, ...]
    """The steps that must be over first."""
    needs_model: bool
    """A model writes its calls, or its text."""
    is_conditional: bool = False
    """It runs only if its `when` holds, which only the run will know."""
    skipped_because: str | None = None
    """Why it will be skipped: `when`, or the id of the skipped step that it cannot do without; left out if nothing
    known so far keeps it from running."""

    @property
    def fate(self) -> str:
        """Whether the step will run, in words and escaped; empty if it runs in any case."""
        if self.skipped_because is None:
            return "runs only if its condition holds" if self.is_conditional else ""
        if self.skipped_because == WHEN:
            return "will be skipped: its condition does not hold"
        return f"will be skipped, because of {shorten_text(self.skipped_because, NAME_CHARS)}"


class _ForeseenCall(msgspec.Struct, frozen=True, kw_only=True):
    step_id: str
    """The step that calls."""
    tool_name: str
    """What it calls."""

    tone: ClassVar[Tone] = "warn"

    @property
    def tool(self) -> str:
        return shorten_text(self.tool_name, TOOL_CHARS)


class Asking(_ForeseenCall, frozen=True, kw_only=True):
    """A call that will ask somebody before it runs, if the plan, tools, policy and grants stay as they are now."""

    asks: str
    """The kind of the question, as in a suspension."""
    needs: str
    """The assurance that a decision needs."""
    whom: str
    """Who can decide it, in words."""
    because: str
    """Why it will ask, in words."""
    quorum: int = 1
    """How many different people have to approve; left out if one is enough."""
    confirms: tuple[str, ...] = ()
    """Later steps whose calls the same answer covers; left out if none."""
    for_all_rows: Literal[True] | None = None
    """True if one question covers all calls of a loop, with a row for each; left out otherwise."""

    @property
    def sentence(self) -> str:
        rows = ", one question for all rows:" if self.for_all_rows else ""
        covers = f"; the answer covers {join_names(self.confirms)} too" if self.confirms else ""
        return f"{self.tool} will ask{rows} {self.whom}: {shorten_text(self.because, BECAUSE_CHARS)}{covers}"


class Allowed(_ForeseenCall, frozen=True, kw_only=True):
    """A call that will not ask, because a standing grant lets it through, if the grants stay as they are now."""

    tone = "good"
    grant_id: str
    """The grant, as `planwarden grant list` shows it."""

    @property
    def sentence(self) -> str:
        return f"{self.tool} will not ask: {_describe_grant(self.grant_id)}"


class Unforeseen(_ForeseenCall, frozen=True, kw_only=True):
    """A call whose arguments, and therefore whose needs, only the run will know."""

    risk: str | None
    """Risk of the tool; it does not depend on the arguments."""
    takes_from: tuple[str, ...]
    """What its arguments take values from: steps, `inputs`, or `item` in a loop."""
    grant_id: str | None = None
    """The standing grant that will let it through, whatever the values are; left out if none."""

    @property
    def sentence(self) -> str:
        allowed = "" if self.grant_id is None else f"; {_describe_grant(self.grant_id)}"
        sources = join_names(self.takes_from)
        return f"only the run will know: {self.tool} takes values of {sources}; its risk is {self.risk}{allowed}"


class Impossible(_ForeseenCall, frozen=True, kw_only=True):
    """A call that would fail now."""

    tone = "bad"
    why: str
    """Its tool is not available or does not take the arguments, or a rule of the operator denies the call."""

    @property
    def sentence(self) -> str:
        return f"would fail: {self.tool}: {shorten_text(self.why, BECAUSE_CHARS)}"


class AllowedByRule(_ForeseenCall, frozen=True, kw_only=True):
    """A call that will not ask, because a rule of the operator lets it through while the rule's budgets last."""

    tone = "good"
    rule: MatchedRule
    """The rule."""

    @property
    def sentence(self) -> str:
        return f"{self.tool} will not ask: rule {self.rule.number} lets it through"


def join_names(names: Sequence[str]) -> str:
    """Return the first names, escaped and cut, and how many more there are."""
    return name_some([shorten_text(name, NAME_CHARS) for name in names], MAX_NAMES)


def _describe_grant(grant_id: str) -> str:
    return f"grant {shorten_text(shorten_id(grant_id), NAME_CHARS)} lets it through"


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said of a plan before it runs. Lists that are empty are left out."""

    asks: tuple[Asking, ...]
    """Calls that will ask somebody."""
    allowed: tuple[Allowed, ...]
    """Calls that a standing grant lets through."""
    by_rule: tuple[AllowedByRule, ...] = ()
    """Calls that a rule of the operator lets through."""
    only_the_run_knows: tuple[Unforeseen, ...]
    """Calls whose arguments take values that are not there yet."""
    impossible: tuple[Impossible, ...]
    """Calls that would fail now."""
    models: tuple[str, ...]
    """Steps whose calls or text a model writes; what they will ask is not known yet."""
    unseen: int | None = None
    """Number of calls beyond the first 500, or beyond 1 MiB of arguments, which were not looked at."""
    warnings: tuple[str, ...] = ()
    """About the plan; only in `planwarden check`."""
    steps: tuple[ForecastStep, ...]
    """In the order in which they may start; only in `planwarden check`."""
    graph: str | None = None
    """The plan as Mermaid text; only in `planwarden check`."""

    def describe_step(self, step: ForecastStep) -> Iterator[tuple[str, Tone]]:
        """Yield the forecast's texts about a step, each with its tone; for a skipped step, only why it is skipped."""
        if step.skipped_because is not None:
            yield step.fate, "warn"
            return
        for call in (*self.asks, *self.allowed, *self.by_rule, *self.only_the_run_knows, *self.impossible):
            if call.step_id == step.id:
                yield call.sentence, call.tone
        if step.is_conditional:
            yield step.fate, "dim"
        if step.needs_model:
            yield "a model writes its calls or its text", "dim"


def build_forecast(
    execution: ExecutionState,
    calls: Sequence[CallForecast],
    *,
    is_whole: bool,
    has_inputs: bool = True,
    warnings: Sequence[str] = (),
) -> Forecast:
    """Return the forecast. `execution` must come from `foresee_skips`.

    With `is_whole`, include the steps and their graph; a forecast inside the view of an execution leaves them out.
    """
    plan = execution.plan
    assert plan is not None
    skipped = {name for name, state in execution.steps.items() if state.status == "skipped"}
    listed = sum(len(step.tool_calls) for step in plan.steps if step.step_id not in skipped)
    asking_steps = {call.step_id for call in calls if call.asks is not None and call.asks != "wait"}
    return Forecast(
        asks=tuple(_build_asking(call) for call in calls if call.asks is not None and call.needs is not None),
        allowed=tuple(
            copy_fields(Allowed, call) for call in calls if call.grant_id is not None and not call.takes_from
        ),
        by_rule=tuple(
            copy_fields(AllowedByRule, call)
            for call in calls
            if call.asks is None and call.fault is None and call.rule is not None
        ),
        only_the_run_knows=tuple(copy_fields(Unforeseen, call) for call in calls if call.takes_from),
        impossible=tuple(copy_fields(Impossible, call, why=call.fault) for call in calls if call.fault is not None),
        models=tuple(step.step_id for step in plan.steps if needs_model(step) and step.step_id not in skipped),
        unseen=listed - len(calls) or None,
        warnings=tuple(warnings),
        steps=tuple(_build_step(execution, step, has_inputs) for step in list_in_order(plan)) if is_whole else (),
        graph=write_mermaid(build_graph(plan, asking=asking_steps, skipped=skipped)) if is_whole else None,
    )


def _build_asking(call: CallForecast) -> Asking:
    needs = call.needs or "client"
    return copy_fields(
        Asking,
        call,
        asks="approval" if call.asks in (None, "batch") else call.asks,
        needs=needs,
        whom=f"{call.quorum} different people" if call.quorum > 1 else DECIDERS[needs],
        because=_explain(call),
        confirms=tuple(dict.fromkeys(covered.step_id for covered in call.covers)),
        for_all_rows=True if call.asks == "batch" else None,
    )


def _explain(call: CallForecast) -> str:
    if call.has_changed:
        return "the tool changed since the plan was accepted"
    if call.asks in ("approval", "batch"):
        rule = f"rule {call.rule.number} applies: {call.rule.words}" if call.rule is not None else ""
        return rule or f"calls of this tool are {call.risk}"
    covers = f", and the answer covers {call.risk} calls" if call.covers else ""
    return f"the tool asks a person{covers}"


def _build_step(execution: ExecutionState, step: PlanStep, has_inputs: bool) -> ForecastStep:
    cause = execution.steps[step.step_id].skipped_by
    return ForecastStep(
        id=step.step_id,
        tools=list_step_tools(step),
        after=step.dependencies,
        needs_model=needs_model(step),
        is_conditional=cause is None and not judge_conditions(execution, step, has_inputs=has_inputs),
        skipped_because=cause,
    )
