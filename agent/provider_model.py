"""A provider's model behind the `Model` port: one prompt, one request, at most one more when the answer is broken.

A prompt becomes a `Question`, a response an `Answer`; `Retries` repeats what a provider was too busy for. What the model
then proved is judged by the engine, from the log, like any other model's. Cancelling passes through at once and closes
the connection.

Not promised: that a provider stops working, or charging, when the connection is closed.
"""

import logging
from collections.abc import Sequence

from pydantic_ai.direct import model_request
from pydantic_ai.models import Model as Client

from planwarden.agent.errors import ModelError
from planwarden.agent.ports import Reply
from planwarden.agent.prompts import Prompt
from planwarden.agent.provider import Endpoint
from planwarden.agent.provider_answer import Answer, read_answer
from planwarden.agent.provider_fault import fault_of, refuses_forcing
from planwarden.agent.provider_request import Question, question
from planwarden.agent.provider_retry import Patience, Retries
from planwarden.agent.provider_sdk import build_client
from planwarden.agent.tool import ToolDefinition

logger = logging.getLogger(__name__)


class ProviderModel:
    """Answers prompts from an endpoint. Holds no connection and nothing of a prompt."""

    def __init__(self, endpoint: Endpoint, *, retries: Retries | None = None) -> None:
        """Raises `ImportError` when the provider's extra is not installed."""
        self._endpoint = endpoint
        self._client: Client = build_client(endpoint)
        self._retries = retries or Retries(Patience())
        self._forces = True
        """Whether the model lets itself be forced to call a tool; learnt from its refusal."""

    def __repr__(self) -> str:
        return f"ProviderModel({self._endpoint.name!r})"

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply:
        """Raises `ModelError` with one sentence when there is no answer."""
        asked = question(prompt, tools, self._endpoint)
        answer = await self._answer(asked)
        if answer.fault is not None and not answer.is_refusal:
            logger.info("%s: %s; asking once more", self._endpoint.name, answer.fault)
            answer = (await self._answer(asked.again(answer.fault))).spent(answer)
        reply = answer.reply
        if answer.is_refusal or not (reply.content or reply.calls or reply.plan or prompt.required):
            raise ModelError(f"{self._endpoint.name} gave no answer that can be used: {answer.fault}")
        return reply

    async def _answer(self, asked: Question) -> Answer:
        async def attempt(left_s: float) -> Answer:
            return await self._attempt(asked, min(left_s, self._endpoint.timeout_s))

        return await self._retries.run(attempt)

    async def _attempt(self, asked: Question, timeout_s: float) -> Answer:
        """One answer. Raises `Fault`."""
        force = self._forces
        try:
            response = await model_request(
                self._client,
                asked.messages(),
                model_settings=asked.settings(self._endpoint, force=force, timeout_s=timeout_s),
                model_request_parameters=asked.parameters(force=force),
            )
        # What a provider's client can raise is no closed set: its own errors, those of its HTTP client, of its JSON
        # decoder, of its validation. Each becomes one sentence here, and none keeps the request it came from.
        except Exception as error:  # noqa: BLE001
            if not (force and asked.forced and refuses_forcing(error)):
                raise fault_of(error, self._endpoint) from None
        else:
            return read_answer(response, asked)
        logger.info("%s cannot be forced to call a tool; it is free to choose", self._endpoint.name)
        self._forces = False
        return await self._attempt(asked, timeout_s)
