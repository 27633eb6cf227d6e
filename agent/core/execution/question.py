"""Questions and their answers: the table of kinds, the fields of a question, and those of a recorded answer.

`KINDS` alone says what is true of all questions of a kind. Code looks that up in `question.traits`, and mentions a
kind by name only where it treats that one kind differently.

A question is stored in the events that ask it, as a list of its fields in the order below. After the first release, a
new field goes to the end and has a default.
"""

from collections.abc import Mapping
from typing import Literal

from planwarden.agent.common.struct import FrozenStruct, JsonValue, StoredStruct
from planwarden.agent.core.tool import OnTimeout, RemoteCall, Risk

SuspensionKind = Literal[
    "confirmation",
    "input",
    "approval",
    "batch",
    "plan",
    "step",
    "synthesis",
    "reconcile",
    "delegated",
    "wait",
    "review",
]
Addressee = Literal["human", "caller", "clock"]
Purpose = Literal["plan", "step", "synthesize"]
ReleaseScope = Literal["call", "rows", "again", "later_calls", "planned_calls"]
Needs = Literal["client", "human", "signed", "second"]
"""The assurance that an approval has to have."""
Assurance = Literal["claimed", "client", "human", "signed", "second", "embedder", "caller", "timeout"]
"""How well planwarden knows who gave an answer."""
AlarmKind = Literal["remind", "escalate"]


class Kind(FrozenStruct):
    """What is true of every question of one kind."""

    addressee: Addressee
    """Whose answer the execution waits for."""
    heading: str = "Decision needed"
    """The line that planwarden puts above the question; if the question has rows, the line also counts them."""
    releases: ReleaseScope | None = None
    """What an approval lets run. `call`: the question's own call; `rows`: its rows; `again`: a call of unknown outcome,
    once more; `later_calls`: calls that it names; `planned_calls`: calls that it names, if the answer says so."""
    purpose: Purpose | None = None
    """Which prompt the caller answers in place of a model; the prompt also determines the form of the answer."""
    resumes_tool: bool = False
    """Whether a tool may ask such a question in the middle of its call; the answer then goes back to that tool."""
    is_verbatim: bool = False
    """Whether the message already shows the call's arguments word for word, so that they are not shown again."""
    public_name: SuspensionKind | None = None
    """The name under which callers see this kind; None if they see its own name."""

    @property
    def is_about_calls(self) -> bool:
        """Whether the question asks if calls may run exactly as shown; its message does not change what is decided."""
        return self.releases in ("call", "rows")


_TO_A_MODEL = "A model must answer"
KINDS: Mapping[SuspensionKind, Kind] = {
    "approval": Kind(addressee="human", heading="Run this call?", releases="call"),
    "batch": Kind(addressee="human", heading="Run this call?", releases="rows", public_name="approval"),
    "confirmation": Kind(
        addressee="human", heading="Confirm?", releases="later_calls", resumes_tool=True, is_verbatim=True
    ),
    "input": Kind(
        addressee="human", heading="Answer needed", releases="later_calls", resumes_tool=True, is_verbatim=True
    ),
    "delegated": Kind(addressee="human", resumes_tool=True),
    "reconcile": Kind(addressee="human", heading="Did this call happen?", releases="again"),
    "review": Kind(addressee="human", heading="Start this plan?", releases="planned_calls"),
    "plan": Kind(addressee="caller", heading=_TO_A_MODEL, purpose="plan"),
    "step": Kind(addressee="caller", heading=_TO_A_MODEL, purpose="step"),
    "synthesis": Kind(addressee="caller", heading=_TO_A_MODEL, purpose="synthesize"),
    "wait": Kind(addressee="clock", resumes_tool=True),
}


class MatchedRule(StoredStruct):
    """An operator's rule that decided whether a call may run."""

    number: int
    """The place of the rule in the operator's file, from 1."""
    words: str
    """What the rule says, in one line."""
    matched: tuple[str, ...] = ()
    """The values that matched, such as `amount = 80`; if the rule could not be evaluated, the reason."""


class CoveredCall(StoredStruct):
    """A call that an answer decides, with its exact arguments: a row of the question, or a later call."""

    step_id: str
    tool_name: str
    arguments: dict[str, JsonValue]
    definition_digest: str
    call_id: str = ""
    """Id of the call, if it is one of a loop; empty for every other call."""

    def is_about(self, step_id: str, tool_name: str, call_id: str) -> bool:
        """Return whether this entry has the given step and tool, and either the given call id or no call id at all."""
        return (self.step_id, self.tool_name) == (step_id, tool_name) and self.call_id in ("", call_id)


class ArgumentEdit(StoredStruct):
    """One change that somebody made to the arguments of an open question: what, who, and with what assurance."""

    revision: int
    """Number of the revision that this edit created."""
    principal: str
    channel: str
    assurance: Assurance
    arguments: tuple[str, ...]
    """Names of the changed arguments, `ROW/NAME` in a batch, without those that a later edit changed again."""


class Alarm(StoredStruct):
    """A moment at which people are told again of a question that is still open: a reminder or an escalation."""

    kind: AlarmKind
    at: float
    """Unix seconds by the store's clock."""
    to: tuple[str, ...] = ()
    """The people to whom the question is escalated."""


class Question(StoredStruct):
    """One revision of what somebody is asked."""

    suspension_id: str
    kind: SuspensionKind
    message: str
    """For a person: the words of the agent, the tool or the `asker` that asks; planwarden's words are in `found`."""
    step_id: str | None = None
    call_id: str | None = None
    tool_name: str | None = None
    arguments: dict[str, JsonValue] | None = None
    """Exactly what runs after approval, with references resolved and defaults filled in."""
    definition_digest: str = ""
    risk: Risk | None = None
    needs: Needs | None = None
    digest: str = ""
    """Approval digest over everything that was shown; changes with every revision."""
    revision: int = 1
    expires_at: float | None = None
    """Unix seconds by the store's clock."""
    on_timeout: OnTimeout = "reject"
    form: dict[str, JsonValue] | None = None
    """JSON Schema that the decision's `content` must satisfy."""
    prompt: str | None = None
    """For the caller: the prompt that it answers in place of a model."""
    offered: tuple[str, ...] = ()
    """For the caller: tools whose full schemas go with the prompt."""
    resume_payload: JsonValue = None
    covers: tuple[CoveredCall, ...] = ()
    policy: str = ""
    """First digits of the digest that the operator's policy had when the question was asked: they reveal a change."""
    quorum: int = 1
    """How many different people have to approve."""
    alarms: tuple[Alarm, ...] = ()
    """Earliest first; fixed when the question is asked, and the same for all of its revisions."""
    asker: str = ""
    """The server or agent that really asks; empty if planwarden does. An asker receives rejections too."""
    edits: tuple[ArgumentEdit, ...] = ()
    """Oldest first; empty as long as nobody has changed the original arguments."""
    releases: tuple[RemoteCall, ...] = ()
    """Calls that another agent says it will make after an approval, as in `Suspend`."""
    undecidable: str = ""
    """Why the question cannot be approved here, as in `Suspend`; empty if it can be."""
    found: tuple[str, ...] = ()
    """What planwarden or the tool found out, in sentences, oldest first: a tool that changed, a retry, a new policy."""
    instructions: str = ""
    """For the caller: how to answer this question; usually the same for all questions of a kind."""
    rule: MatchedRule | None = None
    """The operator's rule that required a person, or that set the assurance an answer must have."""

    @property
    def traits(self) -> Kind:
        """What is true of all questions of its kind."""
        return KINDS[self.kind]

    @property
    def addressee(self) -> Addressee:
        """Whose answer the execution waits for."""
        return self.traits.addressee

    @property
    def public_kind(self) -> SuspensionKind:
        """The name that callers see for the kind of the question."""
        return self.traits.public_name or self.kind

    @property
    def rows(self) -> tuple[CoveredCall, ...]:
        """The rows, if this is a question about many calls of a loop (a batch); empty for every other question."""
        return self.covers if self.kind == "batch" else ()

    def choose_rows(self, content: JsonValue) -> list[int]:
        """Return the indexes, from 0, of the rows that an approval selects; all rows if its content is None."""
        if content is None:
            return list(range(len(self.rows)))
        items = content.get("items") if isinstance(content, dict) else None
        indexes = items if isinstance(items, list) else []
        return [index for index in indexes if type(index) is int and 0 <= index < len(self.rows)]


class RecordedDecision(StoredStruct):
    """An answer, in the form in which it was accepted."""

    approved: bool
    reason: str | None = None
    modified_args: dict[str, JsonValue] | None = None
    content: JsonValue = None
