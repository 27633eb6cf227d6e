"""One round of a call that its server answers with questions: the questions, the answers, and what to send next.

https://modelcontextprotocol.io/specification/2026-07-28 (multi-round-trip requests): the server does nothing until it
returns a result. The client sends the call again with the answers and with the server's state, which it does not read.
The round is stored with the suspension, so that any process can continue.
"""

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter

from planwarden.agent.common.imports import LazyModule
from planwarden.tools.downstream.elicitation import BadElicitation, ServerElicitation, read_elicitation

if TYPE_CHECKING:
    import mcp
else:
    mcp = LazyModule("mcp")

MAX_ROUNDS = 20
MAX_QUESTIONS = 16
MAX_STATE_CHARS = 64 * 1024


class CallRound(BaseModel):
    """A pydantic model, because it is read back from the log."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    arguments: dict[str, JsonValue]
    number: int = 1
    state: str | None = None
    """The server's own; sent back unchanged."""
    questions: dict[str, JsonValue] = {}
    """The server's questions by its own keys, as it sent them."""
    answers: dict[str, dict[str, JsonValue]] = {}

    def next_round(self, asked: "mcp.types.InputRequiredResult") -> "CallRound":
        """Returns the next round, in which every question is open.

        Raises:
            BadQuestion: the server asks for what is not offered, for too much, or too often.
        """

        requests = asked.input_requests or {}
        if (
            self.number >= MAX_ROUNDS
            or len(requests) > MAX_QUESTIONS
            or len(asked.request_state or "") > MAX_STATE_CHARS
        ):
            raise BadElicitation("its server asks too much or too often")
        questions: dict[str, JsonValue] = {}
        for key, request in requests.items():
            if not isinstance(request, mcp.types.ElicitRequest):
                raise BadElicitation("its server asks for something that it was not offered (sampling or roots)")
            read_elicitation(request.params)
            questions[key] = request.params.model_dump(mode="json", by_alias=True, exclude_none=True)
        return CallRound(
            arguments=self.arguments, number=self.number + 1, state=asked.request_state, questions=questions
        )

    def open_elicitation(self) -> ServerElicitation | None:
        """Returns the first question without an answer; None when all have one."""
        key = self._open_key
        return None if key is None else self._read_elicitation(key)

    def with_answer(self, decision: JsonValue) -> "CallRound":
        """Returns the round with the decision as the answer to its first open question."""
        key = self._open_key
        if key is None:
            return self
        return self.model_copy(update={"answers": {**self.answers, key: self._read_elicitation(key).answer(decision)}})

    @property
    def _open_key(self) -> str | None:
        return next((key for key in self.questions if key not in self.answers), None)

    def _read_elicitation(self, key: str) -> ServerElicitation:

        return read_elicitation(
            TypeAdapter[mcp.types.ElicitRequestParams](mcp.types.ElicitRequestParams).validate_python(
                self.questions[key]
            )
        )
