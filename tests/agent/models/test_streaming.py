"""A final answer can be listened to while it is being written; what counts is still the whole of it."""

from contextlib import suppress

import anyio
import pytest

from planwarden.agent.common.errors import ModelError
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.models.provider import transport as provider_transport
from tests.support.doubles.manners import Manner
from tests.support.doubles.messages import ModelReply, ModelRequest
from tests.support.doubles.provider import build_provider_model
from tests.support.doubles.server import WIRES, serve_double
from tests.support.slices import first_only

pytestmark = pytest.mark.anyio

every_wire = pytest.mark.parametrize("wire", WIRES)
RECORD = Prompt(purpose="synthesize", system="Instructions.", task="The record.")
ANSWER = " ".join(f"word-{number}" for number in range(200))


def saying(said: ModelReply, first: ModelReply | None = None) -> Manner:
    def answer(asked: ModelRequest) -> ModelReply:
        return first if first is not None and asked.number == 1 else said

    return Manner("test", "as the test says", answer)


@every_wire
async def test_a_listener_receives_the_growing_text_and_the_reply_is_the_whole_text(wire: str) -> None:
    heard: list[str] = []
    async with serve_double(wire, saying(ModelReply(text=ANSWER))) as double:
        reply = await build_provider_model(double).reply_streaming(RECORD, (), heard.append)
    assert reply.content == ANSWER and (reply.input_tokens, reply.output_tokens) == double.tokens
    assert len(heard) > 3 and all(ANSWER.startswith(text) for text in heard)
    assert [len(text) for text in heard] == sorted({len(text) for text in heard})
    assert double.requests[0].is_streamed


@every_wire
async def test_a_broken_stream_starts_again(wire: str) -> None:
    heard: list[str] = []
    async with serve_double(
        wire, saying(ModelReply(text=ANSWER), first=ModelReply(text=ANSWER[::-1], breaks_off=True))
    ) as double:
        reply = await build_provider_model(double).reply_streaming(RECORD, (), heard.append)
    assert reply.content == ANSWER and len(double.requests) == 2
    assert ANSWER[::-1].startswith(heard[0]) and ANSWER.startswith(heard[-1])


@every_wire
async def test_a_stalled_stream_fails_with_one_sentence(wire: str) -> None:
    async with serve_double(wire, saying(ModelReply(text=ANSWER, stalls=True))) as double:
        double.silent_s = 60.0
        with pytest.raises(ModelError, match="did not answer within 60 s"):
            await build_provider_model(double, timeout_s=60.0).reply_streaming(RECORD, (), lambda text: None)
    assert double.request_count == 3


@pytest.mark.parametrize("wire", first_only(*WIRES))
async def test_cancelling_a_stream_closes_it_at_once(wire: str) -> None:
    heard: list[str] = []
    async with serve_double(wire, saying(ModelReply(text=ANSWER, stalls=True))) as double:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(build_provider_model(double).reply_streaming, RECORD, (), heard.append)
                await double.is_hanging.wait()
                tasks.cancel_scope.cancel()
            await double.hung_up.wait()


@every_wire
async def test_an_endless_stream_is_not_read_to_its_end(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_transport, "MAX_STREAM_BYTES", 1_000_000)
    heard: list[str] = []
    async with serve_double(wire, saying(ModelReply(text="x" * 2_000_000))) as double:
        with pytest.raises(ModelError, match="too large"):
            await build_provider_model(double).reply_streaming(RECORD, (), heard.append)
    assert max(map(len, heard)) <= 100_000 and double.request_count == 1


async def test_a_double_streams_the_calls_of_a_host_that_offers_tools() -> None:
    said = saying(ModelReply(calls=(("find", {"topic": "old"}),)))
    tool = ToolDefinition(name="find", description="Find.", input_schema={"type": "object"})
    async with serve_double("anthropic", said) as double:
        # planwarden streams only text, and so finds none.
        with suppress(ModelError):
            await build_provider_model(double).reply_streaming(RECORD, (tool,), lambda text: None)
    assert [name for name, _ in double.replies[0].calls] == ["find"]
