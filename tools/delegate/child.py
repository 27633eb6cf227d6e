"""An execution that another agent runs for us: what we remember of it, and what it says of itself.

What it says is read like anything from outside: bounded, unknown parts left out, every text on one line and escaped.
"""

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.core.tool import RISKS, Risk, Suspend
from planwarden.tools.downstream.elicitations import BadQuestion, read_form
from planwarden.tools.downstream.tools import one_line

MAX_ARGUMENT_CHARS = 1_500
MAX_ADDRESS_CHARS = 300
MAX_SUSPENSIONS = 100


class DelegatedGoal(BaseModel):
    """What is stored before we wait for it; a pydantic model because it comes back out of the log."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    agent: str
    thread_id: str
    suspension_id: str | None = None
    """Its question that we have asked."""
    digest: str = ""
    """Of that question, as it was shown."""
    is_whole: bool = True
    """The question was shown whole, so that approving it here means something."""
    refused: bool = False
    """An approval from here did not count there."""
    failures: int = 0
    """Times in a row that it could not be reached."""


class _HowToAnswer(BaseModel):
    model_config = ConfigDict(defer_build=True)
    inboxUrl: str | None = None
    command: str | None = None


class ChildQuestion(BaseModel):
    """One open question of its execution."""

    suspensionId: str = Field(max_length=128)
    addressee: str = "human"
    kind: str = ""
    message: str = ""
    toolCall: dict[str, JsonValue] | None = None
    risk: str | None = None
    needs: str | None = None
    digest: str = Field(default="", max_length=128)
    answerSchema: dict[str, JsonValue] | None = None
    howToAnswer: _HowToAnswer = _HowToAnswer()

    def suspend(self, child: DelegatedGoal) -> Suspend:
        """The question as ours, in the name of the agent, with its facts."""
        asker = f"agent {one_line(child.agent, 64)!r}"
        call, is_whole = self._call()
        form = None
        if self.answerSchema is not None:
            try:
                form = read_form(self.answerSchema)
            except BadQuestion:
                is_whole = False
        known = child.model_copy(
            update={"suspension_id": self.suspensionId, "digest": self.digest, "is_whole": is_whole}
        )
        parts = [
            f"{asker} asks: {one_line(self.message, 500)}",
            call,
            f"Risk there: {one_line(str(self.risk), 20)}, needs: {one_line(str(self.needs), 20)}.",
            "An approval from here did not count there: its own person has to decide." if child.refused else "",
            "" if is_whole else "It cannot be approved from here, only rejected.",
            self._where(),
        ]
        return Suspend(
            message=" ".join(part for part in parts if part),
            form=form,
            resume_payload=known.model_dump(mode="json"),
            asker=asker,
            is_delegated=True,
            risk=self._risk(),
        )

    def _call(self) -> tuple[str, bool]:
        """What it is about, and whether that is all of it."""
        if self.toolCall is None:
            return "", True
        name, arguments = self.toolCall.get("toolName"), self.toolCall.get("arguments")
        text = json.dumps(arguments, ensure_ascii=True)
        is_whole = len(text) <= MAX_ARGUMENT_CHARS
        shown = text if is_whole else f"{text[:MAX_ARGUMENT_CHARS]}... [{len(text)} characters]"
        return f"It is about {one_line(str(name), 128)} with {shown}.", is_whole

    def _where(self) -> str:
        where = [
            f"open {one_line(self.howToAnswer.inboxUrl, MAX_ADDRESS_CHARS)}" if self.howToAnswer.inboxUrl else "",
            f"run `{one_line(self.howToAnswer.command, MAX_ADDRESS_CHARS)}` there" if self.howToAnswer.command else "",
        ]
        known = [way for way in where if way]
        return f"It can be decided at the agent too: {' or '.join(known)}." if known else ""

    def _risk(self) -> Risk:
        known: dict[str | None, Risk] = {risk: risk for risk in RISKS}
        return known.get(self.risk, "dangerous")


class _Trouble(BaseModel):
    model_config = ConfigDict(defer_build=True)
    code: str = ""
    message: str = ""


class ChildView(BaseModel):
    """The execution as the agent shows it; empty for an agent that gives its result and nothing to come back to."""

    model_config = ConfigDict(defer_build=True)
    threadId: str | None = Field(default=None, max_length=256)
    status: str | None = Field(default=None, max_length=64)
    output: JsonValue = None
    error: _Trouble | None = None
    suspensions: list[ChildQuestion] = Field(default_factory=list[ChildQuestion], max_length=MAX_SUSPENSIONS)
    usage: dict[str, JsonValue] = {}

    @property
    def state(self) -> Literal["running", "asks", "thinks", "completed", "ended"]:
        """`asks` a person, `thinks` means that it wants its caller, us, to think for it."""
        if self.status == "completed":
            return "completed"
        if self.status not in ("running", "suspended"):
            return "ended"
        if any(found.addressee == "caller" for found in self.suspensions):
            return "thinks"
        return "asks" if self.status == "suspended" and self.asked is not None else "running"

    @property
    def asked(self) -> ChildQuestion | None:
        """Its first question to a person."""
        return next((found for found in self.suspensions if found.addressee == "human"), None)

    def find(self, suspension_id: str | None) -> ChildQuestion | None:
        """Its question of that id, if it is still open."""
        return next((found for found in self.suspensions if found.suspensionId == suspension_id), None)

    @property
    def trouble(self) -> str:
        """How it ended, in one sentence."""
        status = one_line(self.status or "without a status", 64)
        return f"{status}: {one_line(self.error.message, 500)}" if self.error is not None else status


def read_view(structured: JsonValue) -> ChildView:
    """What an agent's answer says; an empty view when it is not about an execution."""
    try:
        return ChildView.model_validate(structured)
    except ValidationError:
        return ChildView()
