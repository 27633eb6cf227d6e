"""The view of a suspension: what is asked, about which call, and how to answer."""

from collections.abc import Callable
from datetime import datetime
from functools import cached_property

import msgspec

from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution.question import MatchedRule, Question, SuspensionKind
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.agent.core.plan.plan_input import plan_schema
from planwarden.agent.core.prompts import TEXT_SCHEMA, render_results, step_answer_schema
from planwarden.agent.core.tool import RemoteCall
from planwarden.agent.ports.toolbox import Definitions
from planwarden.server.views.card import Card, build_card
from planwarden.server.views.instants import to_utc
from planwarden.server.views.tools import ToolCall, ToolView, build_tool_view

CardSource = tuple[ExecutionState, SuspensionState, Definitions | None]
Program = Callable[[], str]
"""A function that returns the beginning of a terminal command. It is called only when needed: it may import code."""


def name_program() -> str:
    """Return the beginning of a command that does not have to name a home."""
    return "planwarden"


class HowToAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a person decides."""

    inbox_url: str | None
    """Page of the question in the inbox; null while no inbox runs."""
    command: str | None
    """What a person runs in a terminal; it names the home unless that is the default one. For questions to the caller,
    `inboxUrl` and `command` are null."""


class CoveredCallView(msgspec.Struct, frozen=True, kw_only=True):
    """A later call that the same decision covers."""

    step_id: str
    """The later step."""
    tool_name: str
    """The tool that it calls."""
    arguments: dict[str, JsonValue]
    """Exactly as the call will run."""


class Endorsement(msgspec.Struct, frozen=True, kw_only=True):
    """One of several approvals that are needed."""

    principal: str
    """Who approved."""
    assurance: str
    """What proved it."""
    channel: str
    """Through which channel."""
    at: datetime
    """When."""
    content: JsonValue
    """The answer that it gives, if the question asks for one; only approvals with equal answers count together."""


class EditView(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments that somebody changed after the question was asked."""

    arguments: tuple[str, ...]
    """Names of the arguments; `ROW/NAME` for an argument of one of `calls`."""
    principal: str
    """Who changed them."""
    assurance: str
    """What proved that it was this person; `claimed` means that the calling model made the change."""
    channel: str
    """Through which channel."""


class Suspension(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A question that an execution waits for: to a person or to the caller."""

    suspension_id: str
    """Names the suspension in an answer."""
    thread_id: str
    """The thread it belongs to."""
    execution_id: str
    """The execution it belongs to."""
    step_id: str | None
    """The step that waits, or null."""
    addressee: str
    """`human` or `caller`."""
    kind: SuspensionKind
    """`confirmation`, `input`, `approval`, `plan`, `step`, `synthesis`, `reconcile`, `delegated` or `review`."""
    message: str
    """What the asker says, unverified: for an approval, the step's description; otherwise the question itself."""
    tool_call: ToolCall | None
    """The call that the question is about, or null."""
    risk: str | None
    """Risk of the call, or null."""
    needs: str | None
    """The assurance that a decision needs: `client`, `human`, `signed` or `second`; null for the caller."""
    digest: str
    """Covers everything that a decision approves; a decision about another digest is refused."""
    revision: int
    """Starts at 1 and grows by one with each change of what is asked."""
    created_at: datetime
    """When the question was asked."""
    expires_at: datetime | None
    """When it ends without a decision, or null."""
    on_timeout: str
    """What happens at `expiresAt`: `reject` or `approve`."""
    goal: str | None
    """For the caller: what the execution is for."""
    instructions: str | None
    """For the caller: how it answers such a question."""
    results: str | None
    """For the caller: what earlier steps returned, as far as this question may use it."""
    prompt: str | None
    """For the caller: what to think about."""
    tools: tuple[ToolView, ...]
    """For the caller: full definitions of the tools that it may use."""
    answer_schema: dict[str, JsonValue] | None
    """JSON Schema of `content`, or null if yes or no is enough."""
    confirms: tuple[CoveredCallView, ...] = ()
    """Later calls that the decision covers too, exactly as they will run; in a review, only with `content.cover`."""
    how_to_answer: HowToAnswer
    """Where a person decides."""
    quorum: int = 1
    """How many different people have to approve."""
    endorsements: tuple[Endorsement, ...] = ()
    """Approvals so far, while more are needed."""
    asker: str | None = None
    """The downstream server or agent that asks, if planwarden does not ask itself."""
    edits: tuple[EditView, ...]
    """Arguments that were changed after the question was first asked, and who changed them."""
    releases: tuple[RemoteCall, ...]
    """Calls that an approval lets the asking agent make, according to that agent itself."""
    undecidable: str | None
    """Why it cannot be approved here, and where it can, or null."""
    found: tuple[str, ...] = ()
    """What planwarden found about it, in sentences: a tool that changed, a retry, a new policy; left out if nothing."""
    rule: MatchedRule | None = None
    """The operator's rule that made planwarden ask a person, or that set what an answer needs; left out if none."""
    calls: tuple[ToolCall, ...] = ()
    """If one question is about many calls of a loop, those calls in order, a row each; left out otherwise."""
    call_count: int | None = None
    """How many rows there are in all, if `calls` has only the first ones; left out if it has them all."""
    card_source: CardSource
    """Not part of the JSON."""

    @cached_property
    def card(self) -> Card:
        """What every channel for people shows of the question."""
        return build_card(*self.card_source)


class SuspensionPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of open suspensions."""

    suspensions: tuple[Suspension, ...]
    """Oldest first."""
    total: int
    """Number on all pages."""
    next_cursor: str | None
    """For the next page, or null."""


def build_suspension_view(
    state: ExecutionState,
    suspension: SuspensionState,
    tools: Definitions | None,
    *,
    inbox: str | None = None,
    program: Program = name_program,
    max_rows: int | None = None,
) -> Suspension:
    """Return a suspension with everything needed to answer it. The command that answers begins with `program()`.

    `tools` may be None if the view shows no tools. With `max_rows`, the view has at most that many of the question's
    rows; if there are more, it also has the count of all.
    """
    question = suspension.question
    is_caller = question.addressee == "caller"
    offered = () if tools is None else map(tools.get, question.offered)
    rows, step = question.rows, None if question.step_id is None else state.steps.get(question.step_id)
    may_have_results = is_caller and question.traits.purpose != "plan"
    return copy_fields(
        Suspension,
        question,
        thread_id=state.thread_id,
        execution_id=state.execution_id,
        kind=question.public_kind,
        tool_call=None
        if question.call_id is None or question.tool_name is None
        else ToolCall(
            call_id=question.call_id, tool_name=question.tool_name, arguments=question.arguments or {}, resolved=None
        ),
        created_at=to_utc(suspension.created_at),
        expires_at=None if question.expires_at is None else to_utc(question.expires_at),
        goal=state.goal if is_caller else None,
        results=render_results(state, step) or None if may_have_results else None,
        instructions=question.instructions or None,
        tools=tuple(build_tool_view(definition) for definition in offered if definition is not None),
        answer_schema=_find_answer_schema(question),
        confirms=tuple(copy_fields(CoveredCallView, covered) for covered in question.covers if not rows),
        calls=tuple(copy_fields(ToolCall, row, resolved=None) for row in rows[:max_rows]),
        call_count=len(rows) if max_rows is not None and len(rows) > max_rows else None,
        how_to_answer=HowToAnswer(
            inbox_url=f"{inbox}/suspensions/{question.suspension_id}" if inbox and not is_caller else None,
            command=None if is_caller else f"{program()} approve {question.suspension_id}",
        ),
        endorsements=tuple(copy_fields(Endorsement, vote, at=to_utc(vote.at)) for vote in suspension.endorsements),
        asker=question.asker or None,
        edits=tuple(copy_fields(EditView, edit) for edit in question.edits),
        undecidable=question.undecidable or None,
        card_source=(state, suspension, tools),
    )


def _find_answer_schema(question: Question) -> dict[str, JsonValue] | None:
    match question.traits.purpose:
        case "plan":
            return plan_schema()
        case "step":
            return step_answer_schema()
        case "synthesize":
            return TEXT_SCHEMA
        case None:
            return question.form
