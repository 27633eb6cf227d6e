"""The calls of a card: their tools, and every argument with its exact value and where it comes from."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import (
    INPUTS,
    ITEM,
    ITEM_INDEX,
    EarlierResult,
    Reference,
    find_references,
    has_bindings,
)
from planwarden.agent.core.execution.folds.plans import build_planned_calls
from planwarden.agent.core.execution.question import Question
from planwarden.agent.core.execution.state import STEP_TERMINAL, Call, ExecutionState, SuspensionState
from planwarden.agent.core.tool import is_of_host
from planwarden.agent.ports.toolbox import Definitions
from planwarden.server.views.decisions import describe_editor
from planwarden.server.views.escaping import ValueView, escape_text, format_identifier, format_name, format_value
from planwarden.server.views.fields import find_title
from planwarden.server.views.status_words import WORDS, Tone

CLAIM_CHARS = 200
"""The most characters that are quoted from the description of a tool."""
_SHOWN_ELSEWHERE = ("id", "description", "expectedOutcome")
"""Keys of a step that are shown elsewhere: the id in the heading, the two texts under the name of their writer."""
_SOURCES = {"builtin": "built into planwarden", "python": "Python tool"}
_FROM_RESULT = "from the result of "
_OWN_VALUES = {INPUTS: "from the inputs", ITEM: "from the item", ITEM_INDEX: "the number of the item"}


class ToolNote(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a tool."""

    name: str
    """The unescaped name, not for display."""
    label: str
    source: str
    """Where the tool comes from, in words."""
    server: str = ""
    """The server that has the tool, in words; empty for a tool from elsewhere."""
    claim: str = ""
    """A quotation of the tool's description that says who wrote it; empty for built-in tools and empty descriptions."""
    titles: Mapping[str, str] = MappingProxyType({})
    """The titles of the arguments in the tool's schema, by the arguments' names; not for display."""


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """One argument of a call."""

    name: str
    """The unescaped name, not for display."""
    value: ValueView
    schema_title: str = ""
    """The argument's title in the tool's schema, unverified and not for display; empty if it only repeats the name."""
    origins: tuple[str, ...] = ()
    """The origins of the value, as far as the log proves them."""
    is_edited: bool = False
    """Whether somebody edited the argument; `origins` then says who."""
    is_form: bool = False
    """Whether the value is the form to fill in."""

    @property
    def label(self) -> str:
        return format_name(self.name)

    @property
    def title(self) -> str:
        return escape_text(self.schema_title)

    @property
    def result_origins(self) -> tuple[str, ...]:
        """The origins that are results of tools, or may be: an item of a loop may itself be a result."""
        return tuple(origin for origin in self.origins if origin.startswith((_FROM_RESULT, _OWN_VALUES[ITEM])))


class CardCall(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One call that a decision releases."""

    tool: ToolNote
    arguments: tuple[Argument, ...]
    place: str = ""
    """The step of a covered call or the number of a row, such as `step b`; empty for all other calls."""
    end: str = ""
    """For a row: what became of it, in words; empty while the question is open."""
    tone: Tone = "busy"

    @cached_property
    def by_label(self) -> dict[str, Argument]:
        return {argument.label: argument for argument in self.arguments}

    @property
    def values(self) -> dict[str, JsonValue]:
        """The arguments as they would run; not for display."""
        return {argument.name: argument.value.value for argument in self.arguments}

    def edit(self, values: Mapping[str, JsonValue]) -> "CardCall":
        """Return the call with these arguments."""
        return replace(self, arguments=tuple(Argument(name=name, value=ValueView(v)) for name, v in values.items()))


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a plan under review, without the words of its writer."""

    heading: str
    """The place of the step in the plan, and its id."""
    calls: tuple[CardCall, ...]
    """The planned calls; their arguments may hold bindings."""
    facts: tuple[tuple[str, ValueView], ...]
    """The other keys of the step, each with its value. Keys with a usual value, `[]` or `tool`, are left out."""


def note_tool(tools: Definitions | None, name: str) -> ToolNote:
    """Return the facts about the named tool, even if it is not registered; without `tools`, only what its name says."""
    definition, label = None if tools is None else tools.get(name), escape_text(name)
    of_host = "the host's own tool" if is_of_host(name) else ""
    if definition is None:
        return ToolNote(name=name, label=label, source=of_host or "no longer registered")
    entries = read_properties(definition.input_schema).items()
    server = "" if of_host or definition.source in _SOURCES else f"server {format_value(definition.source)}"
    return ToolNote(
        name=name,
        label=label,
        source=of_host or server or _SOURCES[definition.source],
        server=server,
        claim=_quote_claim(definition.source, " ".join(definition.description.split())),
        titles={key: find_title(key, entry) for key, entry in entries if isinstance(entry, dict)},
    )


def _quote_claim(source: str, description: str) -> str:
    if source == "builtin" or not description:
        return ""
    claimant = "Its author" if source == "python" else f"Server {format_value(source)}"
    is_long = len(description) > CLAIM_CHARS
    quotation = f"{description[: CLAIM_CHARS - 3]}..." if is_long else description
    return f"{claimant} says of it: {format_value(quotation, None)}"


def build_own_call(
    execution: ExecutionState, question: Question, call: Call | None, note: Callable[[str], ToolNote]
) -> CardCall | None:
    """Return the call that the question is about; None if it is not about a call."""
    if question.call_id is None or question.tool_name is None:
        return None
    editors = {name: describe_editor(edit) for edit in question.edits for name in edit.arguments}
    tool, arguments = note(question.tool_name), question.arguments or {}
    earlier = None if execution.options.is_literal else execution.earlier
    return build_call(tool, arguments, call=call, editors=editors, form=question.form, earlier=earlier)


def list_covered(execution: ExecutionState, question: Question, note: Callable[[str], ToolNote]) -> Iterator[CardCall]:
    """Yield the later calls that the answer also decides, with the origins of their arguments as far as the plan names
    them. Each call is searched among the planned calls of its step: it may not exist yet, and only calls of a loop have
    an id here.
    """
    for row in question.covers:
        state = execution.steps.get(row.step_id)
        planned = [] if state is None else build_planned_calls(state.step)
        calls = [call for call in planned if call.tool_name == row.tool_name and _fits(call, row.arguments)]
        yield build_call(
            note(row.tool_name),
            row.arguments,
            place=f"step {escape_text(row.step_id)}",
            call=calls[0] if len(calls) == 1 else None,
            earlier=execution.earlier,
        )


def _fits(call: Call, arguments: Mapping[str, JsonValue]) -> bool:
    """Return whether the planned call may have these arguments: all its values without bindings are the same."""
    return all(
        name in arguments and (has_bindings(value) or is_same_json(arguments[name], value))
        for name, value in call.proposed.items()
    )


def list_rows(
    execution: ExecutionState, suspension: SuspensionState, note: Callable[[str], ToolNote]
) -> Iterator[CardCall]:
    """Yield the rows of a question about many calls, with what became of each."""
    question = suspension.question
    state = execution.steps.get(question.step_id or "")
    is_over = execution.is_finished or (state is not None and state.status in STEP_TERMINAL)
    editors: dict[str, dict[str, str]] = {}
    for edit in question.edits:
        for path in edit.arguments:
            row_index, _, name = path.partition("/")
            editors.setdefault(row_index, {})[name] = describe_editor(edit)
    for row_index, row in enumerate(question.rows):
        call = execution.find_call(row.call_id)
        end, tone = ("", "busy") if suspension.is_open else _describe_end(call, is_over=is_over)
        yield build_call(
            note(row.tool_name),
            row.arguments,
            place=f"row {row_index + 1}",
            call=call,
            editors=editors.get(str(row_index), {}),
            end=end,
            tone=tone,
        )


def _describe_end(call: Call | None, *, is_over: bool) -> tuple[str, Tone]:
    if call is None or (is_over and call.status in ("proposed", "decided", "suspended")):
        return "did not run", "bad"
    words = WORDS["row"][call.status]
    return words.word, words.tone


def build_call(
    tool: ToolNote,
    arguments: Mapping[str, JsonValue],
    *,
    place: str = "",
    call: Call | None = None,
    editors: Mapping[str, str] = MappingProxyType({}),
    form: JsonValue = None,
    earlier: Mapping[Reference, EarlierResult] | None = MappingProxyType({}),
    end: str = "",
    tone: Tone = "busy",
) -> CardCall:
    """Return a call; `editors` says who edited which argument, and `form` is the form to fill in.

    If `earlier` is None, the arguments come from a host and hold no bindings.
    """
    return CardCall(
        tool=tool,
        place=place,
        arguments=tuple(
            Argument(
                name=name,
                value=ValueView(value),
                schema_title=tool.titles.get(name, ""),
                origins=(f"edited by {editors[name]}",) if name in editors else _list_origins(name, call, earlier),
                is_edited=name in editors,
                is_form=form is not None and value == form,
            )
            for name, value in arguments.items()
        ),
        end=end,
        tone=tone,
    )


def _list_origins(name: str, call: Call | None, earlier: Mapping[Reference, EarlierResult] | None) -> tuple[str, ...]:
    if call is None:
        return ()
    if earlier is None:
        return ("from the host",)
    if name not in call.proposed:
        return ("the tool's default",)
    references = find_references(call.proposed[name])
    origins = [_describe_origin(reference, earlier.get(reference)) for reference in references]
    if origins:
        return tuple(dict.fromkeys(origins))
    if is_of_host(call.tool_name):
        return ("from the host",)
    return ("written by the model" if call.by_model else "from the plan",)


def _describe_origin(reference: Reference, earlier: EarlierResult | None) -> str:
    # The pointer of a binding with a default may be any text, so a text that could pass for a fact is quoted.
    pointer = f" at {format_identifier(reference.pointer)}" if reference.pointer else ""
    if earlier is None and reference.step_id in _OWN_VALUES:
        return f"{_OWN_VALUES[reference.step_id]}{pointer}"
    parsed = ", read as JSON" if reference.parse else ""
    execution = "" if earlier is None else f" in the earlier execution {escape_text(earlier.execution_id)}"
    return f"{_FROM_RESULT}{format_identifier(reference.step_id)}{pointer}{execution}{parsed}"


def list_planned_steps(plan: dict[str, JsonValue] | None, note: Callable[[str], ToolNote]) -> Iterator[PlannedStep]:
    """Yield the steps of a plan under review, in plan order."""
    steps = cast("list[dict[str, Any]]", (plan or {}).get("todoList", []))
    for number, step in enumerate(steps, 1):
        calls = tuple(build_call(note(call["toolName"]), call["arguments"]) for call in step.get("toolCalls", ()))
        elsewhere = (*_SHOWN_ELSEWHERE, "toolCalls", *(["requiredTools"] if calls else []))
        others = ((key, value) for key, value in step.items() if key not in elsewhere and value not in ([], "tool"))
        yield PlannedStep(
            heading=f"Step {number} of {len(steps)}: {escape_text(step['id'])}",
            calls=calls,
            facts=tuple((key, ValueView(value)) for key, value in others),
        )
