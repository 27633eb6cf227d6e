"""The same goal, the same manners, over every wire format, in text mode, and with a caller: TAEF holds each step.

What may differ between them is nothing but the number of requests. No manner gets a step completed that was not done.
"""

from contextlib import AsyncExitStack

import pytest
from pytest import ParameterSet

from planwarden.agent.ports.model import Model
from tests.kit import CallerModel, Ledger, each_once, warden
from tests.support.doubles.caller import answer_all
from tests.support.doubles.manners import MANNERS, THREE_STEPS
from tests.support.doubles.server import WIRES, build_provider_model, serve_double

TEXT, CALLER = "text", "caller"
MODELS = (*WIRES, TEXT, CALLER)
TIMEOUT_S = 8.0
"""Passes at once when a request gets no reply."""
STATUS: dict[str, str] = dict.fromkeys(("429 always", "breaks off", "hangs", "web page"), "suspended")
"""How executions end with manners that none can recover from, if they do not fail."""
WRITTEN = {"numbering": ["note the text", "note the topic"], "invents a condition": ["note the text"]}
"""What happened, if it is not the same note twice."""


def cases() -> list[ParameterSet]:
    """Each manner with one of the models that answer over a wire, and with a caller."""
    wired = each_once(MODELS[:-1], [name for name, manner in MANNERS.items() if not manner.answers_closed])
    return [*wired, *(pytest.param(CALLER, name) for name, manner in MANNERS.items() if not manner.needs_wire)]


@pytest.mark.parametrize(("model", "name"), cases())
async def test_a_goal_is_reached_with_every_manner_that_one_can_recover_from_and_no_other_completes_a_step(
    model: str, name: str
) -> None:
    manner, ledger = MANNERS[name], Ledger()
    options = {"maxIterations": 1 if name == "ten thousand calls" else 5}
    async with AsyncExitStack() as stack:
        thinking: Model = CallerModel()
        if model != CALLER:
            wire = "openai-chat" if model == TEXT else model
            double = await stack.enter_async_context(serve_double(wire, manner, plan=THREE_STEPS))
            double.silent_s = TIMEOUT_S
            thinking = build_provider_model(double, mode="text" if model == TEXT else "tools", timeout_s=TIMEOUT_S)
        w = await stack.enter_async_context(warden(ledger, model=thinking))
        execution = await w.run_goal("find and note", options=options)
        if model == CALLER:
            execution = await answer_all(w, execution, manner, THREE_STEPS)
    if manner.is_recoverable:
        assert execution.status == "completed", execution.error
        assert ledger.lines == WRITTEN.get(name, ["note the text"] * 2)
    else:
        assert execution.status in (STATUS.get(name, "failed"), "suspended" if model == CALLER else "failed")
        assert ledger.lines == []
    for step in execution.steps:
        proven = {call.tool_name for call in step.actual_tool_calls if call.status == "succeeded"}
        assert step.status != "completed" or set(step.required_tools) <= proven
