"""The evaluation: one goal, models with every bad habit, planwarden beside a naive plan-and-execute loop.

The models are scripted doubles behind a real wire format (OpenAI Chat Completions) on a loopback port, and the same
doubles in the seat of the calling assistant. So the table says how the engine treats such habits, not how often real
models have them. A step counts as falsely completed when it is reported as done although one of its required tools has
no recorded success. Run as `python -m benchmarks.evaluate`; it writes
docs/reference/evaluation.md, and fails if a step was falsely completed, or if a model that can recover from its habit
did not reach the goal.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import anyio
from dev.page import write_parts, write_table
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
from planwarden.agent.core.prompts import Prompt, build_planning_prompt, build_step_prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.agent.models.provider import ProviderModel
from planwarden.agent.ports.model import CallerModel, Model
from planwarden.server.api.warden import Warden
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.execution import Execution
from planwarden.storage.sqlite.store import MemoryStore
from planwarden.tools.base import Tool, as_tool

WIRE = "openai-chat"
GOAL = "find and note"
STEPS = 3
"""Of the plan."""
OFFLINE = frozenset({"50 MB"})
"""Left out: they test the HTTP client, and their size says nothing here."""


class Outcome(NamedTuple):
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

    def __str__(self) -> str:
        return f"{self.ended} {self.claimed}".lstrip() + (f", {self.false} false" if self.false else "")


Row = tuple[Manner, Outcome | None, Outcome | None, Outcome | None]
"""One habit, with planwarden over a provider, with planwarden whose caller has it, and in the naive loop."""


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
    definitions = {name: tool.definition for name, tool in tools.items()}
    async with serve_double(WIRE, manner, plan=THREE_STEPS) as double:
        model = _build_model(double)
        prompt = build_planning_prompt(_start(), list(definitions.values()), len(definitions))
        for step in _read_steps(await _ask(model, prompt, ()), tools):
            alone = replace(step, dependencies=(), tool_calls=(), control=None)
            state = _start()
            for event in (PlanAccepted(plan=Plan(steps=(alone,))), StepStarted(step_id=step.step_id)):
                state = apply(state, event, 0.0)
            prompt = build_step_prompt(state, state.steps[step.step_id])
            reply = await _ask(model, prompt, [definitions[name] for name in step.required_tools])
            if reply is None:
                break
            calls = [call for call in reply.calls if call.tool_name in tools]
            succeeded = {call.tool_name for call in calls if await _runs(tools[call.tool_name], call.arguments)}
            claimed += 1
            false += not set(step.required_tools) <= succeeded
    return Outcome(ended="", claimed=claimed, false=false)


def _read_steps(reply: Reply | None, tools: Iterable[str]) -> tuple[PlanStep, ...]:
    try:
        facts = {name: ToolFacts(is_blocking=False) for name in tools}
        return () if reply is None else parse_plan(reply.plan, author="model", tools=facts)[0].steps
    except InvalidPlan:
        return ()


async def _ask(model: ProviderModel, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | None:
    try:
        return await model.reply(prompt, tools)
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


async def evaluate() -> list[Row]:
    """Return what became of each habit, None where a model in that seat cannot have it."""
    return [
        (
            manner,
            None if manner.answers_closed else await with_planwarden(manner, is_caller=False),
            None if manner.needs_wire else await with_planwarden(manner, is_caller=True),
            None if manner.answers_closed else await with_naive_loop(manner),
        )
        for manner in MANNERS.values()
        if manner.name not in OFFLINE
    ]


def report(rows: Sequence[Row]) -> str:
    """Return the table, and the sums below it."""
    lines: list[tuple[object, ...]] = []
    harmless: list[str] = []
    for manner, *seats in rows:
        if all(outcome is None or (outcome.claimed == STEPS and not outcome.false) for outcome in seats):
            harmless.append(manner.name)
            continue
        habit = f"**{manner.name}** {manner.does.replace('<', '&lt;')}"
        lines.append((habit, "yes" if manner.is_recoverable else "no", *(outcome or "–" for outcome in seats)))
    ours = [outcome for _, provider, caller, _ in rows for outcome in (provider, caller) if outcome is not None]
    naive = [outcome for *_, outcome in rows if outcome is not None]
    fields = ("false", "claimed", "rescued", "retries")
    false, claimed, rescued, retries = (sum(getattr(outcome, field) for outcome in ours) for field in fields)
    naive_false, naive_claimed = (sum(getattr(outcome, field) for outcome in naive) for field in fields[:2])
    parts = (
        write_table(("habit", "recoverable", "planwarden", "as caller", "naive loop"), lines, below="---"),
        f"Harmless to planwarden and to the naive loop: {', '.join(harmless)}.",
        f"Falsely completed: planwarden **{false}** of {claimed} completed steps, the naive loop **{naive_false}** "
        + f"of {naive_claimed}. Steps rescued by enforcement: {rescued}; retries spent: {retries}.",
        f"Missed the bar: {'; '.join(list_failures(rows)) or '**none**'}.",
    )
    return "\n\n".join(parts)


def list_failures(rows: Sequence[Row]) -> list[str]:
    """Return how planwarden missed the bar."""
    failures: list[str] = []
    for manner, provider, caller, _ in rows:
        for seat, outcome in (("provider", provider), ("caller", caller)):
            if outcome is not None and outcome.false:
                failures.append(f"{manner.name} ({seat}): {outcome.false} steps were falsely completed")
            if outcome is not None and manner.is_recoverable and outcome.ended != "completed":
                failures.append(f"{manner.name} ({seat}): ended {outcome.ended}, but can be recovered from")
    return failures


def main() -> None:
    """Evaluate, and write the page."""
    rows = anyio.run(evaluate)
    write_parts(DOCS / "reference" / "evaluation.md", {"evaluation": report(rows)})
    if list_failures(rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
