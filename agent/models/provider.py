"""A provider's model behind the `Model` port: one request per prompt, and one more if the answer is broken.

A prompt becomes a `ProviderRequest`, and a response becomes a `ModelAnswer`. `Retries` repeats a request when the
provider is busy or unreachable. As for any other model, the engine judges from the log what the model really did.
Cancelling takes effect at once and closes the connection.

A provider may go on working, and charging, after the connection is closed.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model as Client
from pydantic_ai.models import StreamedResponse

from planwarden.agent.common.errors import ModelError
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import MAX_CONTENT_CHARS, Reply
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.models.answer import ModelAnswer, read_answer
from planwarden.agent.models.client import build_client, close_connections
from planwarden.agent.models.endpoint import Endpoint
from planwarden.agent.models.failures import CannotForce, Retries, describe_failure, is_refusal_to_force
from planwarden.agent.models.request import ProviderRequest, build_request

OnText = Callable[[str], None] | None
STREAM_STEP_CHARS = 80
"""How many characters must arrive before a listener is called again: about a line, not just a fragment."""

logger = logging.getLogger(__name__)


class ProviderModel:
    """Answers prompts with the model of an endpoint. It keeps no connection and no part of a prompt."""

    def __init__(self, endpoint: Endpoint, *, retries: Retries | None = None) -> None:
        """Raise `ImportError` if the provider's extra is not installed."""
        self._endpoint = endpoint
        self._client: Client = build_client(endpoint)
        self._retries = retries or Retries()
        self._can_force = True
        """Whether requests may force a tool call; False once the model refused this but answered unforced."""

    def __repr__(self) -> str:
        return f"ProviderModel({self._endpoint.name!r})"

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition], on_text: OnText = None) -> Reply:
        """Return the reply; call `on_text` with the text so far while the model writes.

        Raises `ModelError` with one sentence if there is no usable reply.
        """
        request = build_request(prompt, tools, self._endpoint)
        answer = await self._ask(request, on_text)
        if answer.fault is not None and not answer.is_refusal:
            logger.info("%s: %s; asking once more", self._endpoint.name, answer.fault)
            try:
                repeated = await self._ask(request.with_fault(answer.fault), on_text)
            except ModelError as error:
                error.input_tokens += answer.reply.input_tokens
                error.output_tokens += answer.reply.output_tokens
                raise
            answer = repeated.add_earlier(answer)
        reply = answer.reply
        is_empty = not (reply.content or reply.calls)
        if answer.is_refusal or (is_empty and not request.needs_json):
            text = f"{self._endpoint.name} gave no usable answer: {answer.fault}"
            raise ModelError(text, input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
        return reply

    reply_streaming = reply

    async def _ask(self, request: ProviderRequest, on_text: OnText) -> ModelAnswer:
        async def attempt(remaining_s: float) -> ModelAnswer:
            timeout_s = min(remaining_s, self._endpoint.timeout_s)
            force = self._can_force
            try:
                return await self._attempt(request, on_text, timeout_s, force=force)
            except CannotForce:
                logger.info("%s refuses to be forced to call a tool; asking without force", self._endpoint.name)
            answer = await self._attempt(request, on_text, timeout_s, force=False)
            self._can_force = False
            return answer

        return await self._retries.run(attempt)

    async def _attempt(
        self, request: ProviderRequest, on_text: OnText, timeout_s: float, *, force: bool
    ) -> ModelAnswer:
        """Return the answer to one request. Raises `AttemptFailed`, or `CannotForce` if an unforced one may succeed."""
        messages, parameters = request.build_messages(), request.build_parameters(force=force)
        settings = request.build_settings(self._endpoint, force=force, timeout_s=timeout_s)
        try:
            async with close_connections():
                if on_text is None:
                    response = await model_request(
                        self._client, messages, model_settings=settings, model_request_parameters=parameters
                    )
                else:
                    stream = model_request_stream(
                        self._client, messages, model_settings=settings, model_request_parameters=parameters
                    )
                    response = await _read_stream(stream, on_text)
        # A provider's client can raise anything: its own errors, those of its HTTP client, JSON decoder or validation.
        # Each becomes an error of one sentence. This error is raised outside the handler, so that it does not carry the
        # client's exception, which holds the request and therefore the key.
        except Exception as error:  # noqa: BLE001
            is_forcing = force and bool(request.forced) and is_refusal_to_force(error)
            failure = CannotForce() if is_forcing else describe_failure(error, self._endpoint)
        else:
            return read_answer(response, request)
        raise failure


async def _read_stream(
    stream: AbstractAsyncContextManager[StreamedResponse], on_text: Callable[[str], None]
) -> ModelResponse:
    text, reported = "", 0
    async with stream as events:
        async for event in events:
            match event:
                case PartStartEvent(part=TextPart(content=piece)):
                    text += piece
                case PartDeltaEvent(delta=TextPartDelta(content_delta=piece)):
                    text += piece
                case _:
                    continue
            if len(text) - reported >= STREAM_STEP_CHARS and len(text) <= MAX_CONTENT_CHARS:
                reported = len(text)
                on_text(text)
        return events.get()
