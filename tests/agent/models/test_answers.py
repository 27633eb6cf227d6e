"""What becomes of a provider's answer: bounded, JSON only, repaired once, charged in full."""

import json
from collections.abc import Callable

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import ModelError
from planwarden.agent.core.plan_input import plan_schema
from planwarden.agent.core.plan_words import MAX_CALLS_PER_STEP
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import MAX_CONTENT_CHARS, Reply
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.models.provider.endpoint import Mode
from tests.support.doubles.manners import MANNERS, Manner
from tests.support.doubles.messages import MARKERS, PLAN_TOOL, ModelReply, ModelRequest
from tests.support.doubles.provider import build_provider_model
from tests.support.doubles.server import PLAN, WIRES, ProviderDouble, serve_double
from tests.support.slices import each_once
from tests.support.wardens import Ledger, model_step, plan, warden

pytestmark = pytest.mark.anyio

every_wire = pytest.mark.parametrize("wire", WIRES)

NOTE = ToolDefinition(
    name="note",
    description="write",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
STEP = Prompt(
    purpose="step",
    step_id="a",
    system="Instructions.",
    task="REQUIRED TOOLS that still have to answer: note.",
    form='Answer with {"toolCalls": [...]}.',
    offered=("note",),
    required=("note",),
)
PLANNING = Prompt(
    purpose="plan",
    system="Instructions.",
    task="The goal.",
    form='Answer with {"todoList": [...]}.',
    answer_schema=plan_schema(),
)
THOUGHT = Prompt(purpose="step", step_id="a", system="Instructions.", task="Think.")


async def asked_with(
    prompt: Prompt, says: Callable[[ModelRequest], ModelReply], wire: str = "openai-chat", mode: Mode = "tools"
) -> tuple[Reply, ProviderDouble]:
    async with serve_double(wire, Manner("test", "as the test says", says)) as double:
        return await build_provider_model(double, mode=mode).reply(prompt, (NOTE,) if prompt.required else ()), double


def always(said: ModelReply) -> Callable[[ModelRequest], ModelReply]:
    return lambda asked: said


def called(reply: Reply) -> list[tuple[str, dict[str, JsonValue]]]:
    return [(call.tool_name, call.arguments) for call in reply.calls]


@every_wire
async def test_after_broken_arguments_the_model_is_asked_once_more_with_the_reason_and_both_answers_count(
    wire: str,
) -> None:
    for name in ("malformed once", "malformed"):
        async with serve_double(wire, MANNERS[name]) as double:
            reply = await build_provider_model(double).reply(STEP, (NOTE,))
        first, second = double.requests
        assert second.text.startswith(first.text) and "could not be used" in second.text
        assert second.forced == first.forced and (reply.calls == ()) is (name == "malformed")
        assert (reply.input_tokens, reply.output_tokens) == double.tokens and min(double.tokens) > 0


async def test_ten_thousand_calls_are_cut_to_fifty() -> None:
    async with serve_double("anthropic", MANNERS["ten thousand calls"]) as double:
        reply = await build_provider_model(double).reply(STEP, (NOTE,))
    assert len(reply.calls) == MAX_CALLS_PER_STEP


async def test_a_call_after_a_broken_one_is_dropped_with_it() -> None:
    said = ModelReply(calls=(("note", {"text": "one"}), ("note", '{"text": "tw'), ("note", {"text": "three"})))
    reply, double = await asked_with(STEP, always(said))
    assert called(reply) == [("note", {"text": "one"})] and len(double.requests) == 1


DEEP, DEEPER = (f'{{"text": {"[" * levels + "]" * levels}}}' for levels in (200, 5_000))
UNSOUND: list[tuple[object, str, Mode]] = [
    ('{"text": NaN}', "openai-chat", "tools"),
    ('{"text": 1, "text": 2}', "openai-chat", "tools"),
    ('["text"]', "openai-chat", "tools"),
    ('"text"', "openai-chat", "tools"),
    (DEEPER, "openai-chat", "tools"),
    ('{"text": "\\ud800"}', "openai-chat", "tools"),
    ('{"text": "x"} trailing', "openai-chat", "tools"),
    # Parsed by the provider.
    (["text"], "anthropic", "tools"),
    ("text", "anthropic", "tools"),
    (7, "anthropic", "tools"),
    ({"text": float("nan")}, "anthropic", "tools"),
    # Within a text.
    ('{"text": NaN}', "openai-chat", "text"),
    ('{"text": "\\ud800"}', "openai-chat", "text"),
    (DEEP, "openai-chat", "text"),
]


@pytest.mark.parametrize(("arguments", "wire", "mode"), UNSOUND, ids=range(len(UNSOUND)))
async def test_arguments_that_are_not_a_sound_json_object_make_no_call(
    arguments: object, wire: str, mode: Mode
) -> None:
    reply, double = await asked_with(STEP, always(ModelReply(calls=(("note", arguments),))), wire, mode)
    assert reply.calls == () and len(double.requests) == 2
    assert mode == "text" or (reply.content is not None and "the arguments of note" in reply.content)


async def test_a_text_is_cut_and_lone_surrogates_in_it_are_replaced() -> None:
    reply, _ = await asked_with(THOUGHT, always(ModelReply(text="before \ud800 after" + "x" * MAX_CONTENT_CHARS)))
    assert reply.content is not None and reply.content.startswith("before ? after")
    assert len(reply.content) == MAX_CONTENT_CHARS


CALLS = json.dumps({"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]})


@pytest.mark.parametrize(
    "text",
    [
        f"{MARKERS[0]}\n{CALLS}\n{MARKERS[1]}",
        f"Of course!\n{MARKERS[0]}{CALLS}{MARKERS[1]}\nDone.",
        f"{MARKERS[0]}\n{CALLS}",
        f"{MARKERS[0]}\n```json\n{CALLS}\n```\n{MARKERS[1]}",
        f"Here it is:\n```json\n{CALLS}\n```\nThat was it.",
        CALLS,
        f"I call the tool {CALLS} now.",
        f'First I note that {{"a": 1}} is set, and that {{x}} is not. {CALLS}',
    ],
    ids=["markers", "prose around", "no end", "fence inside", "fence", "bare", "in a sentence", "other objects before"],
)
async def test_calls_are_found_in_text_however_they_are_wrapped(text: str) -> None:
    reply, double = await asked_with(STEP, always(ModelReply(text=text)), mode="text")
    assert called(reply) == [("note", {"text": "x"})] and len(double.requests) == 1


async def test_a_plan_is_found_in_text_too() -> None:
    reply, _ = await asked_with(
        PLANNING, always(ModelReply(text=f"Plan:\n```json\n{json.dumps(PLAN)}\n```")), mode="text"
    )
    assert reply.plan == PLAN


@pytest.mark.parametrize("prompt", [STEP, PLANNING], ids=["calls", "plan"])
@pytest.mark.parametrize("cut_at", [40, -1, -8])
async def test_after_cut_off_json_in_a_text_the_model_is_asked_once_more(prompt: Prompt, cut_at: int) -> None:
    whole = json.dumps(PLAN) if prompt is PLANNING else CALLS
    begun = f"{MARKERS[0]}\n{whole[:cut_at]}"

    def second_time(asked: ModelRequest) -> ModelReply:
        return (
            ModelReply(text=f"{MARKERS[0]}\n{whole}\n{MARKERS[1]}")
            if asked.is_repeated
            else ModelReply(text=begun, is_cut_short=True)
        )

    reply, double = await asked_with(prompt, second_time, mode="text")
    assert (reply.plan == PLAN) if prompt is PLANNING else (called(reply) == [("note", {"text": "x"})])
    assert len(double.requests) == 2 and "cut off" in double.requests[1].text


async def test_prose_is_not_repaired_but_left_to_taef() -> None:
    for mode in ("tools", "text"):
        reply, double = await asked_with(STEP, always(ModelReply(text="I have done it.")), mode=mode)
        assert reply == Reply(
            content="I have done it.", input_tokens=reply.input_tokens, output_tokens=reply.output_tokens
        )
        assert len(double.requests) == 1


@every_wire
async def test_after_a_broken_plan_the_model_is_asked_once_more(wire: str) -> None:
    def second_time(asked: ModelRequest) -> ModelReply:
        return ModelReply(calls=((PLAN_TOOL, asked.plan if asked.is_repeated else '{"todoList": [{"id'),))

    reply, double = await asked_with(PLANNING, second_time, wire=wire)
    assert reply.plan == PLAN and len(double.requests) == 2


@pytest.mark.parametrize(
    "said", [ModelReply(), ModelReply(calls=((PLAN_TOOL, {}),)), ModelReply(text="I would rather not plan.")]
)
async def test_an_object_that_is_no_plan_goes_to_the_engine_which_names_the_fault(said: ModelReply) -> None:
    reply, double = await asked_with(PLANNING, always(said))
    assert not reply.plan and len(double.requests) == 1


@every_wire
async def test_an_empty_answer_is_an_error_and_not_an_empty_result(wire: str) -> None:
    with pytest.raises(ModelError, match="empty"):
        await asked_with(THOUGHT, always(ModelReply()), wire=wire)


SECOND = {
    "refused key": ModelReply(status=401),
    "filtered": ModelReply(is_refused=True),
    "broken off": ModelReply(breaks_off=True),
}


@pytest.mark.parametrize(("wire", "name"), each_once(list(WIRES), [*SECOND]))
async def test_an_answer_is_charged_even_if_the_second_request_fails(wire: str, name: str) -> None:
    second, ledger = SECOND[name], Ledger()

    def answer(asked: ModelRequest) -> ModelReply:
        tool, cut = (PLAN_TOOL, '{"todoList": [{"id') if asked.forced == (PLAN_TOOL,) else ("note", '{"text": "te')
        return second if asked.is_repeated else ModelReply(calls=((tool, cut),))

    for is_goal in (False, True):
        manner = Manner("test", "x", answer)
        async with serve_double(wire, manner) as double, warden(ledger, model=build_provider_model(double)) as w:
            done = await (w.run_goal("anything") if is_goal else w.execute_plan(plan(model_step("a", "note"))))
            again = await w.get_execution(done.thread_id)
        assert (done.status, ledger.lines) == ("suspended" if second.breaks_off else "failed", [])
        assert second.breaks_off or (done.error is not None and done.error.code == "model_error")
        assert (done.usage.input_tokens, done.usage.output_tokens) == double.tokens and min(double.tokens) > 0
        assert again.usage == done.usage
