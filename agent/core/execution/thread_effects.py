"""The effects of a thread: calls that changed something, or may have. A question about a repeat mentions them.

Every execution of a thread begins with the newest effects of all earlier executions, so that these are not forgotten
after a retry, a cancelled plan or a new plan. Two calls are the same if their tool and arguments are the same.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from operator import itemgetter

from msgspec.structs import replace

from planwarden.agent.common.canonical import canonical_json, digest, normalize_numbers
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.question import Question
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.core.tool import is_of_host

MAX_EFFECTS = 1_000
"""The most effects that an execution remembers; beyond that, it first forgets those that no person approved."""
MAX_SUMMARIES = 100
"""The number of newest effects whose arguments can be shown; older ones keep only a digest of their arguments."""
MAX_SHOWN_CHARS = 80
"""The most characters of an effect's arguments to show."""
MAX_TOLD = 5
DIGEST_CHARS = 32
REPEAT = "The same call"
"""The first words of the sentence in which a question tells of an earlier effect."""


def list_thread_effects(execution: ExecutionState) -> tuple[ev.ThreadEffect, ...]:
    """Return the newest effects of the thread, including those of this finished execution, oldest first.

    If there are too many, those that no person approved are left out first, so a model cannot push out the others.
    """
    calls = (
        (_was_approved(execution, call), call.intended_at or 0.0, call)
        for state in execution.steps.values()
        for call in state.calls
        if _had_effect(call)
    )
    newest = sorted(nlargest(MAX_EFFECTS, calls, key=itemgetter(0, 1)), key=itemgetter(1))
    effects = [*execution.thread_effects, *(_remember(call, is_approved=approved) for approved, _, call in newest)]
    indexes = nlargest(MAX_EFFECTS, range(len(effects)), key=lambda index: (effects[index].is_approved, index))
    newest_first = [effects[index] for index in sorted(indexes, reverse=True)]
    older = [replace(effect, summary="") for effect in newest_first[MAX_SUMMARIES:]]
    return tuple(reversed([*newest_first[:MAX_SUMMARIES], *older]))


def _was_approved(execution: ExecutionState, call: Call) -> bool:
    suspensions = (execution.suspensions[name] for name in call.consumed if name in execution.suspensions)
    # A time-out may let a call run too, but then nobody approved it.
    return any(
        suspension.status == "decided" and suspension.question.addressee == "human" for suspension in suspensions
    )


def _had_effect(call: Call) -> bool:
    """Return whether the call had an effect in this execution, or may have had one."""
    is_own = call.intended_at is not None and not call.origin and not is_of_host(call.tool_name)
    return is_own and call.effect == "effect" and call.status in ("succeeded", "outcome_unknown")


def _remember(call: Call, *, is_approved: bool) -> ev.ThreadEffect:
    text = canonical_json(call.arguments)
    return ev.ThreadEffect(
        tool_name=call.tool_name,
        arguments=_compute_key(call.arguments),
        at=call.intended_at or 0.0,
        step_id=call.step_id,
        summary=text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}...",
        is_unknown=call.status == "outcome_unknown",
        is_approved=is_approved,
    )


def _compute_key(arguments: JsonValue) -> str:
    return digest(normalize_numbers(arguments))[:DIGEST_CHARS]


def describe_repeats(execution: ExecutionState, question: Question) -> Iterator[str]:
    """Yield sentences about calls that the question releases and that ran, or may have run, earlier in the thread."""
    if not execution.thread_effects:
        return
    earlier = {(effect.tool_name, effect.arguments): effect for effect in execution.thread_effects}
    repeats = [
        (name, effect)
        for name, tool_name, arguments in _list_released(question)
        if (effect := earlier.get((tool_name, _compute_key(arguments)))) is not None
    ]
    for name, effect in repeats[:MAX_TOLD]:
        yield f"{REPEAT}{name} {describe_effect(effect)}."
    if len(repeats) > MAX_TOLD:
        yield f"{REPEAT} ran, or may have run, in this thread before for {len(repeats) - MAX_TOLD} more of these calls."


def _list_released(question: Question) -> Iterator[tuple[str, str, JsonValue]]:
    """Yield, for each call that an approval lets run, its phrase in a sentence, its tool, and its arguments."""
    if question.traits.releases == "call":
        yield "", question.tool_name or "", question.arguments
    for index, row in enumerate(question.covers):
        name = f" as row {index + 1}" if question.rows else f" of {row.tool_name} as in step {row.step_id!r}"
        yield name, row.tool_name, row.arguments


def format_effects(effects: Sequence[ev.ThreadEffect], limit: int) -> str:
    """Return a line of a prompt for each of the last `limit` effects, and a line about how many came before them."""
    lines = [f"{effect.tool_name} {effect.summary} {describe_effect(effect)}" for effect in effects[-limit:]]
    return "\n".join([*lines, *([f"and {describe_older(effects, limit)}"] if len(effects) > limit else [])])


def describe_older(effects: Sequence[ev.ThreadEffect], limit: int) -> str:
    """Return how many effects came before the last `limit`, as the end of a sentence."""
    capped = f"; at most {MAX_EFFECTS} are remembered" if len(effects) >= MAX_EFFECTS else ""
    return f"{len(effects) - limit} more before these (a question about a repeat says so){capped}"


def describe_effect(effect: ev.ThreadEffect) -> str:
    """Return when and where the effect ran, as the end of a sentence."""
    moment = datetime.fromtimestamp(effect.at, UTC).strftime("%Y-%m-%d at %H:%M UTC")
    where = f"in this thread on {moment}, in step {effect.step_id!r} of an earlier plan"
    return f"may have run {where}; nobody knows whether it did" if effect.is_unknown else f"ran {where}"
