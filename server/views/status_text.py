"""The state of an execution in sentences: what is proven, where it comes from, why it waits for a provider or gave up.

It also says what happened after a decision: an approved call may fail, and a plan may fail after the call succeeded.
Neither may look like a success.

The message of a failure may quote a provider (see `planwarden.agent.models.failures`) or a tool. So messages are
quoted here as values, which cannot be taken for words of planwarden.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

import msgspec

from planwarden.agent.common.errors import count_of
from planwarden.agent.core.control.provider_waits import list_outages
from planwarden.agent.core.execution.question import Question, RecordedDecision
from planwarden.agent.core.execution.state import ExecutionState, ModelOutage, StepState, SuspensionState
from planwarden.server.views.decisions import (
    describe_proof,
    describe_rejection,
    describe_shortfall,
    name_decider,
    quote,
    quote_claim,
)
from planwarden.server.views.escaping import GOAL_CHARS, ValueView, escape_text, format_value, name_some, shorten_text
from planwarden.server.views.fields import name_rows
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.server.views.status_words import WAITS, WORDS, Tone

ERROR_CHARS = 300
MODEL_PATIENCE = "modelPatience"
"""The budget that is used up when a provider does not answer in time."""
RETRYABLE_STATUSES: frozenset[str] = frozenset({"failed", "rejected", "incomplete", "cancelled"})
"""Statuses of executions that ended before their plan was done."""
MAX_NAMED = 20
"""The most steps or calls that one sentence names."""
PROVEN = "Done; every required tool call is proven by the log."
VERSION_CHARS = 12
"""How many characters of a plan's version people see."""
NAME_CHARS = 80
MAX_REUSED = 5
SAVED_PLAN = "Saved plan"
REASON_CHARS = 2_000
_WORST_FIRST: tuple[Tone, ...] = ("bad", "dim", "warn", "busy", "good")
REHEARSAL = "nothing is done, whatever the answer is"


def build_title(execution: ExecutionState) -> str:
    """Return the first line of the goal, else the saved plan's name, else the first step's description; never empty."""
    first = next((line.strip() for line in (execution.goal or "").splitlines() if line.strip()), "")
    if not first and execution.saved_plan is not None:
        first = execution.saved_plan.name
    if not first and execution.steps:
        first = next(iter(execution.steps.values())).step.description
    return shorten_text(first, GOAL_CHARS) or "A plan that is being written"


def describe_state(execution: ExecutionState) -> str:
    """Return the execution's state as a sentence without its subject and full stop."""
    if execution.status in ("new", "running") and execution.plan is None:
        return "is being planned"
    if execution.status == "suspended":
        return describe_wait({suspension.question.addressee for suspension in execution.open_suspensions})
    if execution.cancel_requested and not execution.is_finished:
        return "is being cancelled"
    if execution.status == "rejected" and (rejection := describe_rejection(execution)):
        return f"ended: {rejection}"
    if lost := describe_lost_patience(execution):
        return f"stopped: {lost}"
    phrase = WORDS["execution"][execution.status].phrase
    if execution.status == "failed" and execution.error_message:
        return f"{phrase}: {format_value(execution.error_message, ERROR_CHARS)}"
    return phrase


def describe_wait(addressees: Collection[str]) -> str:
    """Return in words what the execution waits for: a person, if one is needed, else the assistant or the clock."""
    return next((words for addressee, words in WAITS.items() if addressee in addressees), WAITS["clock"])


def describe_progress(execution: ExecutionState) -> str:
    """Return how many steps are done, such as `2 of 3 steps`; empty before there is a plan."""
    count = len(execution.steps)
    return f"{execution.steps_done} of {count_of(count, 'step')}" if count else ""


def describe_outage(execution: ExecutionState, outage: ModelOutage) -> str | None:
    """Return until when the prompt of the outage waits, and why; None if the prompt is not waiting."""
    suspension = execution.suspensions.get(outage.suspension_id or "")
    if suspension is None or not suspension.is_open or suspension.question.expires_at is None:
        return None
    until = format_instant(to_utc(suspension.question.expires_at))
    error = format_value(outage.message, ERROR_CHARS)
    return f"waits for the provider until {until}, then attempt {outage.attempts + 1}; the last error was {error}"


def describe_next_attempt(execution: ExecutionState) -> str | None:
    """Return what `describe_outage` says about the prompt that will be sent again first; None if no prompt waits."""
    deadlines = {item.question.suspension_id: item.question.expires_at for item in execution.open_suspensions}
    waiting = [item for item in list_outages(execution) if deadlines.get(item.suspension_id or "") is not None]
    first = min(waiting, key=lambda item: deadlines[item.suspension_id or ""] or 0.0, default=None)
    return None if first is None else describe_outage(execution, first)


def describe_lost_patience(execution: ExecutionState) -> str | None:
    """Return how often the execution asked the provider before it gave up, and the last error; otherwise None."""
    outages = list_outages(execution)
    if execution.exhausted != MODEL_PATIENCE or not outages:
        return None
    last = max(outages, key=lambda outage: outage.failed_at)
    times = "once" if last.attempts == 1 else f"{last.attempts} times"
    error = format_value(last.message, ERROR_CHARS)
    return f"the provider was asked {times} without an answer; the last error was {error}"


def describe_what_is_proven(state: ExecutionState) -> str:
    """Return how far the log proves what a completed execution did, in sentences."""
    steps = [*state.steps.values()]
    promising = [step for step in steps if step.step.required_tools]
    exceptions = list(_describe_exceptions(promising, steps))
    proven = sum(1 for step in promising if step.status == "completed" and step.validation == "passed")
    silent = sum(1 for step in steps if not step.step.required_tools and step.status == "completed")
    sentences = ["Done." if exceptions or not proven else PROVEN, *exceptions]
    if exceptions and proven:
        sentences.append("The log proves every required tool call of the others.")
    if silent:
        sentences.append(f"{silent} {'step' if silent == 1 else 'steps'} promised no tool.")
    return " ".join(sentences)


def _describe_exceptions(promising: Sequence[StepState], steps: Sequence[StepState]) -> Iterator[str]:
    """Yield a sentence for each way in which steps did not make the calls that they promised, or did nothing."""
    ways = {
        "is advisory and ended without all of its required calls": [
            state for state in promising if state.status == "completed" and state.validation == "failed"
        ],
        "had no items, so it called nothing": [
            state for state in promising if state.status == "completed" and state.validation == "skipped"
        ],
        "left out items that were rejected": [
            state for state in promising if state.items and any(call.status == "rejected" for call in state.calls)
        ],
        "was skipped": [state for state in steps if state.status == "skipped"],
        "was rejected": [state for state in steps if state.status == "rejected"],
    }
    for way, states in ways.items():
        if states:
            step_names = name_some([repr(state.step.step_id) for state in states], MAX_NAMED)
            yield f"{'Step' if len(states) == 1 else 'Each of steps'} {step_names} {way}."


def advise_after_rejection(state: ExecutionState) -> str:
    """Return who rejected part of the execution, and what the caller should do now."""
    closed = [item for item in state.suspensions.values() if item.decision and not item.decision.approved]
    if any(item.assurance not in ("claimed", "caller", "timeout", None) for item in closed):
        return "A person rejected part of it; do not try the same again. Tell the user what was and was not done."
    if any(item.status == "timed_out" for item in closed):
        return (
            "A question was not answered in time, so its part was not done; no person rejected it. Tell the user what "
            "was and was not done; retry_execution asks again."
        )
    claim = next((item.claim for item in reversed(closed) if item.claim), "")
    reason = f" Your reason (unverified): {quote(claim)}." if claim else ""
    advice = "Tell the user what was and was not done, and that you rejected it."
    return f"You rejected part of it; no person did.{reason} {advice}"


class LineageFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact about where an execution comes from; its texts are escaped."""

    name: str
    text: str
    execution_id: str = ""
    """The other execution that the fact names; empty if it names none."""


def list_lineage_facts(execution: ExecutionState) -> Iterator[LineageFact]:
    """Yield what applies to the execution: its saved plan, the execution that it continues, that it is a rehearsal."""
    if (saved := execution.saved_plan) is not None:
        changed = ", changed since by a model or in a review" if execution.is_revised else ""
        version = f"version {escape_text(saved.digest[:VERSION_CHARS])}"
        yield LineageFact(name=SAVED_PLAN, text=f"{shorten_text(saved.name, NAME_CHARS)}, {version}{changed}")
    if execution.retry_of is not None:
        taken_over = (name for name, state in execution.steps.items() if state.taken_from is not None)
        steps = [shorten_text(name, NAME_CHARS) for name in taken_over]
        reuse_text = f"; took over from there: {name_some(steps, MAX_REUSED)}" if steps else ""
        text = f"execution {escape_text(execution.retry_of)}{reuse_text}"
        yield LineageFact(name="Goes on from", text=text, execution_id=execution.retry_of)
    if execution.options.rehearse:
        yield LineageFact(name="Rehearsal", text=REHEARSAL)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a decision."""

    verdict: str
    """`Approved`, `Rejected`, `Withdrawn`, or `Nobody answered in time:` followed by `rejected` or `approved`."""
    text: str
    """What happened after the decision, in sentences."""
    tone: Tone
    """`good` only if the step is done and nothing after it went wrong."""
    principal: str
    """Who decided; empty if nobody did."""
    proof: str
    """How they decided and what that proves, in words; for a model's rejection, also the reason that it gave."""
    at: datetime | None
    reason: str
    is_edited: bool
    answer: ValueView | None
    """What a person filled in; None if the answer was only yes or no, or a choice of calls."""
    rows: str
    """Which rows were approved; empty if the question has no rows or none was approved."""


def build_outcome(execution: ExecutionState, suspension: SuspensionState) -> Outcome | None:
    """Return what became of the decision about a question; None while the question is open."""
    if suspension.is_open:
        return None
    verdict, is_approved = _describe_verdict(suspension)
    decided = execution.steps.get(suspension.question.step_id or "")
    asking = {item.question.step_id for item in execution.open_suspensions}
    # A suspended step without an open question waits for nothing: the plan has ended, or is about to go on.
    is_not_waiting = decided is None or (decided.status == "suspended" and decided.step.step_id not in asking)
    steps = [] if decided is None or is_not_waiting else [_describe_step(execution, decided)]
    # The first other step that failed, if any, shows why the plan failed.
    steps += [
        _describe_step(execution, state)
        for state in execution.steps.values()
        if state.status == "failed" and state is not decided
    ][:1]
    ending = _describe_ending(execution)
    tells_failure = execution.status == "failed" and any(tone == "bad" for _, tone in steps)
    parts = [*steps, *([] if tells_failure else [ending])]
    tones = [tone for _, tone in (*parts, ending)]
    worst: Tone = next(tone for tone in _WORST_FIRST if tone in tones)
    text = " ".join(sentence for sentence, _ in parts if sentence)
    decision, question = suspension.decision, suspension.question
    is_decided = suspension.status == "decided" and decision is not None
    chooses_calls = question.traits.releases in ("rows", "planned_calls")
    content = None if decision is None or chooses_calls else decision.content
    return Outcome(
        verdict=verdict,
        text=text,
        tone=worst if is_approved else "bad",
        principal=name_decider(suspension.principal, suspension.assurance) if is_decided else "",
        proof=describe_proof(suspension.assurance or "", suspension.channel or "") + quote_claim(suspension)
        if is_decided
        else "",
        at=None if suspension.decided_at is None else to_utc(suspension.decided_at),
        reason=shorten_text((decision.reason or "") if decision is not None else "", REASON_CHARS),
        is_edited=decision is not None and decision.modified_args is not None,
        answer=None if content is None else ValueView(content),
        rows=_name_approved_rows(question, decision) if question.rows and decision is not None else "",
    )


def _name_approved_rows(question: Question, decision: RecordedDecision) -> str:
    """Return which rows an approval chose, as people count them; empty for a rejection."""
    if not decision.approved:
        return ""
    count, rows = len(question.rows), question.choose_rows(decision.content)
    if len(rows) == count:
        return f"all {count} rows"
    return f"{name_rows(rows)} of {count}, without {name_rows([row for row in range(count) if row not in rows])}"


def _describe_ending(execution: ExecutionState) -> tuple[str, Tone]:
    """Return how the whole plan ended or what it waits for, as a sentence; empty while it runs."""
    lost = describe_lost_patience(execution)
    if lost is not None:
        return f"The plan stopped: {lost}.", "bad"
    if execution.wakes_at is not None:
        return f"The plan {describe_next_attempt(execution) or WAITS['clock']}.", "busy"
    if not execution.is_finished and execution.status != "suspended":
        return "", "busy"
    words = WORDS["execution"][execution.status]
    return f"The plan {words.phrase}.", words.tone


def _describe_verdict(suspension: SuspensionState) -> tuple[str, bool]:
    """Return the verdict in words, and whether it is an approval."""
    decision, words = suspension.decision, WORDS["question"]
    is_approved = decision is not None and decision.approved
    verdict = words["approved" if is_approved else "rejected"].word
    if suspension.status == "timed_out":
        return f"{words['timed_out'].word.capitalize()}: {verdict}", is_approved
    if suspension.status == "withdrawn" or decision is None:
        return words["withdrawn"].word.capitalize(), False
    return verdict.capitalize(), is_approved


def _describe_step(execution: ExecutionState, state: StepState) -> tuple[str, Tone]:
    words = WORDS["step"][state.status]
    phrase, tone = words.phrase, words.tone
    questions = [item.question for item in execution.open_suspensions if item.question.step_id == state.step.step_id]
    if state.outage is not None and describe_outage(execution, state.outage) is not None:
        phrase, tone = "waits for the provider", "busy"
    elif state.status == "suspended" and all(question.addressee == "clock" for question in questions):
        phrase = WAITS["clock"]
    elif state.status == "completed":
        shortfall = describe_shortfall(state)
        words = WORDS["step"]["partly" if state.failed_items or state.validation == "failed" else "completed"]
        parts = filter(None, (words.phrase, shortfall))
        phrase, tone = (", " if state.items is None else "; ").join(parts), words.tone
    number = list(execution.steps).index(state.step.step_id) + 1
    # A tool or a server may have written the error. It is quoted, so that nobody takes it for planwarden's own words.
    is_failed = phrase == "failed" and state.error_message
    why = f": {format_value(state.error_message, ERROR_CHARS)}" if is_failed else ""
    return f"Step {number} of {len(execution.steps)} {phrase}{why}.", tone
