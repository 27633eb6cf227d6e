"""What the engine needs of a model, and the model for callers that answer the prompts themselves."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import ToolDefinition


class AskCaller(msgspec.Struct, frozen=True):
    """The calling model answers: the prompt becomes a suspension that is addressed to the caller."""


class CallerModel:
    """Answers every prompt with `AskCaller`: the model for callers that are models themselves."""

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        return AskCaller()


class Model(Protocol):
    """Answers planning, step and synthesis prompts."""

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        """Answer the prompt; `tools` are the full definitions of the offered tools. Raises `ModelError` when there is
        no usable answer; if the error is `retryable`, the execution waits and asks again."""
        ...


@runtime_checkable
class StreamingModel(Model, Protocol):
    """A model that can report its answer while writing it; optional."""

    async def reply_streaming(
        self, prompt: Prompt, tools: Sequence[ToolDefinition], on_text: Callable[[str], None]
    ) -> Reply | AskCaller:
        """Answer like `reply`, and call `on_text` with the whole text so far. When an attempt is repeated, the text may
        start again; only the reply counts."""
        ...
