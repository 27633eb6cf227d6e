"""A provider's model behind the `Model` port: one prompt, one request, at most one more when the answer is broken.

A prompt becomes a `Question`, a response an `ModelAnswer`; `Retries` repeats what a provider was too busy for. What the model
then proved is judged by the engine, from the log, like any other model's. Cancelling passes through at once and closes
the connection.

Not promised: that a provider stops working, or charging, when the connection is closed.
"""

import logging
from collections.abc import Callable, Sequence

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model as Client
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from planwarden.agent.common.errors import ModelError
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import MAX_CONTENT_CHARS, Reply
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.models.provider.answer import ModelAnswer, read_answer
from planwarden.agent.models.provider.endpoint import Endpoint
from planwarden.agent.models.provider.fault import CannotForce, describe_failure, is_refusal_to_force
from planwarden.agent.models.provider.request import ProviderRequest, build_request
from planwarden.agent.models.provider.retry import Retries, RetryLimits
from planwarden.agent.models.provider.sdk import build_client
from planwarden.agent.models.provider.transport import close_connections

OnText = Callable[[str], None] | None
STREAM_STEP_CHARS = 80
"""A listener is told about every line or so, not about every syllable."""

logger = logging.getLogger(__name__)


class ProviderModel:
    """Answers prompts from an endpoint. Holds no connection and nothing of a prompt."""

    def __init__(self, endpoint: Endpoint, *, retries: Retries | None = None) -> None:
        """Raises `ImportError` when the provider's extra is not installed."""
        self._endpoint = endpoint
        self._client: Client = build_client(endpoint)
        self._retries = retries or Retries(RetryLimits())
        self._forces = True
        """Whether the model lets itself be forced to call a tool; learnt from its refusal."""

    def __repr__(self) -> str:
        return f"ProviderModel({self._endpoint.name!r})"

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply:
        """Raises `ModelError` with one sentence when there is no answer."""
        return await self._reply(prompt, tools, None)

    async def reply_streaming(
        self, prompt: Prompt, tools: Sequence[ToolDefinition], on_text: Callable[[str], None]
    ) -> Reply:
        """The same; `on_text` is told the text so far while it is being written."""
        return await self._reply(prompt, tools, on_text)

    async def _reply(self, prompt: Prompt, tools: Sequence[ToolDefinition], on_text: OnText) -> Reply:
        asked = build_request(prompt, tools, self._endpoint)
        answer = await self._ask(asked, on_text)
        if answer.fault is not None and not answer.is_refusal:
            logger.info("%s: %s; asking once more", self._endpoint.name, answer.fault)
            answer = (await self._ask_again(asked.with_fault(answer.fault), on_text, answer)).add_earlier(answer)
        reply = answer.reply
        is_empty = not (reply.content or reply.calls)
        if answer.is_refusal or (is_empty and not asked.needs_json):
            text = f"{self._endpoint.name} gave no answer that can be used: {answer.fault}"
            raise ModelError(text, input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
        return reply

    async def _ask_again(self, asked: ProviderRequest, on_text: OnText, earlier: ModelAnswer) -> ModelAnswer:
        """The answer to the repeated question; when there is none, the earlier one still has to be paid."""
        try:
            return await self._ask(asked, on_text)
        except ModelError as error:
            error.input_tokens += earlier.reply.input_tokens
            error.output_tokens += earlier.reply.output_tokens
            raise

    async def _ask(self, asked: ProviderRequest, on_text: OnText) -> ModelAnswer:
        async def attempt(left_s: float) -> ModelAnswer:
            timeout_s = min(left_s, self._endpoint.timeout_s)
            force = self._forces
            try:
                return await self._attempt(asked, on_text, timeout_s, force=force)
            except CannotForce:
                logger.info("%s refuses to be forced to call a tool; asking it freely", self._endpoint.name)
            answer = await self._attempt(asked, on_text, timeout_s, force=False)
            self._forces = False
            return answer

        return await self._retries.run(attempt)

    async def _attempt(self, asked: ProviderRequest, on_text: OnText, timeout_s: float, *, force: bool) -> ModelAnswer:
        """One request. Raises `AttemptFailed`; `CannotForce` when the request without force is worth an attempt."""
        settings = asked.build_settings(self._endpoint, force=force, timeout_s=timeout_s)
        parameters = asked.build_parameters(force=force)
        try:
            async with close_connections():
                if on_text is None:
                    response = await model_request(
                        self._client,
                        asked.build_messages(),
                        model_settings=settings,
                        model_request_parameters=parameters,
                    )
                else:
                    response = await self._stream(asked, settings, parameters, on_text)
        # What a provider's client can raise is no closed set: its own errors, those of its HTTP client, of its JSON
        # decoder, of its validation. Each becomes one sentence here. It is raised outside of the handler, so that it
        # does not carry the exception, which holds the request and with it the key.
        except Exception as error:  # noqa: BLE001
            is_forcing = force and bool(asked.forced) and is_refusal_to_force(error)
            failure = CannotForce() if is_forcing else describe_failure(error, self._endpoint)
        else:
            return read_answer(response, asked)
        raise failure

    async def _stream(
        self,
        asked: ProviderRequest,
        settings: ModelSettings,
        parameters: ModelRequestParameters,
        on_text: Callable[[str], None],
    ) -> ModelResponse:
        text, told = "", 0
        stream = model_request_stream(
            self._client, asked.build_messages(), model_settings=settings, model_request_parameters=parameters
        )
        async with stream as events:
            async for event in events:
                match event:
                    case PartStartEvent(part=TextPart(content=piece)):
                        text += piece
                    case PartDeltaEvent(delta=TextPartDelta(content_delta=piece)):
                        text += piece
                    case _:
                        continue
                if len(text) - told >= STREAM_STEP_CHARS and len(text) <= MAX_CONTENT_CHARS:
                    told = len(text)
                    on_text(text)
            return events.get()
