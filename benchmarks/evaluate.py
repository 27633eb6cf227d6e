"""The evaluation: one plan, models with every bad habit, planwarden beside a naive plan-and-execute loop.

The models are scripted doubles behind a real wire format (OpenAI Chat Completions) on a loopback port. So the table
says how the engine treats such habits, not how often real models have them. A step counts as falsely completed when it
is reported as done although one of its required tools has no recorded success. Run as `python -m benchmarks.evaluate`;
it writes docs/evaluation.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from msgspec.structs import replace
from pydantic import JsonValue
from tests.support.doubles.manners import MANNERS, Manner
from tests.support.doubles.provider import build_provider_model
from tests.support.doubles.server import serve_double
from tests.support.paths import DOCS
from tests.support.wardens import Ledger, model_step, plan

from planwarden.agent.common.errors import ModelError
from planwarden.agent.core.events import ExecutionCreated, Options, PlanAccepted, StepStarted
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.prompts import build_step_prompt
from planwarden.agent.core.state import new_execution
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.agent.ports.model import AskCaller
from planwarden.server.api.warden import Warden
from planwarden.server.settings.configuration import Settings
from planwarden.storage.memory.store import MemoryStore
from planwarden.tools.base import Tool, as_tool

WIRE = "openai-chat"
REPORT = DOCS / "evaluation.md"
PLAN = plan(
    model_step("gather", "find", description="find the records"),
    model_step("record", "find", "note", description="find the details and write them down"),
    model_step("report", "note", description="write the closing note"),
)
OFFLINE = frozenset({"50 MB"})
"""Left out: they test the HTTP client, and their size says nothing here."""


@dataclass(frozen=True, slots=True)
class Row:
    manner: str
    does: str
    claimed: int
    """Steps reported as completed."""
    false: int
    """Of these, steps without their calls."""
    rescued: int
    """Completed steps that needed an enforcement prompt."""
    retries: int
    tokens: int
    naive_claimed: int
    naive_false: int
    naive_tokens: int


async def with_planwarden(manner: Manner) -> tuple[int, int, int, int, int]:
    """Returns how many steps were claimed, false and rescued, the retries, and the tokens."""
    async with serve_double(WIRE, manner) as double:
        timeout_s = 0.1 if manner.name == "hangs" else 30.0
        model, ledger = build_provider_model(double, timeout_s=timeout_s), Ledger()
        settings = Settings(home=Path("/nonexistent"))
        async with Warden(settings=settings, model=model, tools=ledger.tools(), store=MemoryStore()) as warden:
            execution = await warden.execute_plan(PLAN, goal="find and note", wait_seconds=60)
    done = [step for step in execution.steps if step.status == "completed"]
    false = [
        step
        for step in done
        if not set(step.required_tools) <= {c.tool_name for c in step.actual_tool_calls if c.status == "succeeded"}
    ]
    used = execution.usage.input_tokens + execution.usage.output_tokens
    rescued = sum(1 for step in done if step.retries)
    return len(done), len(false), rescued, sum(step.retries for step in execution.steps), used


async def with_naive_loop(manner: Manner) -> tuple[int, int, int]:
    """Returns claimed, false and tokens of a loop that asks once per step, runs the calls, and ticks the step off."""
    tools = {tool.definition.name: tool for tool in map(as_tool, Ledger().tools())}
    facts = {name: ToolFacts(is_blocking=False) for name in tools}
    parsed, _ = parse_plan(PLAN, author="caller", tools=facts)
    claimed = false = used = 0
    async with serve_double(WIRE, manner) as double:
        model = build_provider_model(double, timeout_s=0.1 if manner.name == "hangs" else 30.0)
        for step in parsed.steps:
            alone = replace(step, dependencies=())
            state = new_execution("naive", "naive", "local")
            for event in (
                ExecutionCreated(goal="find and note", options=Options()),
                PlanAccepted(plan=replace(parsed, steps=(alone,))),
                StepStarted(step_id=step.step_id),
            ):
                state = apply(state, event, 0.0)
            definitions: list[ToolDefinition] = [tools[name].definition for name in step.required_tools]
            try:
                reply = await model.reply(build_step_prompt(state, state.steps[step.step_id]), definitions)
            except ModelError as error:
                used += error.input_tokens + error.output_tokens
                break
            assert not isinstance(reply, AskCaller)
            used += reply.input_tokens + reply.output_tokens
            succeeded: set[str] = set()
            for call in reply.calls:
                if call.tool_name in tools and await _runs(tools[call.tool_name], call.arguments):
                    succeeded.add(call.tool_name)
            claimed += 1
            false += not set(step.required_tools) <= succeeded
    return claimed, false, used


async def _runs(tool: Tool, arguments: dict[str, JsonValue]) -> bool:
    context = CallContext(execution_id="naive", step_id="s", call_id="s:1", idempotency_key="naive:s:1")
    try:
        await tool.call(arguments, context)
    # Such a loop does not care why a call failed.
    except Exception:  # noqa: BLE001
        return False
    return True


async def evaluate() -> list[Row]:
    rows: list[Row] = []
    for manner in MANNERS.values():
        if manner.name in OFFLINE:
            continue
        claimed, false, rescued, retries, used = await with_planwarden(manner)
        naive_claimed, naive_false, naive_used = await with_naive_loop(manner)
        rows.append(
            Row(
                manner.name, manner.does, claimed, false, rescued, retries, used, naive_claimed, naive_false, naive_used
            )
        )
    return rows


def report(rows: Sequence[Row]) -> str:
    lines = [
        "# Evaluation",
        "",
        "Written by `make eval`. The plan has three steps, which require `find`, `find` and `note`, and `note`. Each",
        "line is one model with one habit. The models are **scripted**: doubles that speak a real wire format (OpenAI",
        "Chat Completions) on a loopback port. So the table says what the engine does about such habits, not how often",
        "real models have them. The naive loop gets the same prompts with the same forced tool choice from the same",
        "doubles; it asks once per step, runs what the model calls, and ticks the step off.",
        "",
        "*False* are steps reported as completed although a required tool has no recorded success. *Rescued* are steps",
        "completed after an enforcement prompt. Tokens are the doubles' own numbers, for the whole plan.",
        "",
        "| habit | what it does | completed | false | rescued | retries | tokens | naive: completed | false | tokens |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.manner} | {row.does.replace('<', '&lt;')} | {row.claimed} | {row.false} | {row.rescued} "
        f"| {row.retries} | {row.tokens:,} | {row.naive_claimed} | {row.naive_false} | {row.naive_tokens:,} |"
        for row in rows
    ]
    total, wrong = sum(row.naive_claimed for row in rows), sum(row.naive_false for row in rows)
    claimed, rescued, retries = (sum(getattr(row, name) for row in rows) for name in ("claimed", "rescued", "retries"))
    lines.append("")
    lines.append(
        f"Falsely completed: planwarden **{sum(row.false for row in rows)}** of {claimed} completed steps, the naive "
        f"loop **{wrong}** of {total}. Steps rescued by enforcement: {rescued}; retries spent: {retries}."
    )
    lines.append("")
    return "\n".join(lines)


def main() -> None:
    text = report(anyio.run(evaluate))
    REPORT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
