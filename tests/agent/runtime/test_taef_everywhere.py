"""The same plan, the same manners, over every wire format, in text mode, and with a caller: TAEF holds the step.

What may differ between them is nothing but the number of requests. No manner gets a step completed that was not done.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import JsonValue
from pytest import ParameterSet

import planwarden
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.models.provider.endpoint import Mode
from planwarden.agent.ports.model import Model
from planwarden.server.settings.configuration import Settings
from planwarden.storage.memory.store import MemoryStore
from tests.support.doubles.caller import answer_all
from tests.support.doubles.manners import MANNERS, Manner
from tests.support.doubles.messages import Body
from tests.support.doubles.plan_habits import THREE_STEPS
from tests.support.doubles.provider import build_provider_model
from tests.support.doubles.server import WIRES, ProviderDouble, serve_double
from tests.support.slices import each_once
from tests.support.wardens import Ledger, model_step, plan, statuses

pytestmark = pytest.mark.anyio

TEXT = "text"
CALLER = "caller"
MODELS = (*WIRES, TEXT, CALLER)
TIMEOUT_S = 8.0
"""Passes at once when a request gets no reply."""
STEPS = plan(model_step("a", "find", "note"))


@dataclass
class Run:
    """One warden whose model has one manner."""

    warden: planwarden.Warden
    manner: Manner
    ledger: Ledger
    double: ProviderDouble | None
    planned: Body | None

    async def execute(
        self, steps: dict[str, JsonValue] | None, goal: str = "find and note", **options: JsonValue
    ) -> planwarden.Execution:
        """Run a plan, or plan for the goal, until nothing more happens."""
        if steps is None:
            execution = await self.warden.run_goal(goal, options=options)
        else:
            execution = await self.warden.execute_plan(steps, goal=goal, options=options)
        if self.double is None:
            return await answer_all(self.warden, execution, self.manner, self.planned)
        return execution


@asynccontextmanager
async def run_with(model: str, name: str, *, planned: Body | None = None) -> AsyncGenerator[Run]:
    """A warden over a model that has the manner of that name."""
    manner, ledger = MANNERS[name], Ledger()
    settings = Settings(home=Path("/nonexistent"))
    async with AsyncExitStack() as stack:
        double: ProviderDouble | None = None
        thinking: Model = CallerModel()
        if model != CALLER:
            wire = "openai-chat" if model == TEXT else model
            double = await stack.enter_async_context(serve_double(wire, manner, plan=planned))
            mode: Mode = "text" if model == TEXT else "tools"
            double.silent_s = TIMEOUT_S
            thinking = build_provider_model(double, mode=mode, timeout_s=TIMEOUT_S)
        warden = planwarden.Warden(settings=settings, model=thinking, tools=ledger.tools(), store=MemoryStore())
        await stack.enter_async_context(warden)
        yield Run(warden, manner, ledger, double, planned)


@dataclass(frozen=True)
class Expected:
    status: str
    retries: int = 0
    code: str | None = None
    ledger: tuple[str, ...] = ()
    iterations: int = 5


EXPECTED: dict[str, Expected] = {
    "obedient": Expected("completed", ledger=("note the text",)),
    "prose only": Expected("failed", 2, "tools_not_called"),
    "prose first": Expected("completed", 1, ledger=("note the text",)),
    "forged status": Expected("failed", 2, "tools_not_called"),
    "wrong tool": Expected("failed", 0, "iterations_exhausted"),
    "half": Expected("failed", 2, "tools_not_called"),
    "malformed": Expected("failed", 2, "tools_not_called"),
    "malformed once": Expected("completed", ledger=("note the text",)),
    "cut short": Expected("completed", ledger=("note the text",)),
    "empty arguments": Expected("failed", 0, "iterations_exhausted"),
    "placeholders": Expected("failed", 0, "iterations_exhausted"),
    "never-ending": Expected("failed", 0, "iterations_exhausted"),
    "ten thousand calls": Expected("failed", 0, "iterations_exhausted", iterations=1),
    "numbering": Expected("completed", ledger=("note the text",)),
    "one call an answer": Expected("completed", ledger=("note the text",)),
    "prose plan first": Expected("completed", ledger=("note the text",)),
    "wrong keys": Expected("completed", ledger=("note the text",)),
    "wrong keys twice": Expected("completed", ledger=("note the text",)),
    "forgets the schema": Expected("completed", ledger=("note the text",)),
    "closed question": Expected("completed", ledger=("note the text",)),
    "invents a condition": Expected("completed", ledger=("note the text",)),
    "fencing": Expected("completed", ledger=("note the text",)),
    "content filter": Expected("failed", 0, "model_error"),
    "429 once": Expected("completed", ledger=("note the text",)),
    "429 always": Expected("suspended"),
    "500 once": Expected("completed", ledger=("note the text",)),
    "breaks off": Expected("suspended"),
    "breaks off once": Expected("completed", ledger=("note the text",)),
    "50 MB": Expected("failed", 0, "model_error"),
    "hangs": Expected("suspended"),
    "web page": Expected("suspended"),
}


REFUSED = Expected("suspended")
"""A caller is told at once that its answer has no usable form, and may answer again."""
EXPECTED_OF_CALLER = {"malformed": REFUSED, "ten thousand calls": REFUSED}


def cases() -> list[ParameterSet]:
    """Each manner with one of the models that answer over a wire, and with a caller."""
    wired = each_once(MODELS[:-1], [name for name, manner in MANNERS.items() if not manner.answers_closed])
    return [*wired, *(pytest.param(CALLER, name) for name, manner in MANNERS.items() if not manner.needs_wire)]


@pytest.mark.parametrize(("model", "name"), cases())
async def test_a_step_is_completed_only_by_the_calls_it_promised_whatever_the_model_and_its_manners(
    model: str, name: str
) -> None:
    expected = EXPECTED[name]
    if model == CALLER:
        expected = EXPECTED_OF_CALLER.get(name, expected)
    async with run_with(model, name) as run:
        execution = await run.execute(STEPS, maxIterations=expected.iterations)
    [step] = execution.steps
    code = step.error.code if step.error is not None else None
    assert (step.status, step.retries, code) == (expected.status, expected.retries, expected.code)
    assert execution.status == expected.status and tuple(run.ledger.lines) == expected.ledger
    proven = {call.tool_name for call in step.actual_tool_calls if call.status == "succeeded"}
    assert (step.status == "completed") == ({"find", "note"} <= proven)
    if run.double is not None and step.status == "completed":
        assert (execution.usage.input_tokens, execution.usage.output_tokens) == run.double.tokens


@pytest.mark.parametrize(("model", "name"), cases())
async def test_a_goal_is_reached_with_every_manner_that_one_can_recover_from_and_with_no_other(
    model: str, name: str
) -> None:
    async with run_with(model, name, planned=THREE_STEPS) as run:
        execution = await run.execute(None)
    is_recoverable = MANNERS[name].is_recoverable
    assert (execution.status == "completed") == is_recoverable, execution.error
    for step in execution.steps:
        proven = {call.tool_name for call in step.actual_tool_calls if call.status == "succeeded"}
        assert step.status != "completed" or set(step.required_tools) <= proven
    written = {"numbering": ["note the text", "note the topic"], "invents a condition": ["note the text"]}
    assert run.ledger.lines == (written.get(name, ["note the text"] * 2) if is_recoverable else [])


@pytest.mark.parametrize("model", MODELS)
async def test_a_goal_is_planned_executed_and_answered_by_every_kind_of_model(model: str) -> None:
    planned = plan(
        model_step("a", "find"),
        {"id": "b", "description": "think about it", "stepType": "reasoning"},
        model_step("c", "note"),
    )
    async with run_with(model, "obedient", planned=planned) as run:
        execution = await run.execute(None, goal="find and note")
    assert execution.status == "completed" and statuses(execution) == {
        "a": "completed",
        "b": "completed",
        "c": "completed",
    }
    assert run.ledger.lines == ["note the text"] and execution.usage.model_calls == 5
    assert execution.output == "Here is what the record shows."


@pytest.mark.parametrize(
    ("model", "name"),
    each_once(MODELS, ["prose only", "forged status", "half", "malformed", "placeholders", "never-ending"]),
)
async def test_what_depends_on_a_step_that_was_not_done_is_not_done_either(model: str, name: str) -> None:
    steps = plan(model_step("a", "find", "note"), model_step("b", "note"))
    async with run_with(model, name) as run:
        execution = await run.execute(steps)
    assert statuses(execution)["b"] in ("skipped", "pending") and run.ledger.lines == []
