"""Prompts as pure functions of the state: planning, step, enforcement, synthesis.

The system part holds instructions only. Goals, tool results and other text from outside are data: they go into the user
part between markers, cut to a limit, and are never instructions. A planning prompt shows one line for each tool; a
step's prompt goes with the full schemas of its own tools, which `runtime/perform.py` looks up. `options.prompts`
replaces the instructions of planning, steps and synthesis; the data and the form of the answer stay.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import msgspec

from planwarden.agent.common.form import EXAMPLES
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState, StepState
from planwarden.agent.core.execution.synopsis import describe_edits, list_shown_steps
from planwarden.agent.core.execution.thread_effects import format_effects
from planwarden.agent.core.execution.verify import find_missing_tools
from planwarden.agent.core.plan.plan import find_steps_before
from planwarden.agent.core.plan.plan_input import call_schema, plan_schema
from planwarden.agent.core.plan.revision import OPERATION_SCHEMA
from planwarden.agent.core.prompt_results import (
    cut,
    describe_end,
    fence,
    join,
    render_results,
    write_conversation,
    write_missing_results,
)
from planwarden.agent.core.replies import describe_call_fault
from planwarden.agent.core.tool import ToolDefinition

PLANNING = """\
Write a plan for the goal. Do not carry it out. Use the fewest steps, in order.

Two kinds of steps:
A tool step gets data from outside, asks a person or changes something: "stepType": "tool" and "requiredTools", the \
tools that must be called. It counts only when they were really called and have answered.
A reasoning step compares, decides or writes from earlier results: "stepType": "reasoning" and no "requiredTools".
Name only tools from the list, where a step truly needs them.

Every step has "id" (a short name), "description" (what to do) and "expectedOutcome" (what is known or true \
afterwards). "dependencies" lists the steps whose results it needs: the step before if you leave it out, [] for none.

A tool step may also have:
"toolCalls", when you know the arguments: [{"toolName": "send_email", "arguments": {"to": "ann@acme.test"}}]. Without \
it you are asked for the calls when the step begins.
{"$from": "find", "pointer": "/rows/0/email"} as an argument: that value of the result of step find (a JSON Pointer). \
Without "pointer" it is the whole result, of a reasoning step its text; "parse": "json" reads text as JSON first.
{"$text": "Dear {name}", "with": {"name": {"$from": "find", "pointer": "/name"}}} as an argument: text with values.
"forEach": {"$from": "find", "pointer": "/rows"}: its toolCalls are made once for each entry of that list, and a \
person is asked ONE question for all of them. {"$from": "item", "pointer": "/email"} is a value of \
the entry, and {"$from": "item", "call": 0, "pointer": "/email"} one of the result of the step's first call for it.
"when": {"value": {"$from": "find", "pointer": "/total"}, "matches": {"minimum": 5000}}: the step runs only if the \
value fits this JSON Schema, else it is skipped. {"minItems": 1}: a list that is not empty.
"onReject": after a person's no, "skip" the steps that depend on it (the default), "stop" or "continue".

Asking a person.
Calls of tools marked dangerous or confirm are asked about by themselves: plan no question before them.
A displayConfirmation step is for asking ONCE before several such calls: "confirms" lists the steps that it \
covers, each with toolCalls whose arguments are known; otherwise they are asked about again.
Where no tool gives what the goal needs, plan a requestInput step that asks the person, or say in a reasoning step \
what is missing. Invent nothing.

Example, for "Refund orders A-1 and A-2 and tell me what you did":
{"todoList": [
{"id": "ask", "description": "Ask once for both refunds", "stepType": "tool", "toolCalls": [{"toolName": \
"displayConfirmation", "arguments": {"action": "Refund orders A-1 and A-2"}}], "confirms": ["refund"], \
"expectedOutcome": "A person has agreed"},
{"id": "refund", "description": "Refund both orders", \
"toolCalls": [{"toolName": "refund_order", "arguments": {"order": "A-1"}}, {"toolName": "refund_order", "arguments": \
{"order": "A-2"}}], "expectedOutcome": "Both orders are refunded"},
{"id": "report", "description": "Say what was refunded", "stepType": "reasoning", "dependencies": ["refund"], \
"expectedOutcome": "A report of two sentences"}]}"""

FOR_CALLERS = "get_tool_schemas shows what the tools that you name take and return."
"""What a caller may do before it writes a plan; a provider's model has no such tool."""

TOOL_STEP = """\
This is a TOOL STEP. It is done only when its REQUIRED TOOLS have been called and have answered. Call them now; \
describing a call is not making it.
Take real values from the results exactly as they are. Write no placeholder (example.com, <id>, []) where data exists. \
If a value is missing, say so, or call the tool that finds it if one is offered.
One answer may have several calls, one for each item; each that needs a person is asked about by itself."""

REASONING_STEP = """\
This is a REASONING STEP. Analyse, compare, decide or write, from the results of earlier steps only. Say what is \
missing. It needs no tools."""

NO_TOOLS = "No tools are offered in this step."

REVISION = """\
If the results show that steps which have not begun are wrong, add "revise" to your answer, a list of \
{"op": "add", "step": {...}, "after": ID}, {"op": "change", "id": ID, "set": {...}}, {"op": "remove", "id": ID} or \
{"op": "move", "id": ID, "after": ID}. Steps that ask a person or confirm others cannot be revised. \
A step that you add or give new calls, and that changes something, must depend on each of those that is still open, \
and on a step that needs approval if other changes depend on that step."""

SYNTHESIS = """\
Write the answer to the goal for the person who set it. Use only the record and the results: say what was done, what \
was rejected, skipped or failed, and what could not be reached. Claim nothing else."""

MAX_TOOLS_CHARS = 7_000
"""The most characters that the lines of tools have in a planning prompt."""
MAX_GOAL_LINE_CHARS = 300
MAX_COVERED = 20
"""Calls that the prompt of a confirmation step lists."""
MAX_PLANS = 2
"""Plans that a model may hand in: one, and one that corrects it."""
DELEGATE = "delegate_to_agent"

TEXT_SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "required": ["content"],
    "properties": {"content": {"type": "string"}},
}


@cache
def step_answer_schema() -> dict[str, JsonValue]:
    """Return the JSON Schema of the answer to a step's prompt: calls or text, and perhaps a revision of the plan."""
    return {
        "type": "object",
        "anyOf": [{"required": ["toolCalls"]}, {"required": ["content"]}],
        "properties": {
            "toolCalls": {"type": "array", "items": call_schema()},
            "content": {"type": "string"},
            "revise": {"type": "array", "items": OPERATION_SCHEMA, "description": f"such as {EXAMPLES['revise']}"},
        },
    }


@cache
def answer_form(purpose: ev.Purpose) -> dict[str, JsonValue]:
    """Return the JSON Schema by which an answer in text or calls is read: a call may leave out its arguments."""
    text: dict[str, JsonValue] = {"content": {"type": "string"}}
    if purpose != "step":
        return {"type": "object", "properties": text}
    calls: JsonValue = {"type": "array", "items": {**call_schema(), "required": ["toolName"]}}
    return {"type": "object", "properties": {"toolCalls": calls, **text, "revise": {}}}


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt, for any model."""

    purpose: ev.Purpose
    step_id: str | None = None
    system: str
    """Instructions; contains no text from outside."""
    goal: str = ""
    """The whole goal; data."""
    results: str = ""
    """Results of earlier steps, between markers."""
    task: str
    form: str = ""
    """How to write the answer as text; a model with tool calling does not need it."""
    offered: tuple[str, ...] = ()
    """Names of the tools whose full schemas go with the prompt."""
    optional: tuple[str, ...] = ()
    """Names of further tools that the model may call; `text` shows their lines only."""
    required: tuple[str, ...] = ()
    """Names of offered tools; the model has to call at least one of them."""
    answer_schema: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    revision: str = ""
    """How to revise steps that have not begun, in text; empty if all have begun, or if a call is due first."""
    used_sources: frozenset[str] = frozenset()
    """Sources of the replies that this execution already used."""
    is_enforcement: bool = False

    @property
    def text(self) -> str:
        """The goal, the data and what to do."""
        return join(fence("goal", self.goal) if self.goal else "", self.results, self.task)

    @property
    def question(self) -> str:
        """What a caller is asked: the goal in one line, because the caller knows it, and what to do."""
        line = " ".join(self.goal.split())
        return join(
            f"Goal: {json.dumps(cut(line, MAX_GOAL_LINE_CHARS), ensure_ascii=False)}" if line else "", self.task
        )

    @property
    def instructions(self) -> str:
        """What all questions of one kind to a caller have in common, so that it need not be repeated."""
        return join(self.system, FOR_CALLERS if self.purpose == "plan" else "", self.revision, self.form)


def build_planning_prompt(execution: ExecutionState, tools: Sequence[ToolDefinition], total_tools: int) -> Prompt:
    """Return the prompt for a plan; after a refusal it says precisely why the last plan was refused.

    `tools` are those to list, best matches first, as far as there is space for them.
    """
    parts: list[str] = []
    if execution.refusals:
        attempts_left = MAX_PLANS - len(execution.refusals)
        last = "This is your last attempt." if attempts_left == 1 else f"You have {attempts_left} attempts left."
        parts.append(f"Your last plan was refused, and nothing has run: {execution.refusals[-1]}")
        parts.append(f"Send the whole plan again, corrected. {last}")
    if execution.context:
        parts.append(fence("done before in this thread", execution.context))
        parts.append('Do not repeat what is completed there: {"$from": STEP_ID} takes the result of such a step too.')
    lines = list(_write_tool_lines(tools))
    tool_heading = f"the {len(lines)} best matches of {total_tools} tools" if total_tools > len(lines) else "tools"
    listed = "\n".join(lines) or "(none)"
    parts.append(fence(f"{tool_heading}: name(arguments, optional?): purpose [risk, ...]", listed))
    return Prompt(
        purpose="plan",
        system=execution.options.prompt_planning or PLANNING,
        goal=execution.goal or "",
        task=join(*parts),
        form='Answer with {"todoList": [...]}.'
        + ("" if execution.refusals else " You can correct a refused plan once."),
        answer_schema=plan_schema(),
        used_sources=execution.sources,
        is_enforcement=bool(execution.refusals),
    )


def may_revise(execution: ExecutionState, state: StepState) -> bool:
    """Return whether the prompt of the step offers to revise the plan: steps are left, and no call is due first."""
    has_more = any(other.status == "pending" for other in execution.steps.values())
    return has_more and not find_missing_tools(state)


def build_step_prompt(execution: ExecutionState, state: StepState, others: Iterable[ToolDefinition] = ()) -> Prompt:
    """Return the prompt for a step's calls or text; an enforcement prompt if the last answer was prose without calls.

    `others` are tools that the model may call in addition to the required ones, shown as lines.
    """
    step, optional = state.step, tuple(others)
    missing = find_missing_tools(state)
    number = list(execution.steps).index(step.step_id) + 1
    parts = [f"Step {number} of {len(execution.steps)}, {step.step_id}: {step.description}"]
    if step.expected_outcome:
        parts.append(f"Expected outcome: {step.expected_outcome}")
    if step.confirms:
        parts.append(_write_covered(execution, step.confirms))
    parts.extend([*write_missing_results(execution, state), *write_conversation(state)])
    if optional:
        parts.append(fence("tools that you may also call", "\n".join(_write_tool_lines(optional))))
    elif step.step_type == "reasoning":
        parts.append(NO_TOOLS)
    if state.revision_refused is not None:
        parts.append(f"Your revision of the plan was refused: {state.revision_refused}")
        if not missing:
            parts.append("The plan is as before. Answer again, with a corrected revision or with none.")
    if missing:
        parts.append(f"REQUIRED TOOLS that still have to answer: {', '.join(missing)}.")
    parts.extend(_write_attempts(execution, state, missing))
    if missing:
        form = 'Answer with {"toolCalls": [{"toolName": NAME, "arguments": {...}}]}.'
    elif optional or step.step_type == "tool":
        form = 'Answer with {"content": "..."} or {"toolCalls": [{"toolName": NAME, "arguments": {...}}]}.'
    else:
        form = 'Answer with {"content": "..."}.'
    return Prompt(
        purpose="step",
        step_id=step.step_id,
        system=execution.options.prompt_execution or (TOOL_STEP if step.step_type == "tool" else REASONING_STEP),
        goal=execution.goal or "",
        results=render_results(execution, state),
        task=join(*parts),
        form=form,
        offered=tuple(dict.fromkeys(step.required_tools)),
        optional=tuple(definition.name for definition in optional),
        required=missing,
        answer_schema=step_answer_schema(),
        revision=REVISION if may_revise(execution, state) else "",
        used_sources=execution.sources,
        is_enforcement=state.enforcing,
    )


def build_synthesis_prompt(execution: ExecutionState) -> Prompt:
    """Return the prompt for the final text about what the log proves."""
    effects = format_effects(execution.thread_effects, MAX_COVERED)
    return Prompt(
        purpose="synthesize",
        system=execution.options.prompt_synthesis or SYNTHESIS,
        goal=execution.goal or "",
        task=join(
            fence("record", join(summarize(execution), describe_edits(execution))),
            fence("done by earlier plans of this thread", effects) if effects else "",
        ),
        results=render_results(execution, None),
        form='Answer with {"content": "..."}.',
        answer_schema=TEXT_SCHEMA,
        used_sources=execution.sources,
    )


def summarize(execution: ExecutionState) -> str:
    """Return the engine's own account of what the log proves, one line for each step."""
    lines: list[str] = []
    for state in list_shown_steps(execution):
        hidden = ("proposed", "decided", "suspended") if state.status == "skipped" else ("proposed", "decided")
        calls = [f"{call.tool_name} {call.status}" for call in state.calls if call.status not in hidden]
        proof = f" ({', '.join(calls)})" if calls else ""
        lines.append(f"{describe_end(execution, state, proof)} - {cut(state.step.description, 120)}")
    return "\n".join(lines)


def find_final_text(execution: ExecutionState) -> str | None:
    """Return the text of the last step if it answers the goal: every other step is done, and it depends on all.

    None if the last step calls tools, or if a step was rejected, failed or skipped because of another step.
    """
    *_, last = execution.steps.values() or (None,)
    is_answer = last is not None and last.step.step_type == "reasoning" and last.status == "completed"
    if last is None or not is_answer or execution.steps_done != len(execution.steps):
        return None
    before = find_steps_before((state.step for state in execution.steps.values()), last.step.step_id)
    rests_on_all = len(before) == len(execution.steps) - 1
    return last.result if rests_on_all and isinstance(last.result, str) and last.result.strip() else None


def _write_tool_lines(tools: Iterable[ToolDefinition]) -> Iterator[str]:
    chars_left = MAX_TOOLS_CHARS
    for definition in tools:
        line = definition.manifest
        chars_left -= len(line) + 1
        if chars_left < 0:
            return
        yield line


def _write_covered(execution: ExecutionState, confirms: Sequence[str]) -> str:
    """Return which steps and calls a person's answer in this step will cover."""
    lines: list[str] = []
    for step_id in confirms:
        step = execution.steps[step_id].step
        calls, each = step.tool_calls, "" if step.loop is None else " for each item"
        lines.extend(
            f"{step_id}: {call.tool_name}({cut(json.dumps(call.arguments, ensure_ascii=False), 300)}){each}"
            for call in calls
        )
        if not calls:
            lines.append(f"{step_id}: its calls are not known yet, so a person is asked about each of them again")
    more = [f"and {len(lines) - MAX_COVERED} more"] if len(lines) > MAX_COVERED else []
    return fence("what the person's answer covers", "\n".join([*lines[:MAX_COVERED], *more]))


def _write_attempts(execution: ExecutionState, state: StepState, missing: tuple[str, ...]) -> Iterator[str]:
    """Yield why the last answer did not count, and how many attempts are left; a first prompt mentions only the last.

    Calls and texts have separate limits. The smaller number is given, so that it holds whatever the model answers.
    """
    options, step = execution.options, state.step
    if state.enforcing:
        names, have = " and ".join(missing), "has" if len(missing) == 1 else "have"
        yield (
            f"Your last answer did not count: {describe_call_fault(state.turns[-1].content)}. Step {step.step_id} is "
            f"done only when {names} {have} been called and {have} answered. Call {names} now."
        )
    is_strict = step.tool_validation_mode == "strict"
    by_call = options.max_iterations - state.iterations + state.enforcing
    by_text = (options.taef_max_retries if is_strict else 0) - state.retries + 1 if missing else by_call
    end = "fails" if is_strict else "ends"
    if by_call <= 1 and (missing or state.turns):
        yield f"This is your last attempt; after it the step {end}."
    elif by_text <= 1 < by_call:
        yield f"If your answer contains no tool call, the step {end}."
    elif state.turns:
        yield f"You have {min(by_call, by_text)} attempts left."
