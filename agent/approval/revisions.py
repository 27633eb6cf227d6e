"""Build the next revision of a question: with the tool and the policy as they are now, or with edited arguments.

Silence can approve a question only as it was first asked; a revision that nobody answers in time is rejected.
"""

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority
from planwarden.agent.approval.context import ApprovalContext, check_arguments_size, has_changed_since_plan
from planwarden.agent.approval.covering_confirmations import update_covered_call
from planwarden.agent.approval.questions import (
    POLICY_CHANGED,
    add_edit,
    add_finding,
    bind_revision,
    drop_edited_placeholders,
    is_of_policy,
)
from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import EditRefused, InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.placeholders import find_placeholders
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.pins import describe_difference
from planwarden.agent.core.tool import Risk, ToolDefinition, highest_risk, is_of_host
from planwarden.agent.ports.policy import Requirement, describe_denial

MAX_PLACE_DIGITS = 5
MAX_CHANGED = 4
"""The most changed tools whose difference a revision shows."""


def revise_stale_question(
    context: ApprovalContext, execution: ExecutionState, question: ev.Question
) -> tuple[ev.Question, str] | None:
    """Return the next revision and its reasons, if the tool, a covered call or the policy is not as it was shown.

    Return None if the question still shows what would run, or if the tool that it is about is gone.
    """
    definition = context.tools.get(question.tool_name or "") if question.call_id is not None else None
    if definition is None and not question.rows:
        return None
    covers = tuple(update_covered_call(context, execution, covered) for covered in question.covers)
    changed = replace(question, covers=tuple(covered for covered, _ in covers))
    other = None if definition is None or definition.digest == question.definition_digest else definition
    takes_arguments = other is None or not context.tools.complete(other.name, question.arguments or {})[1]
    reasons = _find_staleness(context, question, changed, other, takes_arguments)
    if not reasons:
        return None
    risks: list[Risk] = [risk for _, risk in covers]
    denial = ""
    if definition is not None:
        # As when it was asked, let no rule lower the needs: none was written for a changed tool or an unknown outcome.
        is_full = question.traits.releases == "again" or execution.options.asks_because is not None
        is_full = is_full or other is not None or has_changed_since_plan(execution, definition)
        requirement = context.find_requirement(definition, question.arguments or {}, is_full=is_full)
        risks.append(requirement.risk)
        if requirement.denied is not None:
            denial = f" It does not run even if you approve it: {describe_denial(requirement)}."
        # The old digest tells the dispatcher that the arguments were not meant for the new definition.
        digest = definition.digest if takes_arguments else question.definition_digest
        changed = replace(changed, definition_digest=digest, rule=requirement.rule)
    if question.traits.releases != "call":
        risks.append("confirm")
    if question.traits.resumes_tool and execution.call(question.call_id or "").attempts:
        # The tool may have asked with a higher risk than its own.
        risks.append(question.risk or "confirm")
    for number, reason in enumerate(reasons, 1):
        # The other reasons begin with the name of a tool or a number.
        sentence = f"{reason[:1].upper()}{reason[1:]}" if reason == POLICY_CHANGED else reason
        changed = replace(changed, found=add_finding(changed, f"{sentence}.{denial if number == len(reasons) else ''}"))
    return _bind_for_risk(context, execution, changed, highest_risk(*risks)), "; ".join(reasons)


def _find_staleness(
    context: ApprovalContext, question: ev.Question, now: ev.Question, other: ToolDefinition | None, takes: bool
) -> list[str]:
    """Return the reasons why the question no longer shows what would run; empty if it still does.

    `now` is the question with its covered calls brought up to date. `other` is the question's tool as it is now, or
    None if the tool did not change; `takes` says whether the tool still takes the arguments.
    """
    pairs = zip(question.covers, now.covers, strict=True)
    changed = {earlier.tool_name: earlier.definition_digest for earlier, current in pairs if earlier != current}
    if other is not None and takes:
        changed = {other.name: question.definition_digest, **changed}
    reasons: list[str] = []
    for name, digest in islice(changed.items(), MAX_CHANGED):
        before, after = context.tools.find_former(digest), context.tools.get(name)
        assert after is not None
        reasons.append(f"{name} changed after it was shown: {describe_difference(before, after)}")
    if len(changed) > MAX_CHANGED:
        reasons.append(f"{len(changed) - MAX_CHANGED} more tools changed after they were shown")
    # Any other change was made in the store itself: the approval digest does not fit it, so nothing will run.
    if not is_of_policy(question, context.policy):
        reasons.append(POLICY_CHANGED)
    if other is not None and not takes and reasons:
        # Without other reasons, revise nothing: no revision makes the call run as shown, and the dispatcher refuses it.
        reasons.append(f"{other.name} changed after it was shown and no longer takes its arguments")
    return reasons


def _bind_for_risk(
    context: ApprovalContext, execution: ExecutionState, changed: ev.Question, risk: Risk, least_quorum: int = 1
) -> ev.Question:
    """Return the changed question as its next revision, with what the policy now requires for the risk."""
    required = context.policy.for_risk(risk)
    revision = replace(
        changed,
        risk=required.risk,
        needs=required.needs or changed.needs,
        quorum=max(required.quorum, least_quorum),
        on_timeout="reject",
    )
    return bind_revision(context, execution, revision)


class _Edit(NamedTuple):
    arguments: dict[str, JsonValue]
    """The arguments with which the call would run."""
    names: tuple[str, ...]
    """The arguments that were changed, added or removed."""
    requirement: Requirement


def revise_arguments(
    context: ApprovalContext,
    execution: ExecutionState,
    question: ev.Question,
    arguments: dict[str, JsonValue],
    editor: Authority,
) -> ev.Question:
    """Return the next revision of the question with the editor's arguments, or `question` itself if none changed.

    If the question has rows, `arguments` maps the place of each edited row, counted from 0, to that row's arguments.

    Raises:
        InvalidArguments: the arguments do not fit the tool's schema, a rule denies them, or they cannot be modified.
        EditRefused: a host makes the call.
    """
    is_by_model = editor.assurance in ev.MODEL_ASSURANCES
    # The arguments of an asker, or of a call that has begun, are fixed. A tool that asked takes edits only from people.
    if question.asker or question.kind == "reconcile" or (question.traits.resumes_tool and is_by_model):
        raise InvalidArguments("the call has begun, so its arguments can no longer be modified")
    if is_of_host(question.tool_name or ""):
        raise EditRefused("the host makes this call itself, as it is; reject it, with a reason that the model reads")
    risks: tuple[Risk, ...]
    if question.rows:
        changed, edited, risks = _edit_rows(context, execution, question, arguments, editor)
    elif question.arguments is None or context.tools.get(question.tool_name or "") is None:
        raise InvalidArguments("this question has no arguments that could be modified")
    else:
        edit = _edit_call(context, execution, question.tool_name or "", question.arguments, arguments, editor)
        changed = replace(question, arguments=edit.arguments, rule=edit.requirement.rule)
        edited = edit.names
        risks = (edit.requirement.risk,)
    if not edited:
        return question
    calls = [(row.tool_name, row.arguments) for row in changed.covers]
    if changed.arguments is not None:
        calls.append((changed.tool_name or "", changed.arguments))
    changed = replace(
        changed, edits=add_edit(question, edited, editor), found=drop_edited_placeholders(question.found, calls)
    )
    risk = highest_risk(question.risk or "read", *risks)
    return _bind_for_risk(context, execution, changed, risk, question.quorum if question.rows else 1)


def _edit_rows(
    context: ApprovalContext,
    execution: ExecutionState,
    question: ev.Question,
    edits: Mapping[str, JsonValue],
    editor: Authority,
) -> tuple[ev.Question, tuple[str, ...], tuple[Risk, ...]]:
    """Return the question with the edited rows, the edited arguments as `ROW/NAME`, and the risks of these rows."""
    rows, edited, risks = list(question.rows), list[str](), list[Risk]()
    for key, arguments in edits.items():
        # Other spellings of a number, such as "01", would be a second key for the same row.
        is_place = len(key) <= MAX_PLACE_DIGITS and key.isdecimal() and key == str(int(key))
        index = int(key) if is_place else len(rows)
        if index >= len(rows) or not isinstance(arguments, dict):
            raise InvalidArguments(
                f'modifiedArgs must have the arguments of rows by their place, "0" to "{len(rows) - 1}", such as '
                '{"1": {"to": "Ann"}}'
            )
        row = rows[index]
        edit = _edit_call(context, execution, row.tool_name, row.arguments, arguments, editor, f" at index {index}")
        if edit.names:
            rows[index] = replace(row, arguments=edit.arguments)
            risks.append(edit.requirement.risk)
            edited.extend(f"{index}/{name}" for name in edit.names)
    return replace(question, covers=tuple(rows)), tuple(edited), tuple(risks)


def _edit_call(
    context: ApprovalContext,
    execution: ExecutionState,
    tool_name: str,
    before: Mapping[str, JsonValue],
    arguments: dict[str, JsonValue],
    editor: Authority,
    where: str = "",
) -> _Edit:
    """Return the call with the edited arguments; raise `InvalidArguments` if its tool or a rule refuses them."""
    definition = context.tools.get(tool_name)
    if definition is None:
        raise InvalidArguments(f"{tool_name} is gone, so its arguments cannot be modified")
    completed, faults = context.tools.complete(tool_name, arguments)
    after = arguments if execution.options.is_literal else completed
    check_arguments_size(after)
    if editor.assurance in ev.MODEL_ASSURANCES:
        # A person may mean an example address; a model that writes one does not know the real one.
        faults = (*faults, *find_placeholders(arguments))
    if faults:
        raise InvalidArguments(
            f"modifiedArgs, which must have all arguments, do not fit {tool_name}{where}: {'; '.join(faults[:5])}",
            details={"problems": list[JsonValue](faults), "inputSchema": definition.input_schema},
        )
    names = tuple(
        name
        for name in dict.fromkeys([*before, *after])
        if name not in before or name not in after or not is_same_json(before[name], after[name])
    )
    requirement = context.find_requirement(definition, after)
    if names and requirement.denied is not None:
        raise InvalidArguments(f"modifiedArgs are refused for {tool_name}{where}: {describe_denial(requirement)}")
    return _Edit(after, names, requirement)


def add_late_report(
    context: ApprovalContext, execution: ExecutionState, question: ev.Question, report: str
) -> ev.SuspensionRevised:
    """Return the next revision of a reconcile question; it adds the late `report` of the process that made the call."""
    changed = replace(question, found=add_finding(question, report))
    reason = "the process that made the call reported what became of it"
    return ev.SuspensionRevised(question=bind_revision(context, execution, changed), reason=reason)
