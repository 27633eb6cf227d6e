"""The state of an execution in sentences: what is proven, where it comes from, why it waits for a provider or gave up.

The message of a failure may quote a provider (see `planwarden.agent.models.failures`) or a tool. So messages are
quoted here as values, which cannot be taken for words of planwarden.
"""

from collections.abc import Collection, Iterator, Sequence

import msgspec

from planwarden.agent.common.errors import count_of
from planwarden.agent.core.control.provider_waits import list_outages
from planwarden.agent.core.execution.state import ExecutionState, ModelOutage, StepState
from planwarden.server.views.decisions import describe_rejection, quote
from planwarden.server.views.escaping import GOAL_CHARS, escape_text, format_value, name_some, shorten_text
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.server.views.status_words import WAITS, WORDS

ERROR_CHARS = 300
MODEL_PATIENCE = "modelPatience"
"""The budget that is used up when a provider does not answer in time."""
GOES_ON_FROM: frozenset[str] = frozenset({"failed", "rejected", "incomplete", "cancelled"})
"""Statuses of executions that ended before their plan was done."""
MAX_NAMED = 20
"""The most steps or calls that one sentence names."""
PROVEN = "Done; every required tool call is proven by the log."
VERSION_CHARS = 12
"""How many characters of a plan's version people see."""
NAME_CHARS = 80
MAX_REUSED = 5
SAVED_PLAN = "Saved plan"
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
    """If the execution gave up on the provider, return how often it had asked, and the last error; otherwise None."""
    outages = list_outages(execution)
    if execution.exhausted != MODEL_PATIENCE or not outages:
        return None
    last = max(outages, key=lambda outage: outage.failed_at)
    times = "once" if last.attempts == 1 else f"{last.attempts} times"
    error = format_value(last.message, ERROR_CHARS)
    return f"the provider was asked {times} without an answer; the last error was {error}"


def describe_proof(state: ExecutionState) -> str:
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
