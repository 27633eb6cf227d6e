"""The next revision of a question: with the tool and the policy as they are now, or with edited arguments.

Silence approves only what was asked at first: a revision that nobody answers is rejected.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority
from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.approval.covering import list_risks, update_covered_call
from planwarden.agent.approval.questions import add_finding, bind_question, drop_edited_placeholders, is_of_policy
from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import EditRefused, InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.pins import describe_difference
from planwarden.agent.core.placeholders import find_placeholders
from planwarden.agent.core.question import ArgumentEdit
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.tool import Risk, ToolDefinition, highest_risk, is_of_host
from planwarden.agent.ports.policy import Requirement, describe_denial

MAX_PLACE_DIGITS = 5
RELEASING: tuple[ev.SuspensionKind, ...] = ("approval", "confirmation", "input", "reconcile")
"""Questions whose answer may let a call run."""


def revise_stale_question(
    context: ApprovalContext, execution: ExecutionState, question: ev.Question
) -> tuple[ev.Question, str] | None:
    """The next revision and why, when the tool, a covered tool or the policy is not what the question showed.

    None when the question still says what would run, and for questions that release no call.
    """
    tools, policy = context.tools, context.policy
    if question.is_batch:
        return _revise_stale_rows(context, execution, question)
    definition = tools.get(question.tool_name or "")
    if definition is None or question.call_id is None or question.kind not in RELEASING:
        return None
    covers = tuple(update_covered_call(context, covered) for covered in question.covers)
    covered_now = tuple(covered for covered, _ in covers)
    if definition.digest != question.definition_digest:
        if tools.complete(definition.name, question.arguments or {})[1]:
            # It cannot run as it was shown, whatever the answer is; preparing the call says so.
            return None
        before = tools.earlier(question.definition_digest)
        reason = f"{definition.name} changed after it was shown: {describe_difference(before, definition)}"
    elif not is_same_json(covered_now, question.covers):
        reason = "a tool that it covers changed after it was shown"
    elif not is_of_policy(question, policy):
        reason = "the operator's policy changed after it was asked"
    else:
        # Any other difference was made in the store: then the digest does not fit, and nothing will run.
        return None
    least: tuple[Risk, ...] = () if question.kind == "approval" else ("confirm",)
    asked = context.find_requirement(definition, question.arguments or {})
    # No rule was written for a definition that changed.
    own: tuple[Risk, ...] = (definition.risk,) if definition.digest != question.definition_digest else ()
    risk = highest_risk(*least, *own, asked.risk, *list_risks(covers))
    # A sentence begins with a capital letter, except when it begins with the name of a tool.
    start = reason if reason.startswith(definition.name) else f"{reason[:1].upper()}{reason[1:]}"
    denial = "" if asked.denied is None else f" It does not run even if you approve it: {describe_denial(asked)}."
    changed = replace(
        question,
        definition_digest=definition.digest,
        covers=covered_now,
        found=add_finding(question, f"{start}.{denial}"),
        rule=asked.rule,
    )
    return _bind_revision(context, execution, changed, risk), reason


def _bind_revision(
    context: ApprovalContext, execution: ExecutionState, changed: ev.Question, risk: Risk, least_quorum: int = 1
) -> ev.Question:
    """Return the changed question as its next revision, for what its risk needs now."""
    required = context.policy.for_risk(risk)
    revision = replace(
        changed,
        risk=required.risk,
        needs=required.needs or changed.needs,
        quorum=max(required.quorum, least_quorum),
        revision=changed.revision + 1,
        on_timeout="reject",
    )
    return bind_question(context, execution, revision)


def _revise_stale_rows(
    context: ApprovalContext, execution: ExecutionState, question: ev.Question
) -> tuple[ev.Question, str] | None:
    """As `revise_stale_question`, for the one question about many calls of a loop."""
    covers = tuple(update_covered_call(context, covered) for covered in question.covers)
    rows = tuple(covered for covered, _ in covers)
    if not is_same_json(rows, question.covers):
        reason = "a tool that it asks about changed after it was shown"
    elif not is_of_policy(question, context.policy):
        reason = "the operator's policy changed after it was asked"
    else:
        return None
    changed = replace(question, covers=rows, found=add_finding(question, f"{reason[:1].upper()}{reason[1:]}."))
    return _bind_revision(context, execution, changed, highest_risk("confirm", *list_risks(covers))), reason


def revise_arguments(
    context: ApprovalContext,
    execution: ExecutionState,
    question: ev.Question,
    arguments: dict[str, JsonValue],
    editor: Authority,
) -> ev.Question:
    """The next revision of a question with arguments as `editor` wants them, or `question` itself if they are the same.

    Raises:
        InvalidArguments: the arguments do not fit the tool's schema, or the tool is gone.
        EditRefused: a host makes the call.
    """
    if question.asker:
        raise InvalidArguments("the call has begun, so its arguments can no longer be modified")
    if question.is_batch:
        return _revise_rows(context, execution, question, arguments, editor)
    if is_of_host(question.tool_name or ""):
        raise EditRefused("the host makes this call itself, as it is; reject it, with a reason that the model reads")
    definition = context.tools.get(question.tool_name or "")
    if definition is None or question.arguments is None:
        raise InvalidArguments("this question has no arguments that could be modified")
    completed = _complete_edited(context, definition, arguments, editor)
    edited = _find_edited_arguments(question.arguments, completed)
    if not edited:
        return question
    asked = context.find_requirement(definition, completed)
    _refuse_denied(asked, definition)
    changed = replace(
        question,
        arguments=completed,
        edits=_add_edit(question, edited, editor),
        found=drop_edited_placeholders(
            question.found, [(definition.name, completed), *((row.tool_name, row.arguments) for row in question.covers)]
        ),
        rule=asked.rule,
    )
    return _bind_revision(context, execution, changed, highest_risk(question.risk or "read", asked.risk))


def _refuse_denied(requirement: Requirement, definition: ToolDefinition, where: str = "") -> None:
    """Raises `InvalidArguments` for what a rule of the operator refuses, whoever edits it."""
    if requirement.denied is not None:
        raise InvalidArguments(f"modifiedArgs are refused for {definition.name}{where}: {describe_denial(requirement)}")


def _complete_edited(
    context: ApprovalContext,
    definition: ToolDefinition,
    arguments: dict[str, JsonValue],
    editor: Authority,
    where: str = "",
) -> dict[str, JsonValue]:
    """The edited arguments as they would run; raises `InvalidArguments` if they do not fit the tool."""
    completed, faults = context.tools.complete(definition.name, arguments)
    if editor.assurance in ("claimed", "caller"):
        # A person may mean an example address; a model that writes one does not know the real one.
        faults = (*faults, *find_placeholders(arguments))
    if faults:
        raise InvalidArguments(
            f"modifiedArgs do not fit {definition.name}{where}: {'; '.join(faults[:5])}",
            details={"problems": list[JsonValue](faults), "inputSchema": definition.input_schema},
        )
    return completed


def _revise_rows(
    context: ApprovalContext,
    execution: ExecutionState,
    question: ev.Question,
    edits: Mapping[str, JsonValue],
    editor: Authority,
) -> ev.Question:
    """As `revise_arguments`; `edits` has the arguments of rows by their place, counted from 0."""
    rows, edited = list(question.covers), list[str]()
    risk = question.risk or "read"
    for place, arguments in edits.items():
        index = int(place) if place.isdecimal() and len(place) <= MAX_PLACE_DIGITS else len(rows)
        if index >= len(rows) or not isinstance(arguments, dict):
            raise InvalidArguments(
                f'modifiedArgs must have the arguments of rows by their place, "0" to "{len(rows) - 1}", such as '
                '{"1": {"to": "Ann"}}'
            )
        row = rows[index]
        definition = context.tools.get(row.tool_name)
        if definition is None:
            raise InvalidArguments(f"{row.tool_name} is gone, so its arguments cannot be modified")
        completed = _complete_edited(context, definition, arguments, editor, f" in row {index}")
        names = _find_edited_arguments(row.arguments, completed)
        if names:
            rows[index] = replace(row, arguments=completed)
            asked = context.find_requirement(definition, completed)
            _refuse_denied(asked, definition, f" in row {index}")
            risk = highest_risk(risk, asked.risk)
            edited.extend(f"{index}/{name}" for name in names)
    if not edited:
        return question
    changed = replace(
        question,
        covers=tuple(rows),
        edits=_add_edit(question, tuple(edited), editor),
        found=drop_edited_placeholders(question.found, ((row.tool_name, row.arguments) for row in rows)),
    )
    return _bind_revision(context, execution, changed, risk, question.quorum)


def add_late_report(
    context: ApprovalContext, execution: ExecutionState, question: ev.Question, report: str
) -> ev.SuspensionRevised:
    """The next revision of the question what became of a call, with what its former process reported since."""
    changed = replace(question, found=add_finding(question, report), revision=question.revision + 1)
    reason = "the process that made the call reported what became of it"
    return ev.SuspensionRevised(question=bind_question(context, execution, changed), reason=reason)


def _find_edited_arguments(before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """The names of arguments that were changed, added or removed."""
    names = dict.fromkeys([*before, *after])
    return tuple(
        name for name in names if name not in before or name not in after or not is_same_json(before[name], after[name])
    )


def _add_edit(question: ev.Question, edited: tuple[str, ...], editor: Authority) -> tuple[ArgumentEdit, ...]:
    """The edits with one more. Each argument is named once, so that their number is bounded."""
    earlier = (
        replace(edit, arguments=tuple(name for name in edit.arguments if name not in edited)) for edit in question.edits
    )
    edit = ArgumentEdit(
        revision=question.revision + 1,
        principal=editor.principal,
        channel=editor.channel,
        assurance=editor.assurance,
        arguments=edited,
    )
    return (*(found for found in earlier if found.arguments), edit)
