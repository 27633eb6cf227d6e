"""What a page shows of a question: built from the stored question and the folded log, with every text escaped.

The rules are those of `planwarden.server.views.facts`, which builds the text whose digest a decision records. A page
has room for whole values and for the origin of each of them.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import find_references
from planwarden.agent.core.state import Call, ExecutionState, SuspensionState
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.inbox.value_view import ArgumentChange, ValueView, find_changes, format_name
from planwarden.server.views.facts import (
    count_hidden,
    cut_text,
    describe_editor,
    escape_text,
    format_agent_words,
    format_edited_arguments,
)
from planwarden.server.views.suspension import Endorsement, Suspension, build_suspension_view

GOAL_CHARS = 300

_TITLES = {
    "approval": "Run",
    "confirmation": "Confirm?",
    "input": "Your answer is needed",
    "reconcile": "Did this call happen?",
}


class ArgumentView(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    value: ValueView
    origins: tuple[str, ...]
    """Where the value came from, as far as the log proves it."""
    shown_below_as: str = ""
    """Names the part of the page that shows this value: the form to fill in."""


class CallView(msgspec.Struct, frozen=True, kw_only=True):
    """One call that a decision releases."""

    tool: str
    source: str
    step: str
    arguments: tuple[ArgumentView, ...]


class QuestionView(msgspec.Struct, frozen=True, kw_only=True):
    """One question, as the pages show it."""

    suspension_id: str
    execution_id: str
    thread_id: str
    kind: str
    title: str
    call: CallView | None
    covered: tuple[CallView, ...]
    released: tuple[CallView, ...]
    """Calls that the asking agent makes after an approval, as it says."""
    asker: str
    """Who asks, if it is not planwarden."""
    undecidable: str
    """Why it cannot be approved here, and where it can."""
    risk: str | None
    needs: str | None
    digest: str
    revision: int
    asked_at: datetime
    expires_at: datetime | None
    on_timeout: str
    step: str
    owner: str
    goal: str
    agent_message: str
    agent_whole: ValueView | None
    """The agent's words, if `agent_message` is cut."""
    form: ValueView | None
    """The form as it was asked for, whole, with what its fields do not show."""
    hidden_count: int
    """The number of escaped characters in the agent's message."""
    changes: tuple[ArgumentChange, ...]
    """The differences from the first revision."""
    edits: tuple[str, ...]
    """One sentence for each edit of arguments: which ones, by whom, and what that is worth."""
    reasons: tuple[str, ...]
    """Why the question was revised, oldest first."""
    risk_before: str | None
    """The first risk, if the risk has changed since."""
    quorum: int
    votes: "tuple[VoteView, ...]"
    """The approvals so far, if the question needs several."""
    is_open: bool
    decision: "DecisionView | None"

    @property
    def is_yes_or_no(self) -> bool:
        """Yes or no answers the question completely, so a person can decide it together with others."""
        return self.kind in ("approval", "confirmation")

    @property
    def can_be_granted(self) -> bool:
        """A person who may approve this call may also allow calls like it in advance."""
        return self.kind == "approval" and self.needs == "human"


class VoteView(msgspec.Struct, frozen=True, kw_only=True):
    """One person's approval of a question that needs several approvals."""

    principal: str
    assurance: str
    channel: str
    at: datetime
    answer: ValueView | None
    """What they answered, where the question asks for more than yes."""


class RevisionHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The first revision of a question, and the reason for each later revision."""

    first: ev.Question
    reasons: tuple[str, ...]


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """How a question ended. `verdict` is approved, rejected, timed out or withdrawn."""

    verdict: str
    principal: str
    assurance: str
    channel: str
    at: datetime | None
    reason: str
    is_edited: bool


def build_question_view(
    execution: ExecutionState,
    found: SuspensionState,
    tools: Toolbox,
    history: RevisionHistory | None = None,
) -> QuestionView:
    """The view of one suspension; with `history`, it shows the differences from the first revision."""
    view = build_suspension_view(execution, found, tools)
    question = found.question
    first = None if history is None else history.first.arguments or {}
    is_cut = format_agent_words(view) != format_agent_words(view, is_cut=False)
    return QuestionView(
        suspension_id=view.suspension_id,
        execution_id=view.execution_id,
        thread_id=view.thread_id,
        kind=view.kind,
        title=_TITLES.get(view.kind, "A decision is needed")
        if view.asker is None
        else f"{escape_text(view.asker).capitalize()} asks",
        call=_build_own_call_view(execution, view, question, tools),
        covered=tuple(
            _build_call_view(c.tool_name, c.arguments, escape_text(c.step_id), tools, None) for c in view.confirms
        ),
        released=tuple(
            _build_call_view(call.tool_name, call.arguments, "", tools, None, source=escape_text(view.asker or ""))
            for call in view.releases
        ),
        asker=escape_text(view.asker or ""),
        undecidable=escape_text(view.undecidable or ""),
        risk=view.risk,
        needs=view.needs,
        digest=view.digest,
        revision=view.revision,
        asked_at=view.created_at,
        expires_at=view.expires_at,
        on_timeout=view.on_timeout,
        step=cut_text(escape_text(question.step_id or ""), GOAL_CHARS),
        owner=escape_text(execution.principal),
        goal=escape_text((execution.goal or "")[:GOAL_CHARS]),
        agent_message=format_agent_words(view)[0].partition(": ")[2],
        agent_whole=ValueView(view.message) if is_cut else None,
        form=None if question.form is None else ValueView(question.form),
        hidden_count=count_hidden(view.message),
        changes=() if first is None else find_changes(first, question.arguments or {}),
        edits=tuple(f"{format_edited_arguments(edit)}: edited by {describe_editor(edit)}" for edit in view.edits),
        reasons=() if history is None else history.reasons,
        risk_before=None if history is None or history.first.risk == question.risk else history.first.risk,
        quorum=view.quorum,
        votes=tuple(map(_build_vote_view, view.endorsements)),
        is_open=found.is_open and not execution.is_finished,
        decision=build_decision_view(found),
    )


def _build_vote_view(found: Endorsement) -> VoteView:
    return VoteView(
        principal=escape_text(found.principal),
        assurance=found.assurance,
        channel=escape_text(found.channel),
        at=found.at,
        answer=None if found.content is None else ValueView(found.content),
    )


def read_revision_history(log: Iterable[ev.Recorded], suspension_id: str) -> RevisionHistory | None:
    """The first revision and the reasons for the later ones; None if the question was never revised."""
    first: ev.Question | None = None
    reasons: list[str] = []
    for entry in log:
        event = entry.event
        if isinstance(event, ev.Suspended) and event.question.suspension_id == suspension_id:
            first = event.question
        elif isinstance(event, ev.SuspensionRevised) and event.question.suspension_id == suspension_id:
            reasons.append(escape_text(event.reason))
    return None if first is None or not reasons else RevisionHistory(first=first, reasons=tuple(reasons))


def build_decision_view(found: SuspensionState) -> DecisionView | None:
    """How the question ended; None while it is open."""
    if found.is_open:
        return None
    decision = found.decision
    verdict = found.status.replace("_", " ")
    if found.status == "decided" and decision is not None:
        verdict = "approved" if decision.approved else "rejected"
    return DecisionView(
        verdict=verdict,
        principal=escape_text(found.principal or "nobody"),
        assurance=found.assurance or "",
        channel=escape_text(found.channel or ""),
        at=None if found.decided_at is None else datetime.fromtimestamp(found.decided_at, UTC),
        reason=cut_text(escape_text((decision.reason or "") if decision is not None else ""), 2_000),
        is_edited=decision is not None and decision.modified_args is not None,
    )


def _build_own_call_view(
    execution: ExecutionState,
    view: Suspension,
    question: ev.Question,
    tools: Toolbox,
) -> CallView | None:
    """The call that the question is about; None if it is not about a call."""
    if view.tool_call is None:
        return None
    step, proposed = escape_text(question.step_id or ""), _find_call(execution, view.tool_call.call_id)
    name, arguments = view.tool_call.tool_name, view.tool_call.arguments
    editors = {edited: describe_editor(edit) for edit in view.edits for edited in edit.arguments}
    below = _find_arguments_shown_below(question)
    return _build_call_view(name, arguments, step, tools, proposed, editors, below)


def _build_call_view(
    tool_name: str,
    arguments: Mapping[str, JsonValue],
    step: str,
    tools: Toolbox,
    call: Call | None,
    editors: Mapping[str, str] = MappingProxyType({}),
    stands_below: Mapping[str, str] = MappingProxyType({}),
    *,
    source: str | None = None,
) -> CallView:
    """The call with its arguments; `source` names whose tool it is, for one that is not in the catalogue."""
    definition = tools.get(tool_name)
    if source is None:
        source = escape_text(definition.source) if definition is not None else "no longer registered"
    return CallView(
        tool=escape_text(tool_name),
        source=source,
        step=step,
        arguments=tuple(
            ArgumentView(
                label=format_name(name),
                value=ValueView(value),
                origins=(f"edited by {editors[name]}",) if name in editors else _find_origins(name, call),
                shown_below_as=stands_below.get(name, ""),
            )
            for name, value in arguments.items()
        ),
    )


def _find_origins(name: str, call: Call | None) -> tuple[str, ...]:
    if call is None:
        return ()
    if name not in call.proposed:
        return ("the tool's default",)
    found = [
        f"from the result of {escape_text(step_id)}{f' at {escape_text(pointer)}' if pointer else ''}"
        for step_id, pointer in find_references(call.proposed[name])
    ]
    return tuple(dict.fromkeys(found)) or (("written by the model",) if call.by_model else ("from the plan",))


def _find_arguments_shown_below(question: ev.Question) -> dict[str, str]:
    """The arguments that another part of the page shows: the form to fill in."""
    arguments = (question.arguments or {}).items()
    return {name: "the form" for name, value in arguments if question.form is not None and value == question.form}


def _find_call(execution: ExecutionState, call_id: str) -> Call | None:
    try:
        return execution.call(call_id)
    except IllegalTransition:
        return None
