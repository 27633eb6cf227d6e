"""When a provider is busy, broken, slow, hostile or not there: one clear sentence, in bounded time, without the key."""

import gzip
import logging
import traceback
from collections.abc import Callable

import anyio
import pytest

from planwarden.agent.common.errors import ModelError
from planwarden.agent.core.control.provider_waits import LONGEST_ASKED_S
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.models import client as provider_client
from planwarden.agent.models.client import MAX_ANSWER_BYTES
from planwarden.agent.models.failures import Retries
from planwarden.agent.models.provider import ProviderModel
from tests.kit import Ledger, each_once, first_only, model_step, plan, requirement, warden
from tests.support.doubles.manners import HUGE_BYTES, MANNERS, Manner
from tests.support.doubles.messages import ModelReply, ModelRequest
from tests.support.doubles.server import WIRES, build_provider_model, serve_double
from tests.support.doubles.wires import KEY

THOUGHT = Prompt(purpose="step", step_id="a", system="Instructions.", task="Think.")


def manner(answer: Callable[[ModelRequest], ModelReply]) -> Manner:
    return Manner("test", "as the test says", answer)


def fails(status: int, message: str = "no", **headers: str) -> Manner:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return manner(lambda asked: ModelReply(status=status, message=message, headers=named))


async def sentence(model: ProviderModel) -> str:
    """The message that a person reads if there is no answer."""
    with pytest.raises(ModelError) as caught:
        await model.reply(THOUGHT, ())
    return caught.value.message


ECHO = f"the key {KEY} and its mask sk-doub****************stuv are wrong"
BOMB = ModelReply(raw=gzip.compress(b" " * (MAX_ANSWER_BYTES * 4), 1), headers={"Content-Encoding": "gzip"})
Fault = tuple[Manner, str, int, bool]
"""What the provider does, what a person reads, how often it was asked, and whether a wait is worth it."""
FAULTS: dict[str, Fault] = {
    "400": (fails(400, "temperature is deprecated"), "temperature is deprecated", 1, False),
    "401": (fails(401, ECHO), "key was refused", 1, False),
    "402": (fails(402, "pay first"), "quota or credit", 1, True),
    "404": (fails(404, "no such model"), "was not found", 1, False),
    "413": (fails(413, "too large"), "too large", 1, False),
    "429": (fails(429, ECHO), "429", 3, True),
    "500": (fails(500, ECHO), "500", 3, True),
    "529": (fails(529), "529", 3, True),
    "an echo": (fails(400, ECHO), "are wrong", 1, False),
    "breaks off": (MANNERS["breaks off"], "connection broke before", 3, True),
    "hangs": (MANNERS["hangs"], "did not answer within 60 s", 3, True),
    "web page": (MANNERS["web page"], "not an answer of its API", 3, True),
    "50 MB": (MANNERS["50 MB"], "too large", 1, False),
    "expands": (manner(lambda asked: BOMB), "too large", 1, False),
    "content filter": (MANNERS["content filter"], "content filter", 1, False),
}


@requirement("patience:at-once")
@pytest.mark.parametrize(("name", "wire"), each_once([*FAULTS], list(WIRES)))
async def test_a_fault_is_one_sentence_and_is_tried_again_where_that_can_help_and_the_key_is_nowhere(
    name: str, wire: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="planwarden")
    caplog.set_level(logging.INFO)
    does, said, requests, retryable = FAULTS[name]
    waits_s: list[float] = []
    async with serve_double(wire, does) as double:
        double.silent_s = 60.0
        model = build_provider_model(double, waits_s=waits_s, timeout_s=60.0)
        with pytest.raises(ModelError) as caught:
            await model.reply(THOUGHT, ())
    error = caught.value
    assert said in error.message and "<html>" not in error.message and "\n" not in error.message
    assert len(error.message) < 500 and error.__cause__ is None and error.__context__ is None
    assert (error.retryable, double.request_count, waits_s) == (retryable, requests, [0.5, 1.0][: requests - 1])
    assert double.bytes_sent < HUGE_BYTES / 2
    shown = "".join(traceback.format_exception(error))
    for text in (shown, repr(model), repr(vars(model)), caplog.text):
        assert KEY not in text and "sk-doub" not in text


ASKED: dict[tuple[int, str], float | None] = {
    (429, "3600"): 3600.0,
    (503, "Fri, 31 Dec 9999 23:59:59 GMT"): LONGEST_ASKED_S,
    (429, "1" * 300): LONGEST_ASKED_S,
    (429, "1" * 400): None,
    (503, "-5"): None,
    (503, "nan"): None,
}


@requirement("patience:asked")
@pytest.mark.parametrize(("asked", "wire"), each_once([*ASKED], list(WIRES)))
async def test_what_a_provider_asks_for_is_said_to_those_who_wait_within_limits(
    asked: tuple[int, str], wire: str
) -> None:
    waits_s: list[float] = []
    async with serve_double(wire, fails(asked[0], Retry_After=asked[1])) as double:
        with pytest.raises(ModelError) as caught:
            await build_provider_model(double, waits_s=waits_s, retries=Retries(attempts=2)).reply(THOUGHT, ())
    asked_s, message = ASKED[asked], caught.value.message
    assert caught.value.retryable and caught.value.asked_s == asked_s and len(message) < 200
    # Nobody waits so long within a request.
    assert len(waits_s) == double.request_count - 1 == (asked_s is None)
    assert asked_s != 3600 or "3600 s" in message


async def test_the_total_time_of_all_attempts_is_bounded() -> None:
    waits_s: list[float] = []
    async with serve_double("openai-chat", fails(503)) as double:
        retries = Retries(attempts=100, total_s=10.0)
        text = await sentence(
            build_provider_model(double, waits_s=waits_s, clock=lambda: sum(waits_s), retries=retries)
        )
    assert sum(waits_s) <= 10.0 and double.request_count < 100 and "10 s" in text


@pytest.mark.parametrize("wire", first_only(*WIRES))
async def test_an_unreachable_server_is_one_sentence_with_the_address(wire: str) -> None:
    async with serve_double(wire, MANNERS["obedient"]) as double:
        pass
    with pytest.raises(ModelError, match=f"cannot be reached at {double.url}") as caught:
        await build_provider_model(double).reply(THOUGHT, ())
    assert caught.value.retryable


@pytest.mark.parametrize("wire", first_only(*WIRES))
async def test_a_redirect_is_not_followed(wire: str) -> None:
    async with (
        serve_double(wire, MANNERS["obedient"]) as elsewhere,
        serve_double(wire, fails(307, Location=f"{elsewhere.url}/v1")) as double,
    ):
        await sentence(build_provider_model(double))
    assert elsewhere.request_count == 0


async def test_cancelling_an_execution_does_not_wait_for_the_model() -> None:
    async with (
        serve_double("anthropic", MANNERS["hangs"]) as double,
        warden(Ledger(), model=build_provider_model(double)) as w,
    ):
        with anyio.fail_after(60):
            started = await w.execute_plan(plan(model_step("a", "note")), wait_seconds=0)
            await double.is_hanging.wait()
            await w.cancel_execution(started.thread_id)
            await double.hung_up.wait()
            execution = await w.get_execution(started.thread_id)
    assert execution.status == "cancelled"


RECORD = Prompt(purpose="synthesize", system="Instructions.", task="The record.")
ANSWER = " ".join(f"word-{number}" for number in range(200))
WHOLE = ModelReply(text=ANSWER)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_listener_receives_the_growing_text_and_after_a_broken_stream_it_grows_again(wire: str) -> None:
    heard: list[str] = []
    broken = ModelReply(text=ANSWER[::-1], breaks_off=True)
    async with serve_double(wire, manner(lambda asked: broken if asked.number == 1 else WHOLE)) as double:
        reply = await build_provider_model(double).reply_streaming(RECORD, (), heard.append)
    assert reply.content == ANSWER and len(double.requests) == 2
    again = [text for text in heard if ANSWER.startswith(text)]
    assert ANSWER[::-1].startswith(heard[0]) and len(again) > 3 and heard[-len(again) :] == again
    assert [len(text) for text in again] == sorted({len(text) for text in again})


@pytest.mark.parametrize("wire", first_only(*WIRES))
async def test_an_endless_stream_is_not_read_to_its_end(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_client, "MAX_STREAM_BYTES", 1_000_000)
    heard: list[str] = []
    async with serve_double(wire, manner(lambda asked: ModelReply(text="x" * 2_000_000))) as double:
        with pytest.raises(ModelError, match="too large"):
            await build_provider_model(double).reply_streaming(RECORD, (), heard.append)
    assert max(map(len, heard)) <= 100_000 and double.request_count == 1
