"""Models with tool calling revise the plan by calling what is not a tool; what counts is the patch."""

from collections.abc import Callable, Sequence

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.models.provider.endpoint import Mode
from tests.support.doubles.manners import Manner, obedient
from tests.support.doubles.messages import REVISE_TOOL, ModelReply, ModelRequest
from tests.support.doubles.provider import build_provider_model
from tests.support.doubles.server import WIRES, ProviderDouble, serve_double
from tests.support.wardens import Ledger, model_step, plan, tool_step, warden

pytestmark = pytest.mark.anyio

every_wire = pytest.mark.parametrize("wire", WIRES)
THINK: dict[str, JsonValue] = {"id": "think", "description": "think about it", "stepType": "reasoning"}
STEPS = plan(THINK, tool_step("a", "note", {"text": "old"}))
CHANGE: JsonValue = [
    {"op": "change", "id": "a", "set": {"toolCalls": [{"toolName": "note", "arguments": {"text": "new"}}]}}
]
REVISES = ModelReply(text="The note was wrong.", calls=((REVISE_TOOL, {"operations": CHANGE}),))


async def run(
    *answers: ModelReply,
    wire: str = "openai-chat",
    steps: dict[str, JsonValue] = STEPS,
    mode: Mode = "tools",
    tools: Sequence[object] = (),
    call: Callable[[ModelRequest], ModelReply] = obedient,
) -> tuple[planwarden.Execution, Ledger, ProviderDouble]:
    """The execution with all observations; thoughts are the answers in turn, the last one again and again."""
    left, ledger = list(answers), Ledger()

    def answer(asked: ModelRequest) -> ModelReply:
        if asked.forced:
            return call(asked)
        return left.pop(0) if len(left) > 1 else left[0]

    async with (
        serve_double(wire, Manner("test", "x", answer)) as double,
        warden(ledger, model=build_provider_model(double, mode=mode), tools=tools) as w,
    ):
        execution = await w.execute_plan(steps)
        return await w.get_execution(execution.thread_id, observations_after=0), ledger, double


def revisions(execution: planwarden.Execution) -> list[JsonValue]:
    return [seen.data for seen in execution.observations or () if seen.type == "PLAN_REVISED"]


@every_wire
async def test_a_call_of_the_revision_is_a_patch_and_no_call_of_the_plan(wire: str) -> None:
    execution, ledger, double = await run(REVISES, wire=wire)
    assert (execution.status, ledger.lines) == ("completed", ["note new"])
    assert revisions(execution) == [{"added": [], "changed": ["a"], "removed": [], "moved": []}]
    assert execution.steps[0].result == "The note was wrong." and execution.steps[0].actual_tool_calls == ()
    assert double.requests[0].may_revise and "revise" not in double.requests[0].system


async def test_revising_is_offered_only_if_a_step_has_not_begun_and_no_call_is_due() -> None:
    last: dict[str, JsonValue] = {"id": "z", "description": "think again", "stepType": "reasoning"}
    steps = plan(THINK, model_step("a", "note"), last)
    _, _, double = await run(ModelReply(text="I thought."), steps=steps)
    assert [asked.may_revise for asked in double.requests] == [True, False, False]


async def test_a_revision_without_an_answer_is_kept_and_the_answer_asked_for() -> None:
    silent = ModelReply(calls=((REVISE_TOOL, {"operations": CHANGE}),))
    execution, ledger, double = await run(silent, ModelReply(text="Now I thought."))
    assert (execution.status, ledger.lines, len(double.requests)) == ("completed", ["note new"], 2)
    assert (
        "did not answer the step in text" in double.requests[1].text and execution.steps[0].result == "Now I thought."
    )
    assert len(revisions(execution)) == 1


@pytest.mark.parametrize("arguments", ['{"operations": [{"op"', {"operations": "all"}, {}])
async def test_after_a_broken_revision_the_model_is_asked_once_more(arguments: object) -> None:
    broken = ModelReply(text="I thought.", calls=((REVISE_TOOL, arguments),))
    execution, ledger, double = await run(broken, REVISES)
    assert (execution.status, ledger.lines, len(double.requests)) == ("completed", ["note new"], 2)
    assert "the arguments of revise_plan" in double.requests[1].text


async def test_in_text_mode_a_revision_is_json() -> None:
    text = 'The note was wrong. {"revise": [{"op": "remove", "id": "a"}]}'
    execution, ledger, double = await run(ModelReply(text=text), mode="text")
    assert not double.requests[0].may_revise and '"revise"' in double.requests[0].system
    assert (execution.status, ledger.lines) == ("completed", [])


async def test_a_tool_with_the_name_of_the_revision_stays_a_tool() -> None:
    used: list[str] = []

    @planwarden.tool(name=REVISE_TOOL, risk="read", effect="read")
    async def mine() -> str:
        """Mine."""
        used.append("mine")
        return "called"

    steps = plan(model_step("a", REVISE_TOOL), THINK, tool_step("b", "note", {"text": "old"}))
    called = ModelReply(calls=((REVISE_TOOL, {}),))
    execution, ledger, _ = await run(ModelReply(text="x"), steps=steps, tools=[mine], call=lambda asked: called)
    assert (execution.status, used, ledger.lines) == ("completed", ["mine"], ["note old"])
