"""An execution that another agent runs for us: what we store about it, and what the agent says about it.

What the agent says is outside input: bounded, without unknown parts, every text on one line and escaped.
"""

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.core.prompts import DELEGATE
from planwarden.agent.core.state import Call, ExecutionState
from planwarden.agent.core.tool import RISKS, Risk, Suspend
from planwarden.tools.downstream.elicitation import BadElicitation, read_form
from planwarden.tools.downstream.tools import one_line

MAX_ARGUMENT_CHARS = 1_500
MAX_ADDRESS_CHARS = 300
MAX_SUSPENSIONS = 100


class DelegatedGoal(BaseModel):
    """What is stored while we wait for the goal. A pydantic model, because it is read back from the log."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    agent: str
    thread_id: str
    suspension_id: str | None = None
    """The agent's suspension that we have passed on to a person."""
    digest: str = ""
    """Digest of that suspension, as it was shown."""
    is_whole: bool = True
    """The question was shown whole, so that it can be approved here."""
    refused: bool = False
    """The agent did not accept an approval from here."""
    failures: int = 0
    """How often in a row the agent could not be reached."""

    def wait(self, seconds: float) -> Suspend:
        """Returns a suspension that waits for the clock before the goal is looked at again."""
        return Suspend(
            message=f"waits for agent {self.agent!r} (thread {self.thread_id[:64]!r})",
            addressee="clock",
            timeout_s=seconds,
            resume_payload=self.model_dump(mode="json"),
        )


class _HowToAnswer(BaseModel):
    model_config = ConfigDict(defer_build=True)
    inboxUrl: str | None = None
    command: str | None = None


class ChildQuestion(BaseModel):
    """One open suspension of the agent's execution."""

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
        """Returns it as a suspension of ours, in the name of the agent, with its facts."""
        asker = f"agent {one_line(child.agent, 64)!r}"
        call, is_whole = self._describe_call()
        form = None
        if self.answerSchema is not None:
            try:
                form = read_form(self.answerSchema)
            except BadElicitation:
                is_whole = False
        known = child.model_copy(
            update={"suspension_id": self.suspensionId, "digest": self.digest, "is_whole": is_whole}
        )
        parts = [
            f"{asker} asks: {one_line(self.message, 500)}",
            call,
            f"Risk there: {one_line(str(self.risk), 20)}, needs: {one_line(str(self.needs), 20)}.",
            "An approval from here did not count there: its own person must decide." if child.refused else "",
            "" if is_whole else "It cannot be approved from here, only rejected.",
            self._describe_other_channels(),
        ]
        return Suspend(
            message=" ".join(part for part in parts if part),
            form=form,
            resume_payload=known.model_dump(mode="json"),
            asker=asker,
            is_delegated=True,
            risk=self._read_risk(),
        )

    def _describe_call(self) -> tuple[str, bool]:
        """Returns a sentence about the tool call, and whether it shows all arguments."""
        if self.toolCall is None:
            return "", True
        name, arguments = self.toolCall.get("toolName"), self.toolCall.get("arguments")
        text = json.dumps(arguments, ensure_ascii=True)
        is_whole = len(text) <= MAX_ARGUMENT_CHARS
        excerpt = text if is_whole else f"{text[:MAX_ARGUMENT_CHARS]}... [{len(text)} characters]"
        return f"It is about {one_line(str(name), 128)} with {excerpt}.", is_whole

    def _describe_other_channels(self) -> str:
        channels = [
            f"open {one_line(self.howToAnswer.inboxUrl, MAX_ADDRESS_CHARS)}" if self.howToAnswer.inboxUrl else "",
            f"run `{one_line(self.howToAnswer.command, MAX_ADDRESS_CHARS)}` there" if self.howToAnswer.command else "",
        ]
        known = [channel for channel in channels if channel]
        return f"It can be decided at the agent too: {' or '.join(known)}." if known else ""

    def _read_risk(self) -> Risk:
        known: dict[str | None, Risk] = {risk: risk for risk in RISKS}
        return known.get(self.risk, "dangerous")


class _AgentError(BaseModel):
    model_config = ConfigDict(defer_build=True)
    code: str = ""
    message: str = ""


class ChildView(BaseModel):
    """The execution as the agent shows it; empty for an agent that returns its result without a thread."""

    model_config = ConfigDict(defer_build=True)
    threadId: str | None = Field(default=None, max_length=256)
    status: str | None = Field(default=None, max_length=64)
    output: JsonValue = None
    error: _AgentError | None = None
    suspensions: list[ChildQuestion] = Field(default_factory=list[ChildQuestion], max_length=MAX_SUSPENSIONS)
    usage: dict[str, JsonValue] = {}

    @property
    def state(self) -> Literal["running", "asks", "thinks", "completed", "ended"]:
        """`asks`: a person must answer. `thinks`: it wants its caller, us, to be its model."""
        if self.status == "completed":
            return "completed"
        if self.status not in ("running", "suspended"):
            return "ended"
        if any(found.addressee == "caller" for found in self.suspensions):
            return "thinks"
        return "asks" if self.status == "suspended" and self.open_question is not None else "running"

    @property
    def open_question(self) -> ChildQuestion | None:
        """The first open suspension that a person must answer."""
        return next((found for found in self.suspensions if found.addressee == "human"), None)

    def find(self, suspension_id: str | None) -> ChildQuestion | None:
        """Returns the suspension of that id, if it is still open."""
        return next((found for found in self.suspensions if found.suspensionId == suspension_id), None)

    @property
    def failure(self) -> str:
        """How the execution ended, in one sentence."""
        status = one_line(self.status or "without a status", 64)
        return f"{status}: {one_line(self.error.message, 500)}" if self.error is not None else status


def read_view(structured: JsonValue) -> ChildView:
    """Reads an agent's answer; returns an empty view when it is not about an execution."""
    try:
        return ChildView.model_validate(structured)
    except ValidationError:
        return ChildView()


def find_open_goals(execution: ExecutionState) -> tuple[DelegatedGoal, ...]:
    """Returns the goals on which other agents may still be working for the execution."""
    found: dict[str, DelegatedGoal] = {}
    for suspension in execution.suspensions.values():
        question = suspension.question
        if question.tool_name != DELEGATE or question.call_id is None or not isinstance(question.resume_payload, dict):
            continue
        call: Call = execution.call(question.call_id)
        if call.status != "succeeded":
            found[question.call_id] = DelegatedGoal.model_validate(question.resume_payload)
    return tuple(found.values())
