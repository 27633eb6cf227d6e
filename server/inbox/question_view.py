"""What a page shows of a question: built from the stored question and the folded log, with every text escaped.

The voices are those of `planwarden.server.views.question_text`, which builds the text whose digest a decision records.
A page shows whole values and the origin of each of them.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core import events as ev
from planwarden.agent.core.bindings import INPUTS, ITEM, ITEM_INDEX, EarlierResult, Reference, find_references
from planwarden.agent.core.state import Call, ExecutionState, SuspensionState
from planwarden.agent.core.suspension_kinds import KINDS, SuspensionKind
from planwarden.agent.core.tool import ToolDefinition, is_of_host
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.inbox.value_view import ArgumentChange, ValueView, find_changes, format_name
from planwarden.server.views.facts import (
    PlannedStep,
    count_hidden_in,
    cut_text,
    describe_claimant,
    describe_source,
    escape_text,
    format_value,
    list_planned_steps,
)
from planwarden.server.views.instants import format_age
from planwarden.server.views.lineage_facts import LineageFact, list_lineage_facts
from planwarden.server.views.outcome import Outcome, build_outcome
from planwarden.server.views.question_text import (
    GOAL_CHARS,
    build_label,
    build_title,
    describe_editor,
    describe_proof,
    format_found,
    format_host,
    format_words,
    name_decider,
)
from planwarden.server.views.row_ranges import format_ranges
from planwarden.server.views.suspension import (
    Endorsement,
    Suspension,
    build_edit_views,
    build_suspension_view,
    read_titles,
)

_OWN = {INPUTS: "from the inputs", ITEM: "from the item", ITEM_INDEX: "the number of the item"}
_EXPLAINS = re.compile(
    r"One question for |If the tool says that it failed, |Rule \d+ applies|There will be one question |\d+ step\(s\); "
    r"|Calls of |The answer can cover |Only the run will know |A model writes "
)
"""Begins sentences that say how a question works; all others warn."""
CLAIM_CHARS = 500
"""Longest description of a tool that a page shows."""


class ArgumentView(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    title: str
    """What the tool's schema calls it; empty if it says nothing else."""
    value: ValueView
    origins: tuple[str, ...]
    """Where the value came from, as far as the log proves it."""
    shown_below_as: str = ""
    """Names the part of the page that shows this value: the form to fill in."""
    is_edited: bool = False
    """Somebody edited it, as its origin says."""


class PlannedStepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a plan under review."""

    heading: str
    calls: tuple["CallView", ...]
    facts: tuple[tuple[str, ValueView], ...]


class CallView(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One call that a decision releases."""

    tool: str
    source: str
    claim: str
    """How the tool's source describes it, with who says so, quoted; empty for tools of planwarden."""
    step: str
    arguments: tuple[ArgumentView, ...]

    @cached_property
    def by_label(self) -> dict[str, ArgumentView]:
        return {argument.label: argument for argument in self.arguments}


class QuestionView(msgspec.Struct, frozen=True, kw_only=True):
    """One question, as the pages show it."""

    suspension_id: str
    execution_id: str
    thread_id: str
    kind: SuspensionKind
    title: str
    """Planwarden's question."""
    place: "PlaceView"
    lineage: tuple[LineageFact, ...]
    """Where the execution and the step come from."""
    found: tuple[str, ...]
    """What planwarden found, in sentences."""
    call: CallView | None
    steps: tuple[PlannedStepView, ...]
    """For a review: the steps of the plan."""
    plan: dict[str, JsonValue] | None
    """For a review: the plan, as a person may edit it."""
    covered: tuple[CallView, ...]
    """Calls that the same decision covers; not the rows of a loop, of which a page shows a part."""
    row_count: int
    """Calls of the one question about many calls of a loop; 0 for every other question."""
    released: tuple[CallView, ...]
    """Calls that the asking agent makes after an approval, as it says."""
    asker: str
    """Who asks, if it is not planwarden."""
    is_undecidable: bool
    """It cannot be approved here; `found` says why."""
    risk: str | None
    needs: str | None
    digest: str
    revision: int
    asked_at: datetime
    age: str
    """How long ago it was asked, for pages without script."""
    expires_at: datetime | None
    on_timeout: str
    step: str
    owner: str
    label: str
    """Says whose `words` these are."""
    words: str
    words_whole: ValueView | None
    """All of the words, if `words` is cut."""
    form: ValueView | None
    """The form as it was asked for, whole, with what its fields do not show."""
    changes: tuple[ArgumentChange, ...]
    """The differences from the first revision."""
    risk_before: str | None
    """The first risk, if the risk has changed since."""
    quorum: int
    votes: "tuple[VoteView, ...]"
    """The approvals so far, if the question needs several."""
    is_open: bool
    decision: "DecisionView | None"

    @property
    def is_warned(self) -> bool:
        """What planwarden found is more than how the question works."""
        return bool(self.changes or self.risk_before) or not all(map(_EXPLAINS.match, self.found))

    @property
    def is_yes_or_no(self) -> bool:
        """Yes or no answers the question completely, so a person can decide it together with others."""
        return self.kind in ("approval", "confirmation") and not self.row_count

    @property
    def can_be_granted(self) -> bool:
        """A person who may approve this call may also allow calls like it in advance."""
        is_one_word_enough = self.needs in ("client", "human") and self.quorum == 1
        return self.kind == "approval" and self.call is not None and is_one_word_enough

    @property
    def is_asked_in_words(self) -> bool:
        """The decision is about somebody's words, which are the heading then, and not about a call of planwarden's."""
        return KINDS[self.kind].resumes_tool


class PlaceView(msgspec.Struct, frozen=True, kw_only=True):
    """Where the question stands: which step of what, and which program asked for it."""

    step_number: int
    step_count: int
    goal: str
    host: str


class VoteView(msgspec.Struct, frozen=True, kw_only=True):
    """One person's approval of a question that needs several approvals."""

    principal: str
    proof: str
    """How they approved and what that proves, in words."""
    at: datetime
    answer: ValueView | None
    """What they answered, where the question asks for more than yes."""


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """How a question ended, and what became of that."""

    outcome: Outcome
    principal: str
    """Who decided; empty if nobody did."""
    proof: str
    at: datetime | None
    reason: str
    is_edited: bool
    answer: ValueView | None = None
    """What a person filled in; None where yes or no was the answer."""
    rows: str = ""
    """Which rows were approved; empty where there were none."""


def build_question_view(
    execution: ExecutionState,
    found: SuspensionState,
    tools: Toolbox,
    now: float,
    first: ev.Question | None = None,
) -> QuestionView:
    """The view of one suspension; with `first`, it shows the differences from that first revision."""
    view = build_suspension_view(execution, found, tools)
    question, place, words = found.question, view.background, format_words(view)
    # Every other value says below itself how many of its characters are escaped.
    escaped = count_hidden_in(view.message)
    return QuestionView(
        suspension_id=view.suspension_id,
        execution_id=view.execution_id,
        thread_id=view.thread_id,
        kind=view.kind,
        title=build_title(view),
        place=PlaceView(
            step_number=place.step_number,
            step_count=place.step_count,
            goal=cut_text(escape_text((place.goal or "")[:GOAL_CHARS]), GOAL_CHARS),
            host=format_host(place.host or ""),
        ),
        lineage=tuple(list_lineage_facts(place.lineage)),
        found=tuple(format_found(view, escaped_count=escaped)),
        call=_build_own_call_view(execution, view, question, tools),
        steps=tuple(_build_step_view(step, tools) for step in list_planned_steps(view)),
        plan=place.plan,
        covered=tuple(
            _build_call_view(c.tool_name, c.arguments, escape_text(c.step_id), tools, None) for c in view.confirms
        ),
        row_count=len(view.calls),
        released=tuple(
            _build_call_view(call.tool_name, call.arguments, "", tools, None, source=escape_text(view.asker or ""))
            for call in view.releases
        ),
        asker=escape_text(view.asker or ""),
        is_undecidable=view.undecidable is not None,
        risk=view.risk,
        needs=view.needs,
        digest=view.digest,
        revision=view.revision,
        asked_at=view.created_at,
        age=format_age(now - found.created_at),
        expires_at=view.expires_at,
        on_timeout=view.on_timeout,
        step=cut_text(escape_text(question.step_id or ""), GOAL_CHARS),
        owner=escape_text(execution.principal),
        label=build_label(view),
        words=words,
        words_whole=None if words == format_words(view, is_cut=False) else ValueView(view.message),
        form=None if question.form is None else ValueView(question.form),
        changes=() if first is None else _find_changes_since(first, question),
        risk_before=None if first is None or first.risk == question.risk else first.risk,
        quorum=view.quorum,
        votes=tuple(map(_build_vote_view, view.endorsements)),
        is_open=found.is_open and not execution.is_finished,
        decision=build_decision_view(execution, found),
    )


def _find_changes_since(first: ev.Question, question: ev.Question) -> tuple[ArgumentChange, ...]:
    """The arguments that are not those first asked about; of rows with the place of each."""
    if not question.rows:
        return find_changes(first.arguments or {}, question.arguments or {})
    before, after = dict[str, JsonValue](), dict[str, JsonValue]()
    for number, (was, becomes) in enumerate(zip(first.covers, question.covers, strict=False), 1):
        before |= {f"row {number}: {name}": value for name, value in was.arguments.items()}
        after |= {f"row {number}: {name}": value for name, value in becomes.arguments.items()}
    return find_changes(before, after)


def build_row_call(question: ev.Question, place: int, tools: Toolbox, call: Call | None) -> CallView:
    """The call of one row of a question about many, with who edited which of its arguments."""
    row, start = question.covers[place], f"{place}/"
    editors = {
        name.removeprefix(start): describe_editor(view)
        for view in build_edit_views(question)
        for name in view.arguments
        if name.startswith(start)
    }
    return _build_call_view(row.tool_name, row.arguments, "", tools, call, editors)


def _build_step_view(step: PlannedStep, tools: Toolbox) -> PlannedStepView:
    return PlannedStepView(
        heading=step.heading,
        calls=tuple(_build_call_view(name, arguments, "", tools, None) for name, arguments in step.calls),
        facts=tuple((key, ValueView(value)) for key, value in step.shown.items()),
    )


def _build_vote_view(found: Endorsement) -> VoteView:
    return VoteView(
        principal=escape_text(found.principal),
        proof=describe_proof(found.assurance, found.channel),
        at=found.at,
        answer=None if found.content is None else ValueView(found.content),
    )


def read_first_revision(log: Iterable[ev.Recorded], suspension_id: str) -> ev.Question | None:
    """The question as it was first asked."""
    return next(
        (
            entry.event.question
            for entry in log
            if isinstance(entry.event, ev.Suspended) and entry.event.question.suspension_id == suspension_id
        ),
        None,
    )


def build_decision_view(execution: ExecutionState, found: SuspensionState) -> DecisionView | None:
    """How the question ended; None while it is open."""
    outcome, decision = build_outcome(execution, found), found.decision
    if outcome is None:
        return None
    is_decided = found.status == "decided" and decision is not None
    return DecisionView(
        outcome=outcome,
        principal=name_decider(found.principal, found.assurance) if is_decided else "",
        proof=describe_proof(found.assurance or "", found.channel or "") if is_decided else "",
        at=None if found.decided_at is None else datetime.fromtimestamp(found.decided_at, UTC),
        reason=cut_text(escape_text((decision.reason or "") if decision is not None else ""), 2_000),
        is_edited=decision is not None and decision.modified_args is not None,
        answer=None if decision is None else _build_answer(found.question, decision),
        rows=_describe_rows(found.question, decision) if decision is not None and decision.approved else "",
    )


def _build_answer(question: ev.Question, decision: ev.RecordedDecision) -> ValueView | None:
    chooses_calls = question.traits.releases in ("rows", "planned_calls")
    return None if decision.content is None or chooses_calls else ValueView(decision.content)


def _describe_rows(question: ev.Question, decision: ev.RecordedDecision) -> str:
    """Which rows an approval chose, as people count them."""
    if not question.rows:
        return ""
    count, chosen = len(question.rows), question.choose_rows(decision.content)
    if len(chosen) == count:
        return f"all {count} rows"
    left = [place for place in range(count) if place not in chosen]
    return f"{_name_rows(chosen)} of {count}, without {_name_rows(left)}"


def _name_rows(places: Collection[int]) -> str:
    return f"{'row' if len(places) == 1 else 'rows'} {format_ranges(places).replace(',', ', ')}"


def _build_own_call_view(
    execution: ExecutionState,
    view: Suspension,
    question: ev.Question,
    tools: Toolbox,
) -> CallView | None:
    """The call that the question is about; None if it is not about a call."""
    if view.tool_call is None:
        return None
    step, proposed = escape_text(question.step_id or ""), find_call(execution, view.tool_call.call_id)
    name, arguments = view.tool_call.tool_name, view.tool_call.arguments
    editors = {edited: describe_editor(edit) for edit in view.edits for edited in edit.arguments}
    below = _find_arguments_shown_below(question)
    return _build_call_view(name, arguments, step, tools, proposed, editors, below, earlier=execution.earlier)


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
    earlier: Mapping[Reference, EarlierResult] = MappingProxyType({}),
) -> CallView:
    """The call with its arguments; `source` names whose tool it is, for one that is not in the catalogue."""
    definition = tools.get(tool_name) if source is None else None
    titles = {} if definition is None else read_titles(definition.input_schema)
    return CallView(
        tool=escape_text(tool_name),
        source=source or _describe_source(tool_name, definition),
        claim=_format_claim(definition),
        step=step,
        arguments=tuple(
            ArgumentView(
                label=format_name(name),
                title=escape_text(titles.get(name, "")),
                value=ValueView(value),
                origins=(f"edited by {editors[name]}",) if name in editors else _find_origins(name, call, earlier),
                shown_below_as=stands_below.get(name, ""),
                is_edited=name in editors,
            )
            for name, value in arguments.items()
        ),
    )


def _describe_source(tool_name: str, definition: ToolDefinition | None) -> str:
    if is_of_host(tool_name):
        return "the host's own tool"
    return describe_source(None if definition is None else definition.source)


def _format_claim(definition: ToolDefinition | None) -> str:
    said = "" if definition is None or definition.source == "builtin" else " ".join(definition.description.split())
    if definition is None or not said:
        return ""
    shown = said if len(said) <= CLAIM_CHARS else f"{said[: CLAIM_CHARS - 3]}..."
    return f"{describe_claimant(definition.source)} says of it: {format_value(shown, None)}"


def _find_origins(name: str, call: Call | None, earlier: Mapping[Reference, EarlierResult]) -> tuple[str, ...]:
    if call is None:
        return ()
    if name not in call.proposed:
        return ("the tool's default",)
    found = [_describe_origin(taken, earlier.get(taken)) for taken in find_references(call.proposed[name])]
    if found:
        return tuple(dict.fromkeys(found))
    if is_of_host(call.tool_name):
        return ("from the host",)
    return ("written by the model" if call.by_model else "from the plan",)


def _describe_origin(taken: Reference, earlier: EarlierResult | None) -> str:
    where = f" at {escape_text(taken.pointer)}" if taken.pointer else ""
    if earlier is None and taken.step_id in _OWN:
        return f"{_OWN[taken.step_id]}{where}"
    read = ", read as JSON" if taken.parse else ""
    execution = "" if earlier is None else f" in the earlier execution {escape_text(earlier.execution_id)}"
    return f"from the result of {escape_text(taken.step_id)}{where}{execution}{read}"


def _find_arguments_shown_below(question: ev.Question) -> dict[str, str]:
    """The arguments that another part of the page shows: the form to fill in."""
    arguments = (question.arguments or {}).items()
    return {name: "the form" for name, value in arguments if question.form is not None and value == question.form}


def find_call(execution: ExecutionState, call_id: str) -> Call | None:
    try:
        return execution.call(call_id)
    except IllegalTransition:
        return None
