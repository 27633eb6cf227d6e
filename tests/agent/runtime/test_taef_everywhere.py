"""The same plan, the same manners, over every wire format, in text mode, and with a caller: TAEF holds the step.

What may differ between them is nothing but the number of requests. No manner gets a step completed that was not done.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from pydantic import JsonValue
from pytest import ParameterSet

import planwarden
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.models.provider.endpoint import Mode
from planwarden.agent.ports.model import Model
from tests.support.doubles.caller import answer_all
from tests.support.doubles.manners import MANNERS
from tests.support.doubles.messages import Body
from tests.support.doubles.plan_habits import THREE_STEPS
from tests.support.doubles.provider import build_provider_model
from tests.support.doubles.server import WIRES, ProviderDouble, serve_double
from tests.support.slices import each_once
from tests.support.wardens import Ledger, model_step, plan, warden

pytestmark = pytest.mark.anyio

TEXT = "text"
CALLER = "caller"
MODELS = (*WIRES, TEXT, CALLER)
TIMEOUT_S = 8.0
"""Passes at once when a request gets no reply."""
STEPS = plan(model_step("a", "find", "note"))


async def run_with(
    model: str, name: str, planned: Body | None = None, **options: JsonValue
) -> tuple[planwarden.Execution, list[str], ProviderDouble | None]:
    """A plan, or what is planned for a goal, until nothing more happens with a model that has the manner of that name.

    Returns the execution, what happened, and the server that the model asked.
    """
    manner, ledger, goal = MANNERS[name], Ledger(), "find and note"
    async with AsyncExitStack() as stack:
        double: ProviderDouble | None = None
        thinking: Model = CallerModel()
        if model != CALLER:
            wire = "openai-chat" if model == TEXT else model
            double = await stack.enter_async_context(serve_double(wire, manner, plan=planned))
            mode: Mode = "text" if model == TEXT else "tools"
            double.silent_s = TIMEOUT_S
            thinking = build_provider_model(double, mode=mode, timeout_s=TIMEOUT_S)
        w = await stack.enter_async_context(warden(ledger, model=thinking))
        if planned is not None:
            execution = await w.run_goal(goal, options=options)
        else:
            execution = await w.execute_plan(STEPS, goal=goal, options=options)
        if double is None:
            execution = await answer_all(w, execution, manner, planned)
        return execution, ledger.lines, double


@dataclass(frozen=True)
class Expected:
    status: str
    retries: int = 0
    code: str | None = None
    ledger: tuple[str, ...] = ()
    iterations: int = 5


DONE = Expected("completed", ledger=("note the text",))
PROSE = Expected("failed", 2, "tools_not_called")
WRONG = Expected("failed", 0, "iterations_exhausted")
EXPECTED: dict[str, Expected] = {
    "prose only": PROSE,
    "prose first": Expected("completed", 1, ledger=("note the text",)),
    "forged status": PROSE,
    "wrong tool": WRONG,
    "half": PROSE,
    "malformed": PROSE,
    "empty arguments": WRONG,
    "placeholders": WRONG,
    "never-ending": WRONG,
    "ten thousand calls": Expected("failed", 0, "iterations_exhausted", iterations=1),
    "content filter": Expected("failed", 0, "model_error"),
    "429 always": Expected("suspended"),
    "breaks off": Expected("suspended"),
    "50 MB": Expected("failed", 0, "model_error"),
    "hangs": Expected("suspended"),
    "web page": Expected("suspended"),
}
"""Manners after which the step is not simply done."""


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
    expected = EXPECTED.get(name, DONE)
    if model == CALLER:
        expected = EXPECTED_OF_CALLER.get(name, expected)
    execution, lines, double = await run_with(model, name, maxIterations=expected.iterations)
    [step] = execution.steps
    code = step.error.code if step.error is not None else None
    assert (step.status, step.retries, code) == (expected.status, expected.retries, expected.code)
    assert execution.status == expected.status and tuple(lines) == expected.ledger
    proven = {call.tool_name for call in step.actual_tool_calls if call.status == "succeeded"}
    assert (step.status == "completed") == ({"find", "note"} <= proven)
    if double is not None and step.status == "completed":
        assert (execution.usage.input_tokens, execution.usage.output_tokens) == double.tokens


@pytest.mark.parametrize(("model", "name"), cases())
async def test_a_goal_is_reached_with_every_manner_that_one_can_recover_from_and_with_no_other(
    model: str, name: str
) -> None:
    iterations = EXPECTED.get(name, DONE).iterations
    execution, lines, _ = await run_with(model, name, THREE_STEPS, maxIterations=iterations)
    is_recoverable = MANNERS[name].is_recoverable
    assert (execution.status == "completed") == is_recoverable, execution.error
    for step in execution.steps:
        proven = {call.tool_name for call in step.actual_tool_calls if call.status == "succeeded"}
        assert step.status != "completed" or set(step.required_tools) <= proven
    written = {"numbering": ["note the text", "note the topic"], "invents a condition": ["note the text"]}
    assert lines == (written.get(name, ["note the text"] * 2) if is_recoverable else [])
