"""One question as every channel shows it: a card, built once from the state, and laid out as a page, text or form.

Three voices are never mixed, and each has fields of its own, in the order in which they are shown:

* `heading` and `findings` are planwarden's own sentences: that the tool changed, who edited arguments, that a call is
  a retry. Texts of others appear in them only as quoted JSON.
* The facts are the stored calls that a decision releases, with exact arguments, and the decision's conditions.
* `words` are the asker's, under `label`, with nothing from planwarden; for an approval they are the step's
  description. Only words of the operator's own plan count as verified.

Every `str` of a card is escaped and on one line, except those whose description says that they are not for display.
Values are whole; a renderer cuts them.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache, partial
from typing import Literal

import msgspec

from planwarden.agent.common.errors import count_of
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import has_bindings
from planwarden.agent.core.execution.events import MODEL_ASSURANCES
from planwarden.agent.core.execution.question import Question
from planwarden.agent.core.execution.state import Call, ExecutionState, SuspensionState
from planwarden.agent.core.plan.plan import plan_to_json
from planwarden.agent.core.tool import is_of_host
from planwarden.agent.ports.toolbox import Definitions
from planwarden.server.views.card_calls import (
    CardCall,
    PlannedStep,
    ToolNote,
    build_call,
    build_own_call,
    list_covered,
    list_planned_steps,
    list_rows,
    note_tool,
)
from planwarden.server.views.decisions import describe_editor, describe_proof
from planwarden.server.views.escaping import (
    GOAL_CHARS,
    ArgumentChange,
    ValueView,
    capitalize,
    count_hidden_in,
    cut_text,
    escape_text,
    find_changes,
    find_mixed_words,
    format_argument_name,
    format_value,
    measure_text,
    name_some,
    shorten_text,
)
from planwarden.server.views.instants import format_age, to_utc
from planwarden.server.views.status_text import LineageFact, Outcome, build_outcome, list_lineage_facts

AGENT_CHARS = 500
ASKER_CHARS = 3_000
"""The limit in place of `AGENT_CHARS` if a server or another agent asks: a person must see its whole question."""
_ASKED_BY_THE_AGENT = ("displayConfirmation", "requestInput")
"""Built-in tools whose questions consist of the agent's words."""
_EXPLAINS = re.compile(
    r"One question for |If the tool says that it failed, |Rule \d+ applies|There will be one question |\d+ step\(s\); "
    r"|Calls of |The answer can cover |Only the run will know |A model writes |The identical call was made again"
)
"""The beginnings of sentences that say how a question works; all other sentences are warnings."""
AnswerKind = Literal["yes", "rows", "form", "plan", "reconcile"]
"""What a person sends in addition to yes or no: nothing, rows, a filled-in form, an edited plan, or what happened."""


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """One person's approval of a question that needs several approvals."""

    name: str
    """Who approved; not for display."""
    proof: str
    """How they approved and what that proves, in words."""
    at: datetime
    answer: ValueView | None
    """What they answered, where the question asks for more than yes."""

    @property
    def principal(self) -> str:
        return escape_text(self.name)


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One question."""

    question: Question
    """The question as it is stored; its texts are not for display."""
    execution_id: str
    owner: str
    asked_at: datetime
    age: str
    """How long ago the question was asked, for pages without script."""
    heading: str
    """The question in planwarden's own words, or who asks."""
    title: str
    """The heading for lists and notices, with the tool's name if the question is about a call."""
    place: str
    """The step, or the plan's size, and the goal, such as `Step 2 of 3 of "Remind customers"`; may be empty."""
    step: str
    """The id of the step; empty for a question outside steps."""
    host: str
    """The program that asked for the execution, as it names itself."""
    findings: tuple[str, ...]
    """What planwarden found, in sentences."""
    call: CardCall | None
    """The call that the question is about."""
    steps: tuple[PlannedStep, ...]
    """For a review: the steps of the plan."""
    plan: dict[str, JsonValue] | None
    """For a review: the plan, as a person may edit it; not for display."""
    covered: tuple[CardCall, ...]
    """Later calls that the same decision covers; in a review, only if the answer says so."""
    rows: tuple[CardCall, ...]
    """The calls of a loop, if this one question is about many of them."""
    released: tuple[CardCall, ...]
    """Calls that the asking agent says it will make after an approval."""
    asker: str
    """Who asks; empty if planwarden itself asks."""
    votes: tuple[Vote, ...]
    """The approvals so far, if the question needs several."""
    expires_at: datetime | None
    lineage: tuple[LineageFact, ...]
    """Where the execution and the step come from."""
    label: str
    """The author of the `words`, which are marked as unverified unless they come from the operator's own plan."""
    words: str
    """The words of the asker, cut to `AGENT_CHARS` or `ASKER_CHARS`; empty if they only name the tool."""
    message: ValueView
    """All of the asker's words, uncut."""
    form: ValueView | None
    """The whole form as it was asked for, including what its fields do not show."""
    changes: tuple[ArgumentChange, ...]
    """The differences from the first revision."""
    risk_before: str | None
    """The first risk, if the risk has changed since."""
    is_open: bool
    decision: Outcome | None
    """How the question ended; None while it is open."""

    @property
    def where(self) -> str:
        """The place and the host, such as `Step 2 of 3 of "Remind customers" \u00b7 Claude Code`."""
        return " \u00b7 ".join(filter(None, (self.place, self.host)))

    @property
    def whole_words(self) -> str:
        return escape_text(str(self.message.value))

    @property
    def answer_kind(self) -> AnswerKind:
        if self.question.kind == "reconcile":
            return "reconcile"
        if self.plan is not None:
            return "plan"
        return "form" if self.question.form is not None else "rows" if self.question.rows else "yes"

    @property
    def may_edit(self) -> bool:
        """Whether a person may change the arguments; never those of a call by a host or another asker."""
        is_own = not self.question.asker and not is_of_host(self.question.tool_name or "")
        return self.answer_kind == "yes" and self.call is not None and is_own

    @property
    def needs_warning(self) -> bool:
        """Whether the card needs a warning: something changed, or a finding says more than how the question works."""
        return bool(self.changes or self.risk_before) or not all(map(_EXPLAINS.match, self.findings))

    @property
    def is_yes_or_no(self) -> bool:
        """Whether yes or no is a complete answer, so that a person can decide the question together with others."""
        return self.question.kind in ("approval", "confirmation") and not self.rows

    @property
    def can_be_granted(self) -> bool:
        """Whether a person who may approve this call may also allow similar calls in advance."""
        is_one_word_enough = self.question.needs in ("client", "human") and self.question.quorum == 1
        return self.question.traits.is_about_calls and self.call is not None and is_one_word_enough

    @property
    def repeated_argument(self) -> str | None:
        """The name of the argument whose value repeats the words, or None; the argument itself is always shown."""
        return _find_repeated_argument(self.question)

    @property
    def form_titles(self) -> dict[str, JsonValue]:
        """The form's own title and description, which no field shows; not for display."""
        form = self.question.form or {}
        return {key: form[key] for key in ("title", "description") if key in form}


def build_card(
    execution: ExecutionState, suspension: SuspensionState, tools: Definitions | None, now: float = 0.0
) -> Card:
    """Return the card of a question; without `tools`, leave out how tools describe themselves."""
    question, note = suspension.question, cache(partial(note_tool, tools))
    call = execution.find_call(question.call_id or "")
    plan = plan_to_json(execution.plan) if question.kind == "review" and execution.plan is not None else None
    speaker, is_verified = _name_speaker(execution, suspension, call)
    steps, planned = tuple(list_planned_steps(plan, note)), list(execution.steps)
    place = f"Step {planned.index(question.step_id) + 1} of {len(planned)}" if question.step_id in planned else ""
    if plan is not None:
        place = f"Plan of {count_of(len(planned), 'step')}"
    first, asker = suspension.first or question, escape_text(question.asker)
    return Card(
        question=question,
        execution_id=execution.execution_id,
        owner=escape_text(execution.principal),
        asked_at=to_utc(suspension.created_at),
        age=format_age(now - suspension.created_at),
        heading=_build_heading(question),
        title=_build_title(question),
        place=f"{place} of {format_value(execution.goal, GOAL_CHARS)}" if place and execution.goal else place,
        step=shorten_text(question.step_id or "", GOAL_CHARS),
        host=format_host(execution.host or ""),
        findings=tuple(_list_findings(question, steps)),
        call=build_own_call(execution, question, call, note),
        steps=steps,
        plan=plan,
        covered=() if question.rows else tuple(list_covered(execution, question, note)),
        rows=tuple(list_rows(execution, suspension, note)),
        released=tuple(
            build_call(
                ToolNote(name=remote.tool_name, label=escape_text(remote.tool_name), source=asker), remote.arguments
            )
            for remote in question.releases
        ),
        asker=asker,
        votes=tuple(
            Vote(
                name=vote.principal,
                proof=describe_proof(vote.assurance, vote.channel),
                at=to_utc(vote.at),
                answer=None if vote.content is None else ValueView(vote.content),
            )
            for vote in suspension.endorsements
        ),
        expires_at=None if question.expires_at is None else to_utc(question.expires_at),
        lineage=tuple(list_lineage_facts(execution)),
        label=f"{capitalize(escape_text(speaker))} says{'' if is_verified else ' (unverified)'}",
        words=_cut_words(question),
        message=ValueView(question.message),
        form=None if question.form is None else ValueView(question.form),
        changes=find_changes(_map_arguments(first), _map_arguments(question)),
        risk_before=None if first.risk == question.risk else first.risk,
        is_open=suspension.is_open and not execution.is_finished,
        decision=build_outcome(execution, suspension),
    )


def format_host(name: str) -> str:
    """Return the name of a program; put it in quotes if its characters could make it look like a sentence."""
    is_plain = name.isascii() and all(part.isalnum() or part in " _-./:@()" for part in name)
    return name if is_plain else format_value(name)


def _build_heading(question: Question) -> str:
    if question.asker:
        return f"{capitalize(escape_text(question.asker))} asks"
    if len(question.rows) > 1:
        return f"Run these {len(question.rows)} calls?"
    return question.traits.heading


def _build_title(question: Question) -> str:
    if question.traits.is_about_calls and question.call_id is not None:
        return f"Run {escape_text(question.tool_name or '')}?"
    if question.rows:
        names = sorted({escape_text(row.tool_name) for row in question.rows})
        return f"Run {', '.join(names)} {len(question.rows)} times?"
    return _build_heading(question)


def _name_speaker(execution: ExecutionState, suspension: SuspensionState, call: Call | None) -> tuple[str, bool]:
    """Return who wrote the question's words, and whether they are exactly the words of the operator's own plan."""
    question, first = suspension.question, suspension.first or suspension.question
    tool_name = question.tool_name if question.call_id is not None else None
    if question.asker:
        return question.asker, False
    if tool_name is not None and execution.host and (is_of_host(tool_name) or execution.options.is_literal):
        # The host's hook, or the call itself, says what the host is about to do.
        return execution.host, False
    if tool_name not in (None, *_ASKED_BY_THE_AGENT) and question.traits.is_verbatim:
        return f"tool {tool_name!r}", False
    is_own = (execution.is_operators or execution.saved_plan is not None) and question.addressee != "caller"
    is_edited = question.message != first.message or any(edit.assurance in MODEL_ASSURANCES for edit in question.edits)
    if not is_own or execution.is_revised or is_edited or (call is not None and call.by_model):
        return "the agent", False
    takes_values = not question.traits.is_about_calls and call is not None and has_bindings(call.proposed)
    return "the plan", not takes_values


def _cut_words(question: Question) -> str:
    if question.traits.is_about_calls and question.message == question.tool_name:
        return ""
    limit = ASKER_CHARS if question.asker else AGENT_CHARS
    words = escape_text(question.message[: limit + 1])
    if measure_text(words) <= limit and len(question.message) <= limit:
        return words
    note = f"... [{len(question.message)} characters]"
    return cut_text(words, limit - len(note)) + note


def _list_findings(question: Question, steps: Iterable[PlannedStep]) -> Iterator[str]:
    yield from map(escape_text, question.found)
    if (rule := question.rule) is not None:
        matched = f"; here {', '.join(map(escape_text, rule.matched))}" if rule.matched else ""
        yield f"Rule {rule.number} applies: {escape_text(rule.words)}{matched}."
    for edit in question.edits:
        editor = describe_editor(edit)
        # A person's name is not capitalized.
        start = capitalize(editor) if editor.startswith("the ") else editor
        yield f"{start} edited after it was asked: {', '.join(map(_name_edited, edit.arguments))}."
    if question.revision > 1 and not question.found and not question.edits:
        yield f"This is revision {question.revision}: something changed since it was first asked."
    if question.undecidable:
        yield f"It cannot be approved here, only rejected: {escape_text(question.undecidable)}"
    values = list(_list_foreign_values(question, steps))
    if escaped := sum(map(count_hidden_in, values)):
        yield f"Control or invisible characters escaped: {escaped}."
    if mixed := {word: None for value in values for word in find_mixed_words(value)}:
        words = name_some([shorten_text(word, 40) for word in mixed], 3)
        yield f"Words mix letters of several alphabets, which can look alike: {words}."


def _list_foreign_values(question: Question, steps: Iterable[PlannedStep]) -> Iterator[JsonValue]:
    """Yield all shown values that come from outside. If an argument repeats the words, yield them only once."""
    repeated = _find_repeated_argument(question)
    yield question.message
    yield {name: value for name, value in (question.arguments or {}).items() if name != repeated}
    yield from (call.arguments for call in (*question.covers, *question.releases))
    for step in steps:
        yield {key: value.value for key, value in step.facts}
        yield from (call.values for call in step.calls)


def _find_repeated_argument(question: Question) -> str | None:
    arguments = question.arguments or {} if question.call_id is not None else {}
    return next((name for name, value in arguments.items() if value == question.message), None)


def _name_edited(path: str) -> str:
    """Return the name of an edited argument; for an argument in a row, written `ROW/NAME`, add the row's number."""
    row_index, _, argument = path.partition("/")
    if argument and row_index.isascii() and row_index.isdecimal():
        return f"{format_argument_name(argument, None)} of row {int(row_index) + 1}"
    return format_argument_name(path, None)


def _map_arguments(question: Question) -> dict[str, JsonValue]:
    """Return the arguments that somebody may edit; names of arguments in rows begin with the row's number."""
    if not question.rows:
        return question.arguments or {}
    rows = enumerate(question.rows, 1)
    return {f"row {number}: {name}": value for number, row in rows for name, value in row.arguments.items()}
