"""What the engine needs of a model."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import ToolDefinition


class AskCaller(msgspec.Struct, frozen=True):
    """The calling model answers: the prompt becomes a suspension that is addressed to the caller."""


class Model(Protocol):
    """Answers planning, step and synthesis prompts."""

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        """Answer the prompt; `tools` are the full definitions of the offered tools. Raises `ModelError` when there is
        no usable answer; after a `retryable` one the execution waits and asks again."""
        ...


@runtime_checkable
class StreamingModel(Model, Protocol):
    """A model that can report its answer while it writes it; optional."""

    async def reply_streaming(
        self, prompt: Prompt, tools: Sequence[ToolDefinition], on_text: Callable[[str], None]
    ) -> Reply | AskCaller:
        """Like `reply`. Calls `on_text` with the whole text so far. The text may start again when an attempt is
        repeated; only the reply counts.
        """
        ...
