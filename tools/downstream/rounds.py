"""A call that its server answers with questions: what was asked, what was answered, and what to send with the next try.

https://modelcontextprotocol.io/specification/2026-07-28 (multi-round-trip requests): until the server gives a result it has done
nothing; the client comes back with the answers and with the server's state, unread. All of it is stored with the
suspension, so that any process can come back.
"""

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter

from planwarden.tools.downstream.elicitations import BadQuestion, ServerElicitation, read_question

if TYPE_CHECKING:
    from mcp.types import InputRequiredResult

MAX_ROUNDS = 20
MAX_QUESTIONS = 16
MAX_STATE_CHARS = 64 * 1024


class CallRound(BaseModel):
    """One try of a call. A pydantic model because it comes back out of the log."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    arguments: dict[str, JsonValue]
    number: int = 1
    state: str | None = None
    """The server's, passed back as it is."""
    questions: dict[str, JsonValue] = {}
    """What it asked, by its keys, in its words."""
    answers: dict[str, dict[str, JsonValue]] = {}

    def following(self, asked: "InputRequiredResult") -> "CallRound":
        """The next try, with everything still to be answered.

        Raises:
            BadQuestion: the server asks for what is not offered, for too much, or too often.
        """
        from mcp.types import ElicitRequest

        requests = asked.input_requests or {}
        if (
            self.number >= MAX_ROUNDS
            or len(requests) > MAX_QUESTIONS
            or len(asked.request_state or "") > MAX_STATE_CHARS
        ):
            raise BadQuestion("its server asks too much or too often")
        questions: dict[str, JsonValue] = {}
        for key, request in requests.items():
            if not isinstance(request, ElicitRequest):
                raise BadQuestion("its server asks for what is not offered to it (sampling or roots)")
            read_question(request.params)
            questions[key] = request.params.model_dump(mode="json", by_alias=True, exclude_none=True)
        return CallRound(
            arguments=self.arguments, number=self.number + 1, state=asked.request_state, questions=questions
        )

    def question(self) -> ServerElicitation | None:
        """The first question without an answer; None when all have one."""
        key = self._open
        return None if key is None else self._read(key)

    def answered(self, decision: JsonValue) -> "CallRound":
        """With the decision as the answer to the first question that had none."""
        key = self._open
        if key is None:
            return self
        return self.model_copy(update={"answers": {**self.answers, key: self._read(key).answer(decision)}})

    @property
    def _open(self) -> str | None:
        return next((key for key in self.questions if key not in self.answers), None)

    def _read(self, key: str) -> ServerElicitation:
        from mcp.types import ElicitRequestParams

        return read_question(TypeAdapter[ElicitRequestParams](ElicitRequestParams).validate_python(self.questions[key]))
