"""The one question about many calls of a loop, with a row for each call that needs a person.

The question's `covers` are the rows, with the arguments exactly as they will run. An approval covers all rows, or only
those that the answer names in `content.items`. Each covered row releases its own call once; the others are rejected.
"""

from collections.abc import Iterator
from itertools import chain, islice
from math import inf

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.authorize import Allow, Ask, authorize, judge_row, list_confirmations
from planwarden.agent.approval.business_keys import check_looked_up, explain_duplicate, find_key
from planwarden.agent.approval.context import ApprovalContext, CallRequest, complete_arguments
from planwarden.agent.approval.covering_confirmations import build_covered_call
from planwarden.agent.approval.questions import (
    MESSAGE_CHARS,
    describe_attempts,
    describe_placeholders,
    find_silent_approval_s,
    limit_on_timeout,
    open_question,
)
from planwarden.agent.common.canonical import canonical_json, measure_at_least
from planwarden.agent.common.errors import InvalidArguments, Needed
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.control.retry_reuse import describe_earlier_runs
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState, StepState
from planwarden.agent.core.tool import Risk, ToolDefinition, highest_risk
from planwarden.agent.ports.environment import new_id
from planwarden.agent.ports.policy import Requirement

MAX_ROWS = 1_000
"""The most rows of one question; a longer loop asks again when the first call without a row is due."""
MAX_ROWS_BYTES = 1024 * 1024
MAX_RULES = 5
"""The most rules that a question about rows names."""
MAX_PLACES = 20
MAX_ERROR_CHARS = 200
EXAMPLE = '{"items": [0, 2]}'
CHOICE = "One question for {} calls of this step, one a row: approve all, or only some."
"""A sentence in questions with several rows; a single row leaves nothing to choose."""


class _Row(msgspec.Struct, frozen=True):
    covered: ev.CoveredCall
    definition: ToolDefinition
    requirement: Requirement
    reason: str | None


def ask_batch(context: ApprovalContext, execution: ExecutionState, state: StepState) -> tuple[ev.Event, ...]:
    """Return the question about those calls of the loop that need a person and have not begun, at most `MAX_ROWS`.

    At least one call must need a person. If calls would fail whatever the answer is, return only their failures.
    """
    # Count on a copy of the budgets: a call takes its share, or gets a row if too little is left.
    context = replace(context, budgets=replace(context.budgets, amounts=dict(context.budgets.amounts)))
    judged = list(islice(_list_rows(context, execution, state), MAX_ROWS))
    if failures := [row for row in judged if isinstance(row, ev.ToolFailed)]:
        # Only the first failure of an item counts, because it ends the item.
        calls_per_item = len(state.step.tool_calls)
        by_item = {execution.call(failed.call_id).index // calls_per_item: failed for failed in reversed(failures)}
        return tuple(by_item.values())
    listed = [row for row in judged if isinstance(row, _Row)]
    rows, size = list[_Row](), 0
    for row in _list_first_of_key(context, execution, listed):
        size += measure_at_least(row.covered.arguments, MAX_ROWS_BYTES)
        if rows and size > MAX_ROWS_BYTES:
            break
        rows.append(row)
    risks: list[Risk] = [row.requirement.risk for row in rows]
    risk = highest_risk("confirm", *risks)
    names = {row.definition.name for row in rows}
    waits = [row.definition.answer_within_s for row in rows if row.definition.answer_within_s is not None]
    silence_s = find_silent_approval_s(execution, (row.definition for row in rows))
    on_timeout = limit_on_timeout(risk, "approve" if silence_s < inf else "reject")
    wait_s = silence_s if on_timeout == "approve" else min(waits, default=None)
    question = ev.Question(
        suspension_id=new_id(),
        kind="batch",
        message=state.step.description[:MESSAGE_CHARS],
        step_id=state.step.step_id,
        tool_name=names.pop() if len(names) == 1 else None,
        risk=risk,
        needs=context.policy.for_risk(risk).needs,
        quorum=max(row.requirement.quorum for row in rows),
        expires_at=None if wait_s is None else context.clock.now() + wait_s,
        on_timeout=on_timeout,
        covers=tuple(row.covered for row in rows),
        found=(
            *describe_placeholders(_list_written(state, rows)),
            *((CHOICE.format(len(rows)),) if len(rows) > 1 else ()),
            *_describe_gaps(state),
            *describe_earlier_runs(execution, state.step.step_id),
            *describe_attempts(execution, state.step.step_id),
            *dict.fromkeys(row.reason for row in rows if row.reason),
            *_describe_rules(rows),
        ),
    )
    return (open_question(context, execution, question),)


def _list_written(state: StepState, rows: list[_Row]) -> list[Call]:
    """Return the calls to search for placeholders: those of all rows if the plan has the items, else of one item."""
    loop = state.step.loop
    if loop is None or not isinstance(loop.items, list):
        return list(state.list_item_calls(0))
    by_id = {row.covered.call_id: row.covered.arguments for row in rows}
    return [replace(call, proposed=by_id[call.call_id]) for call in state.calls if call.call_id in by_id]


def _describe_gaps(state: StepState) -> Iterator[str]:
    """Yield a sentence about the items that have no row because they failed."""
    failed = next((call for call in state.calls if call.status == "failed"), None)
    if failed is not None:
        _, index = state.find_item(failed) or (None, 0)
        # The error may repeat a server's words: quotes keep them from passing for planwarden's own.
        why = canonical_json((failed.error_message or "")[:MAX_ERROR_CHARS])
        count, total = state.failed_items, len(state.items or ())
        yield f"{count} of {total} items failed and {'has' if count == 1 else 'have'} no row; index {index}: {why}."


def _describe_rules(rows: list[_Row]) -> Iterator[str]:
    """Yield a sentence for each of the operator's rules that asks about rows, at most `MAX_RULES` of them."""
    by_number: dict[int, tuple[ev.MatchedRule, list[int]]] = {}
    for number, row in enumerate(rows, 1):
        rule = row.requirement.rule
        if rule is not None:
            by_number.setdefault(rule.number, (rule, []))[1].append(number)
    for rule, numbers in islice(by_number.values(), MAX_RULES):
        listed = ", ".join(map(str, numbers[:MAX_PLACES])) + (", ..." if len(numbers) > MAX_PLACES else "")
        yield f"Rule {rule.number} applies to {len(numbers)} of them ({listed}): {rule.words}"


def _list_rows(context: ApprovalContext, execution: ExecutionState, state: StepState) -> Iterator[_Row | ev.ToolFailed]:
    """Yield the rows of calls that need a person, and the failures of due calls that cannot run. Raises `Needed`."""
    missing_lookups: list[Needed] = []
    for call, is_due in _list_proposed(state):
        try:
            row = _judge(context, execution, call, is_due=is_due)
        except Needed as needed:
            # Collect all that is missing, so that one lookup fetches everything of a kind.
            missing_lookups.append(needed)
            if len(missing_lookups) > MAX_ROWS:
                break
            continue
        if row is not None and not missing_lookups:
            yield row
    if missing_lookups:
        kind = type(missing_lookups[0])
        raise kind(chain.from_iterable(other.keys for other in missing_lookups if isinstance(other, kind)))


def _list_proposed(state: StepState) -> Iterator[tuple[Call, bool]]:
    """Yield each call that has not begun, and whether it is due: its wave has come, so its values are known."""
    for index in range(state.finished_items, len(state.items or ())):
        if state.find_next_call(index) is not None:
            for number, call in enumerate(state.list_item_calls(index)):
                if call.status == "proposed":
                    yield call, number < state.item_order.ends[state.wave]


def _list_first_of_key(context: ApprovalContext, execution: ExecutionState, rows: list[_Row]) -> Iterator[_Row]:
    """Yield the rows, except each row whose business key already belongs to another call or to an earlier row.

    The calls of the rows left out are refused when their turn comes. Raises `OnceNeeded`.
    """
    keys = [find_key(context, row.covered.tool_name, row.covered.arguments) for row in rows]
    check_looked_up(context, keys)
    earlier_keys = set[str]()
    for row, key in zip(rows, keys, strict=True):
        call = execution.call(row.covered.call_id)
        if key is None or not (key.key in earlier_keys or explain_duplicate(context, execution, call, key)):
            yield row
        if key is not None:
            earlier_keys.add(key.key)


def _judge(
    context: ApprovalContext, execution: ExecutionState, call: Call, *, is_due: bool
) -> _Row | ev.ToolFailed | None:
    """Return the row of a call that needs a person, or the failure of a due call that cannot run; otherwise None.

    If the arguments of a due call do not fit now, they never will, because all values that the call takes are known.
    """
    definition = context.tools.get(call.tool_name)
    if definition is None or definition.unavailable:
        return None
    request = CallRequest(context, execution, call, definition)
    if judge_row(request) is not None:
        return None
    try:
        arguments = complete_arguments(request)
    except InvalidArguments as error:
        return ev.ToolFailed(call_id=call.call_id, code=error.code, message=error.message) if is_due else None
    verdict = authorize(request, arguments, list_confirmations(request, arguments))
    if not isinstance(verdict, Ask):
        if isinstance(verdict, Allow):
            context.budgets.take(verdict.shares)
        return None
    requirement, now = verdict.requirement, context.clock.now()
    reason = verdict.reason or requirement.found
    reason = reason or next(context.grants.explain_no_grant(execution, call, definition, now), None)
    return _Row(build_covered_call(request, arguments), definition, requirement, reason)


def check_chosen_rows(question: ev.Question, content: JsonValue) -> None:
    """Raise `InvalidArguments` unless the content of an approval is None or names rows of the question, none twice."""
    if content is None:
        return
    items = content["items"] if isinstance(content, dict) and content.keys() == {"items"} else None
    if not isinstance(items, list):
        raise InvalidArguments(f"content must name the rows to approve, counted from 0, such as {EXAMPLE}")
    if not items:
        raise InvalidArguments("content.items names no row; reject the question to leave out all of them")
    if len({*question.choose_rows(content)}) != len(items):
        last = len(question.rows) - 1
        raise InvalidArguments(f"content.items must name each row once, from 0 to {last}, such as {EXAMPLE}")
