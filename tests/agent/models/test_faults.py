"""When a provider is busy, broken, slow, hostile or not there: one clear sentence, in bounded time, without the key."""

import gzip
import logging
import traceback
from collections.abc import Callable

import anyio
import pytest

import planwarden
from planwarden.agent.common.errors import ModelError
from planwarden.agent.core.patience import LONGEST_ASKED_S
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.models.provider.model import ProviderModel
from planwarden.agent.models.provider.retry import RetryLimits
from planwarden.agent.models.provider.transport import MAX_ANSWER_BYTES
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.support.doubles.manners import HUGE_BYTES, MANNERS, Manner
from tests.support.doubles.messages import ModelReply, ModelRequest
from tests.support.doubles.provider import build_provider_model
from tests.support.doubles.server import WIRES, ProviderDouble, serve_double
from tests.support.doubles.wire import KEY
from tests.support.ports import take_port
from tests.support.slices import each_once
from tests.support.wardens import Ledger, model_step, plan

pytestmark = pytest.mark.anyio

every_wire = pytest.mark.parametrize("wire", WIRES)
THOUGHT = Prompt(purpose="step", step_id="a", system="Instructions.", task="Think.")
WRONG_KEY = "sk-wrong-abcdefghijklmnopqrstuvwxyz012345"


def manner(answer: Callable[[ModelRequest], ModelReply]) -> Manner:
    return Manner("test", "as the test says", answer)


def fails(status: int, message: str = "no", **headers: str) -> Manner:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return manner(lambda asked: ModelReply(status=status, message=message, headers=named))


def moved(elsewhere: ProviderDouble) -> Manner:
    return manner(lambda asked: ModelReply(status=307, headers={"Location": f"{elsewhere.url}/v1"}))


async def sentence(model: ProviderModel) -> str:
    """The message that a person reads if there is no answer."""
    with pytest.raises(ModelError) as caught:
        await model.reply(THOUGHT, ())
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert "\n" not in caught.value.message and len(caught.value.message) < 500
    return caught.value.message


@every_wire
async def test_a_rate_limited_request_waits_as_long_as_the_provider_asks(wire: str) -> None:
    waits_s: list[float] = []
    async with serve_double(wire, MANNERS["429 once"]) as double:
        reply = await build_provider_model(double, waits_s=waits_s).reply(THOUGHT, ())
    assert reply.content is not None and waits_s == [7.0] and len(double.requests) == 2


@pytest.mark.parametrize(("status", "wire"), each_once([408, 500, 502, 503, 529], list(WIRES)))
async def test_transient_failures_are_retried_after_growing_waits_and_not_without_end(wire: str, status: int) -> None:
    waits_s: list[float] = []
    async with serve_double(wire, fails(status)) as double:
        text = await sentence(build_provider_model(double, waits_s=waits_s, patience=RetryLimits(attempts=4)))
    assert waits_s == [0.5, 1.0, 2.0] and double.request_count == 4
    assert str(status) in text and "4 attempts" in text


@every_wire
async def test_a_wait_longer_than_the_limit_is_refused(wire: str) -> None:
    waits_s: list[float] = []
    async with serve_double(wire, fails(429, Retry_After="3600")) as double:
        text = await sentence(build_provider_model(double, waits_s=waits_s))
    assert waits_s == [] and double.request_count == 1 and "3600 s" in text


@requirement("patience:asked")
@every_wire
@pytest.mark.parametrize(
    ("status", "asked", "asked_s"),
    [
        (429, "3600", 3600.0),
        (503, "7200", 7200.0),
        (503, "Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_ASKED_S),
        (429, "1" * 300, LONGEST_ASKED_S),
        (429, "1" * 400, None),
        (503, "-5", None),
        (503, "soon", None),
        (503, "Thu, 01 Jan 1970 00:00:00 GMT", None),
        (503, "nan", None),
    ],
)
async def test_what_a_provider_asks_for_is_said_to_whoever_waits_durably_within_limits(
    wire: str, status: int, asked: str, asked_s: float | None
) -> None:
    async with serve_double(wire, fails(status, Retry_After=asked)) as double:
        with pytest.raises(ModelError) as caught:
            await build_provider_model(double, waits_s=[], patience=RetryLimits(attempts=2)).reply(THOUGHT, ())
    assert caught.value.retryable and caught.value.asked_s == asked_s and len(caught.value.message) < 200


async def test_the_total_time_of_all_attempts_is_bounded() -> None:
    waits_s: list[float] = []
    async with serve_double("openai-chat", fails(503)) as double:
        patience = RetryLimits(attempts=100, total_s=10.0)
        text = await sentence(
            build_provider_model(double, waits_s=waits_s, clock=lambda: sum(waits_s), patience=patience)
        )
    assert sum(waits_s) <= 10.0 and double.request_count < 100 and "10 s" in text


@every_wire
@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "temperature is deprecated", "temperature is deprecated"),
        (401, f"Incorrect API key provided: {KEY}", "key was refused"),
        (402, "pay first", "quota or credit"),
        (403, "not for you", "key was refused"),
        (404, "no such model", "was not found"),
        (413, "too large", "too large"),
    ],
)
async def test_permanent_failures_are_reported_at_once(wire: str, status: int, message: str, expected: str) -> None:
    async with serve_double(wire, fails(status, message)) as double:
        text = await sentence(build_provider_model(double))
    assert expected in text and double.wire.setting in text and double.request_count == 1


@every_wire
async def test_an_unknown_model_and_a_wrong_key_are_one_sentence(wire: str) -> None:
    async with serve_double(wire, MANNERS["obedient"]) as double:
        double.key = WRONG_KEY
        text = await sentence(build_provider_model(double))
        assert double.wire.key_variable in text and WRONG_KEY not in text
        double.key = KEY
        assert "no-such-model was not found" in await sentence(build_provider_model(double, model="no-such-model"))


@requirement("patience:at-once")
@pytest.mark.parametrize(
    ("status", "wire"),
    each_once([400, 401, 403, 404, 413, 402, 408, 429, 500, 502, 503, 529], list(WIRES)),
)
async def test_what_a_wait_can_change_is_told_from_what_it_cannot(wire: str, status: int) -> None:
    async with serve_double(wire, fails(status)) as double:
        with pytest.raises(ModelError) as caught:
            await build_provider_model(double).reply(THOUGHT, ())
    assert caught.value.retryable == (status not in (400, 401, 403, 404, 413))


@requirement("patience:at-once")
@pytest.mark.parametrize(
    ("name", "wire"), each_once(["breaks off", "hangs", "web page", "50 MB", "content filter"], list(WIRES))
)
async def test_a_connection_that_breaks_is_worth_a_wait_and_an_unusable_answer_is_not(wire: str, name: str) -> None:
    async with serve_double(wire, MANNERS[name]) as double:
        double.silent_s = 60.0
        with pytest.raises(ModelError) as caught:
            await build_provider_model(double, timeout_s=60.0).reply(THOUGHT, ())
    assert caught.value.retryable == (name not in ("50 MB", "content filter"))


@every_wire
async def test_an_unreachable_server_is_one_sentence_with_the_address(wire: str) -> None:
    async with serve_double(wire, MANNERS["obedient"]) as double:
        pass
    with pytest.raises(ModelError) as caught:
        await build_provider_model(double).reply(THOUGHT, ())
    assert f"cannot be reached at {double.url}" in caught.value.message and double.request_count == 0
    assert caught.value.retryable


@every_wire
async def test_a_connection_that_breaks_in_the_body_is_retried(wire: str) -> None:
    async with serve_double(wire, MANNERS["breaks off once"]) as double:
        reply = await build_provider_model(double).reply(THOUGHT, ())
    assert reply.content is not None and len(double.requests) == 2
    async with serve_double(wire, MANNERS["breaks off"]) as double:
        assert "connection broke before" in await sentence(build_provider_model(double))


@every_wire
async def test_a_page_instead_of_an_answer_is_one_sentence(wire: str) -> None:
    async with serve_double(wire, MANNERS["web page"]) as double:
        text = await sentence(build_provider_model(double))
    assert "not an answer of its API" in text and "<html>" not in text


@every_wire
async def test_a_silent_server_ends_in_one_sentence(wire: str) -> None:
    async with serve_double(wire, MANNERS["hangs"]) as double:
        double.silent_s = 60.0
        text = await sentence(build_provider_model(double, timeout_s=60.0, patience=RetryLimits(attempts=2)))
    assert "did not answer within 60 s" in text and double.request_count == 2


@every_wire
async def test_fifty_megabytes_are_not_read(wire: str) -> None:
    async with serve_double(wire, MANNERS["50 MB"]) as double:
        text = await sentence(build_provider_model(double))
    assert "too large" in text and double.request_count == 1
    assert double.bytes_sent < HUGE_BYTES / 2


@every_wire
async def test_a_small_body_that_expands_beyond_the_limit_is_not_expanded(wire: str) -> None:
    bomb = gzip.compress(b" " * (MAX_ANSWER_BYTES * 4), 1)
    said = ModelReply(raw=bomb, headers={"Content-Encoding": "gzip"})
    async with serve_double(wire, manner(lambda asked: said)) as double:
        assert "too large" in await sentence(build_provider_model(double))
    assert len(bomb) < MAX_ANSWER_BYTES / 10


@every_wire
async def test_a_redirect_is_not_followed(wire: str) -> None:
    async with serve_double(wire, MANNERS["obedient"]) as elsewhere, serve_double(wire, moved(elsewhere)) as double:
        await sentence(build_provider_model(double))
    assert elsewhere.request_count == 0


@every_wire
async def test_cancelling_closes_the_connection_at_once(wire: str) -> None:
    async with serve_double(wire, MANNERS["hangs"]) as double:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(build_provider_model(double).reply, THOUGHT, ())
                await double.is_hanging.wait()
                tasks.cancel_scope.cancel()
            await double.hung_up.wait()


async def test_cancelling_an_execution_does_not_wait_for_the_model() -> None:
    async with serve_double("anthropic", MANNERS["hangs"]) as double:
        made = planwarden.Warden(
            home="/nonexistent", model=build_provider_model(double), tools=Ledger().tools(), store=MemoryStore()
        )
        async with made as warden:
            with anyio.fail_after(60):
                started = await warden.execute_plan(plan(model_step("a", "note")), options={"waitSeconds": 0})
                await double.is_hanging.wait()
                await warden.cancel_execution(started.thread_id)
                await double.hung_up.wait()
                execution = await warden.get_execution(started.thread_id)
    assert execution.status == "cancelled"


@pytest.mark.parametrize(("status", "wire"), each_once([400, 401, 404, 429, 500], list(WIRES)))
async def test_the_key_is_in_no_message_no_log_and_no_traceback(
    wire: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="planwarden")
    caplog.set_level(logging.INFO)
    echoes = fails(status, f"the key {KEY} and its mask sk-doub****************stuv are wrong")
    async with serve_double(wire, echoes) as double:
        model = build_provider_model(double)
        try:
            await model.reply(THOUGHT, ())
        except ModelError as error:
            shown = "".join(traceback.format_exception(error))
        else:
            pytest.fail("there was an answer")
    for text in (shown, repr(model), repr(vars(model)), caplog.text):
        assert KEY not in text and "sk-doub" not in text


@every_wire
async def test_an_execution_with_a_broken_provider_reports_that_and_nothing_else(wire: str) -> None:
    async with serve_double(wire, fails(401, f"Incorrect API key provided: {KEY}")) as double:
        made = planwarden.Warden(
            home="/nonexistent", model=build_provider_model(double), tools=Ledger().tools(), store=MemoryStore()
        )
        async with made as warden:
            planless = await warden.run_goal("write")
            stepless = await warden.execute_plan(plan(model_step("a", "note")))
    for execution in (planless, stepless):
        assert execution.status == "failed" and execution.error is not None
        assert execution.error.code == "model_error" and KEY not in repr(execution)


async def test_many_prompts_at_once_share_nothing() -> None:
    def echo(asked: ModelRequest) -> ModelReply:
        return ModelReply(text=asked.text.split()[-1])

    answers: dict[str, str | None] = {}
    async with serve_double("openai-chat", manner(echo)) as double:
        model = build_provider_model(double)

        async def ask(word: str) -> None:
            prompt = Prompt(purpose="step", step_id=word, system="Instructions.", task=f"Say {word}")
            answers[word] = (await model.reply(prompt, ())).content

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(ask, f"w{number}")
    assert answers == {f"w{number}": f"w{number}" for number in range(20)}


def test_a_model_serves_one_event_loop_after_another() -> None:
    models: list[ProviderModel] = []
    answered: list[str | None] = []

    async def once(port: int) -> int:
        async with serve_double("openai-chat", MANNERS["obedient"], port=port) as double:
            models.append(build_provider_model(double))
            answered.append((await models[0].reply(THOUGHT, ())).content)
            return double.port

    port = take_port()
    assert anyio.run(once, port) == anyio.run(once, port)
    assert answered == [answered[0]] * 2
