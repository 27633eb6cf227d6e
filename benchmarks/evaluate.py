"""The evaluation: one goal, models with every bad habit, planwarden beside a naive plan-and-execute loop.

The models are scripted doubles behind a real wire format (OpenAI Chat Completions) on a loopback port, and the same
doubles in the seat of the calling assistant. So the table says how the engine treats such habits, not how often real
models have them. A step counts as falsely completed when it is reported as done although one of its required tools has
no recorded success. Run as `python -m benchmarks.evaluate`; it writes
docs/reference/evaluation.md, and fails if a step was falsely completed, or if a model that can recover from its habit
did not reach the goal.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio
from msgspec.structs import replace
from pydantic import JsonValue
from tests.support.doubles.caller import answer_all
from tests.support.doubles.manners import MANNERS, THREE_STEPS, Manner
from tests.support.doubles.server import ProviderDouble, build_provider_model, serve_double
from tests.support.paths import DOCS
from tests.support.wardens import Ledger

from planwarden.agent.common.errors import InvalidPlan, ModelError
from planwarden.agent.core.execution.events import ExecutionCreated, Options, PlanAccepted, StepStarted
from planwarden.agent.core.execution.fold import apply
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.plan import Plan, PlanStep, ToolFacts
from planwarden.agent.core.plan.plan_parser import parse_plan
from planwarden.agent.core.prompt.prompts import Prompt, build_planning_prompt, build_step_prompt
from planwarden.agent.core.prompt.replies import Reply
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.models.provider.model import ProviderModel
from planwarden.agent.ports.model import Model
from planwarden.server.api.warden import Warden
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.execution import Execution
from planwarden.storage.sqlite.store import MemoryStore
from planwarden.tools.base import Tool, as_tool

WIRE = "openai-chat"
REPORT = DOCS / "reference" / "evaluation.md"
GOAL = "find and note"
STEPS = 3
"""Of the plan."""
OFFLINE = frozenset({"50 MB"})
"""Left out: they test the HTTP client, and their size says nothing here."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the goal."""

    ended: str
    """Status of the execution."""
    claimed: int
    """Steps reported as completed."""
    false: int
    """Of these, steps without their calls."""
    rescued: int = 0
    """Completed steps that needed an enforcement prompt."""
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One habit; None where a model in that seat cannot have it."""

    manner: Manner
    provider: Outcome | None
    caller: Outcome | None
    naive: Outcome | None

    def is_harmless(self) -> bool:
        """Return whether each step was completed in each seat, and none falsely."""
        seats = [outcome for outcome in (self.provider, self.caller, self.naive) if outcome is not None]
        return all(outcome.claimed == STEPS and not outcome.false for outcome in seats)

    def list_failures(self) -> Iterator[str]:
        """Yields how planwarden missed the bar."""
        for seat, outcome in (("provider", self.provider), ("caller", self.caller)):
            if outcome is not None and outcome.false:
                yield f"{self.manner.name} ({seat}): {outcome.false} steps were falsely completed"
            if outcome is not None and self.manner.is_recoverable and outcome.ended != "completed":
                yield f"{self.manner.name} ({seat}): ended {outcome.ended}, but can be recovered from"


async def with_planwarden(manner: Manner, *, is_caller: bool) -> Outcome:
    """Returns what planwarden makes of a model with this habit."""
    async with AsyncExitStack() as stack:
        model: Model = CallerModel()
        if not is_caller:
            model = _build_model(await stack.enter_async_context(serve_double(WIRE, manner, plan=THREE_STEPS)))
        settings = Settings(home=Path("/nonexistent"))
        warden = Warden(settings=settings, model=model, tools=Ledger().tools(), store=MemoryStore())
        await stack.enter_async_context(warden)
        execution = await warden.run_goal(GOAL, wait_seconds=60)
        if is_caller:
            execution = await answer_all(warden, execution, manner, THREE_STEPS)
    return _judge(execution)


def _build_model(double: ProviderDouble) -> ProviderModel:
    return build_provider_model(double, timeout_s=0.1 if double.manner.name == "hangs" else 30.0)


def _judge(execution: Execution) -> Outcome:
    done = [step for step in execution.steps if step.status == "completed"]
    proven = [{c.tool_name for c in step.actual_tool_calls if c.status == "succeeded"} for step in done]
    return Outcome(
        ended=execution.status,
        claimed=len(done),
        false=sum(not set(step.required_tools) <= names for step, names in zip(done, proven, strict=True)),
        rescued=sum(1 for step in done if step.retries),
        retries=sum(step.retries for step in execution.steps),
    )


async def with_naive_loop(manner: Manner) -> Outcome:
    """Returns what a loop makes of it that asks once for a plan and once per step, and ticks each step off."""
    tools = {tool.definition.name: tool for tool in map(as_tool, Ledger().tools())}
    claimed = false = 0
    async with serve_double(WIRE, manner, plan=THREE_STEPS) as double:
        model = NaiveModel(_build_model(double))
        plan = await model.plan(tools)
        for step in plan.steps if plan is not None else ():
            reply = await model.do(step, tools)
            if reply is None:
                break
            succeeded: set[str] = set()
            for call in reply.calls:
                if call.tool_name in tools and await _runs(tools[call.tool_name], call.arguments):
                    succeeded.add(call.tool_name)
            claimed += 1
            false += not set(step.required_tools) <= succeeded
    return Outcome(ended="", claimed=claimed, false=false)


@dataclass
class NaiveModel:
    """A model as the naive loop asks it: with planwarden's prompts, once each."""

    model: ProviderModel

    async def plan(self, tools: Mapping[str, Tool]) -> Plan | None:
        definitions = [tool.definition for tool in tools.values()]
        reply = await self._ask(build_planning_prompt(_start(), definitions, len(definitions)), ())
        try:
            facts = {name: ToolFacts(is_blocking=False) for name in tools}
            return None if reply is None else parse_plan(reply.plan, author="model", tools=facts)[0]
        except InvalidPlan:
            return None

    async def do(self, step: PlanStep, tools: Mapping[str, Tool]) -> Reply | None:
        alone = replace(step, dependencies=(), tool_calls=(), control=None)
        state = _start()
        for event in (PlanAccepted(plan=Plan(steps=(alone,))), StepStarted(step_id=step.step_id)):
            state = apply(state, event, 0.0)
        definitions = [tools[name].definition for name in step.required_tools]
        return await self._ask(build_step_prompt(state, state.steps[step.step_id]), definitions)

    async def _ask(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | None:
        try:
            return await self.model.reply(prompt, tools)
        except ModelError:
            return None


def _start() -> ExecutionState:
    return apply(new_execution("naive", "naive", "local"), ExecutionCreated(goal=GOAL, options=Options()), 0.0)


async def _runs(tool: Tool, arguments: dict[str, JsonValue]) -> bool:
    context = CallContext(execution_id="naive", step_id="s", call_id="s:1", idempotency_key="naive:s:1")
    try:
        await tool.call(arguments, context)
    # Such a loop does not care why a call failed.
    except Exception:  # noqa: BLE001
        return False
    return True


HEADS = ("habit", "recoverable", "planwarden", "as caller", "naive loop")


async def evaluate() -> list[Row]:
    return [
        Row(
            manner,
            provider=None if manner.answers_closed else await with_planwarden(manner, is_caller=False),
            caller=None if manner.needs_wire else await with_planwarden(manner, is_caller=True),
            naive=None if manner.answers_closed else await with_naive_loop(manner),
        )
        for manner in MANNERS.values()
        if manner.name not in OFFLINE
    ]


def report(rows: Sequence[Row]) -> str:
    lines = [
        "# Evaluation",
        "",
        "Does planwarden report a step as completed that did not make its calls? `make eval` tries it and writes this",
        "page. Each row is a model with one habit. It plans three steps that must call `find`, `find` and `note`, and",
        "`note`, and does them. A cell says how the execution ended, and how many steps completed. *As caller*: the",
        "calling assistant has the habit. The *naive loop* gets the same prompts once and ticks each step off; *false*",
        "are its steps without their calls. *Recoverable*: the model does what it promised once it is told what was",
        "wrong, so the execution must end `completed`. An invented condition does not hold, so that step is skipped.",
        "",
        "The models are **scripted** doubles behind a real wire format (OpenAI Chat Completions). The table shows what",
        "planwarden does about such habits, not how often real models have them.",
        "",
        f"| {' | '.join(HEADS)} |",
        "|---|---|---|---|---|",
    ]
    harmless = [row.manner.name for row in rows if row.is_harmless()]
    for row in (row for row in rows if not row.is_harmless()):
        cells = [
            f"**{row.manner.name}** {row.manner.does.replace('<', '&lt;')}",
            "yes" if row.manner.is_recoverable else "no",
            _show(row.provider),
            _show(row.caller),
            _show(row.naive),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.extend(("", f"Harmless to planwarden and to the naive loop: {', '.join(harmless)}."))
    lines.extend(("", _sum_up(rows), "", f"Missed the bar: {'; '.join(list_failures(rows)) or '**none**'}.", ""))
    return "\n".join(lines)


def _sum_up(rows: Sequence[Row]) -> str:
    runs = [outcome for row in rows for outcome in (row.provider, row.caller) if outcome is not None]
    naive = [row.naive for row in rows if row.naive is not None]
    return (
        f"Falsely completed: planwarden **{_sum(runs, 'false')}** of {_sum(runs, 'claimed')} completed steps, the "
        f"naive loop **{_sum(naive, 'false')}** of {_sum(naive, 'claimed')}. Steps rescued by enforcement: "
        f"{_sum(runs, 'rescued')}; retries spent: {_sum(runs, 'retries')}."
    )


def list_failures(rows: Sequence[Row]) -> list[str]:
    return [failure for row in rows for failure in row.list_failures()]


def _show(outcome: Outcome | None) -> str:
    if outcome is None:
        return "–"
    return f"{outcome.ended} {outcome.claimed}".lstrip() + (f", {outcome.false} false" if outcome.false else "")


def _sum(outcomes: Sequence[Outcome], field: str) -> int:
    return sum(getattr(outcome, field) for outcome in outcomes)


def main() -> None:
    rows = anyio.run(evaluate)
    text = report(rows)
    REPORT.write_text(text, encoding="utf-8")
    print(text)
    if list_failures(rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
