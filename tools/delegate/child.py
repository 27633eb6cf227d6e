"""An execution that another agent runs for us: what we store about it, and what the agent says about it.

What the agent says is outside input: we limit its size, drop unknown parts, and put each text on one line, escaped.
"""

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.common.canonical import check_depth, is_larger
from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.prompts import DELEGATE
from planwarden.agent.core.tool import RISKS, RemoteCall, Risk, Suspend
from planwarden.tools.downstream.elicitation import BadElicitation, read_form
from planwarden.tools.downstream.listing import one_line

MAX_DEPTH = 3
"""How many times one goal may be delegated, from agent to agent."""
DEPTH, CHAIN = "planwarden/depth", "planwarden/chain"
"""Keys in `_meta` of a call that tell an agent where its goal comes from."""
MAX_MESSAGE_CHARS = 500
MAX_REASON_CHARS = 300
MAX_NAME_CHARS = 128
MAX_CALLS = 20
MAX_CALL_BYTES = 32 * 1024
"""The most bytes of all calls that one question covers, taken together; the page shows them in full."""
MAX_ADDRESS_CHARS = 300
MAX_SUSPENSIONS = 100
_KNOWN_RISKS: dict[str | None, Risk] = {risk: risk for risk in RISKS}


class DelegatedGoal(BaseModel):
    """What we store while an agent works on the goal. A pydantic model, because it is read back from the log."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    agent: str
    thread_id: str
    suspension_id: str | None = None
    """The agent's suspension that we have passed on to a person."""
    digest: str = ""
    """Fingerprint of the agent's suspension as it was shown."""
    is_whole: bool = True
    """Whether the question was shown in full; only then can it be approved here."""
    refused: bool = False
    """Whether the agent refused an approval from here."""
    failures: int = 0
    """How many times in a row the agent could not be reached."""
    settled: int = 0
    """How many questions in a row were settled at the agent before anybody here answered them."""

    def wait(self, seconds: float) -> Suspend:
        """Return a suspension that lasts until we look at the goal again, after `seconds`."""
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


class _NotShown(Exception):
    """A part of the agent's question cannot be shown here; the message says which."""


class ChildQuestion(BaseModel):
    """One open suspension of the agent's execution."""

    suspensionId: str = Field(max_length=128)
    addressee: str = "human"
    kind: str = ""
    message: str = ""
    found: JsonValue = None
    """What the agent's own planwarden found about the question."""
    toolCall: JsonValue = None
    confirms: JsonValue = None
    """Later calls that the same decision releases at the agent."""
    releases: JsonValue = None
    """Calls that the decision releases at further agents, to which this agent delegated."""
    undecidable: JsonValue = None
    """Why the question cannot be approved at the agent."""
    risk: str | None = None
    needs: str | None = None
    digest: str = Field(default="", max_length=128)
    answerSchema: dict[str, JsonValue] | None = None
    howToAnswer: _HowToAnswer = _HowToAnswer()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that the question says and covers. The agent's own digest proves nothing about that."""
        facts = self.model_dump(mode="json", exclude={"howToAnswer"})
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def suspend(self, child: DelegatedGoal, *, note: str = "") -> Suspend:
        """Return the question as a suspension of ours, asked in the agent's name; `note` says what happened before."""
        risk, needs = (json.dumps(one_line(str(text), 20)) for text in (self.risk, self.needs))
        facts = (
            note,
            f"It states that its risk is {risk}, and that it needs {needs}.",
            "An approval from here did not count there: its own person must decide." if child.refused else "",
            self._describe_other_channels(),
        )
        calls, form, undecidable = (), None, ""
        try:
            self._check_decidable()
            calls = self._read_calls()
            form = None if self.answerSchema is None else read_form(self.answerSchema)
        except (_NotShown, BadElicitation) as error:
            calls, undecidable = (), " ".join(filter(None, (f"{error}.", self._describe_other_channels())))
        question = {"suspension_id": self.suspensionId, "digest": self.fingerprint, "is_whole": not undecidable}
        return Suspend(
            message=one_line(self._words, MAX_MESSAGE_CHARS),
            form=form,
            resume_payload=child.model_copy(update=question).model_dump(mode="json"),
            asker=f"agent {one_line(child.agent, 64)!r}",
            is_delegated=True,
            risk=_KNOWN_RISKS.get(self.risk, "dangerous"),
            releases=calls,
            undecidable=undecidable,
            found=tuple(filter(None, facts)),
        )

    @property
    def _words(self) -> str:
        """All that the agent says in words; what the agent's own planwarden found counts as the agent's words too."""
        texts = self.found if isinstance(self.found, list) else []
        return " ".join(text for text in (*texts, self.message) if isinstance(text, str) and text)

    def _check_decidable(self) -> None:
        if self.undecidable is not None:
            # Quote the agent's reason, so that nobody takes it for planwarden's own words.
            reason = json.dumps(one_line(str(self.undecidable), MAX_REASON_CHARS))
            raise _NotShown(f"the agent cannot approve it either: {reason}")
        if one_line(self._words, MAX_MESSAGE_CHARS) != one_line(self._words, 12 * len(self._words) + 1):
            raise _NotShown(f"its words are longer than {MAX_MESSAGE_CHARS} characters")

    def _read_calls(self) -> tuple[RemoteCall, ...]:
        """Return all calls that an approval lets agents run; raises `_NotShown` unless all can be shown whole."""
        calls = [] if self.toolCall is None else [self.toolCall]
        for more in (self.confirms, self.releases):
            if not isinstance(more, list | None):
                raise _NotShown("the calls that it covers are not readable")
            calls += more or []
        if len(calls) > MAX_CALLS:
            raise _NotShown(f"it covers {len(calls)} calls, and at most {MAX_CALLS} can be shown here")
        try:
            check_depth(calls)
            is_large = is_larger(calls, MAX_CALL_BYTES)
        except UsageError as error:
            raise _NotShown(f"of the calls that it covers, {error.message}") from None
        if is_large:
            raise _NotShown(f"the calls that it covers are larger than {MAX_CALL_BYTES} bytes")
        return tuple(map(_read_call, calls))

    def _describe_other_channels(self) -> str:
        url, command = (
            json.dumps(one_line(text or "", MAX_ADDRESS_CHARS))
            for text in (self.howToAnswer.inboxUrl, self.howToAnswer.command)
        )
        channels = [f"open {url}"] if self.howToAnswer.inboxUrl else []
        channels += [f"run {command} there"] if self.howToAnswer.command else []
        return f"It can be decided at the agent too: {' or '.join(channels)}." if channels else ""


def _read_call(listed: JsonValue) -> RemoteCall:
    name = listed.get("toolName") if isinstance(listed, dict) else None
    arguments = listed.get("arguments") if isinstance(listed, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not isinstance(arguments, dict):
        raise _NotShown("a call that it covers is not readable")
    return RemoteCall(tool_name=name, arguments=arguments)


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
        """What the agent is doing. `asks`: a person must answer. `thinks`: it wants us, its caller, to be its model."""
        if self.status == "completed":
            return "completed"
        if self.status not in ("running", "suspended"):
            return "ended"
        if any(question.addressee == "caller" for question in self.suspensions):
            return "thinks"
        return "asks" if self.status == "suspended" and self.open_question is not None else "running"

    @classmethod
    def read(cls, structured: JsonValue) -> "ChildView":
        """Return what an agent's answer says about an execution; an empty view if it describes none."""
        try:
            return cls.model_validate(structured)
        except ValidationError:
            return cls()

    @property
    def open_question(self) -> ChildQuestion | None:
        """The first open suspension that a person must answer."""
        return next((question for question in self.suspensions if question.addressee == "human"), None)

    def find(self, suspension_id: str | None) -> ChildQuestion | None:
        """Return the suspension of that id if it is still open, else None."""
        return next((question for question in self.suspensions if question.suspensionId == suspension_id), None)

    @property
    def failure(self) -> str:
        """How the execution ended, on one line."""
        status = one_line(self.status or "without a status", 64)
        return f"{status}: {one_line(self.error.message, 500)}" if self.error is not None else status


def find_open_goals(execution: ExecutionState) -> tuple[DelegatedGoal, ...]:
    """Return the goals on which other agents may still be working for the execution."""
    goals: dict[str, DelegatedGoal] = {}
    for suspension in execution.suspensions.values():
        question = suspension.question
        if question.tool_name != DELEGATE or question.call_id is None or not isinstance(question.resume_payload, dict):
            continue
        if execution.call(question.call_id).status != "succeeded":
            goals[question.call_id] = DelegatedGoal.model_validate(question.resume_payload)
    return tuple(goals.values())
