"""An execution as lines of text: what each step called, what came of it, what waits, how it ended.

Pure values; a screen only draws them. Everything that came from a plan, a model or a tool is escaped here, so nothing
of it can move the cursor, start a line or pretend to be one of ours.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from planwarden.agent.common.artifact import is_stand_in
from planwarden.agent.core.state import Call, CallStatus, ExecutionState, ExecutionStatus, StepState, StepStatus
from planwarden.server.views.facts import escape_text

Style = Literal["plain", "bold", "dim", "good", "bad", "warn", "busy"]
Mark = Literal["done", "busy", "asks", "waits", "failed", "rejected", "skipped", "note"]
Part = str | tuple[str, Style]

ARGUMENT_CHARS = 70
RESULT_CHARS = 100
SPOKEN_CHARS = 160
HEARD_CHARS = 400


@dataclass(frozen=True, slots=True)
class TerminalLine:
    """One line; `parts` are texts, some with a style."""

    parts: tuple[Part, ...] = ()
    mark: Mark | None = None
    indent: int = 0

    @property
    def text(self) -> str:
        """The words without styles, mark and indentation."""
        return "".join(part if isinstance(part, str) else part[0] for part in self.parts)


STYLES: Mapping[Mark, Style] = {
    "done": "good",
    "busy": "busy",
    "asks": "warn",
    "waits": "dim",
    "failed": "bad",
    "rejected": "bad",
    "skipped": "dim",
    "note": "warn",
}

_STEP_MARKS: Mapping[StepStatus, Mark] = {
    "pending": "waits",
    "in_progress": "busy",
    "suspended": "asks",
    "completed": "done",
    "rejected": "rejected",
    "failed": "failed",
    "skipped": "skipped",
}

OUTCOMES: Mapping[ExecutionStatus, tuple[Mark, Style]] = {
    "new": ("busy", "busy"),
    "running": ("busy", "busy"),
    "planned": ("waits", "plain"),
    "suspended": ("asks", "warn"),
    "completed": ("done", "good"),
    "rejected": ("rejected", "bad"),
    "failed": ("failed", "bad"),
    "incomplete": ("failed", "bad"),
    "cancelled": ("skipped", "dim"),
}


def step_lines(execution: ExecutionState, state: StepState) -> tuple[TerminalLine, ...]:
    """The step, then one line for every prose answer that did not count, every call, and its trouble."""
    step = state.step
    is_quiet = state.status in ("pending", "skipped")
    width = max((len(name) for name in execution.steps), default=0)
    name = escape_text(step.step_id).ljust(min(width, 16))
    description = one_line(step.description, 200)
    parts: tuple[Part, ...] = (
        ((name, "dim"), "  ", (description, "dim")) if is_quiet else ((name, "bold"), "  ", description)
    )
    head = TerminalLine(parts, _STEP_MARKS[state.status])
    return (head, *_prose_lines(state), *_calls_lines(execution, state), *_trouble_lines(state))


def _prose_lines(state: StepState) -> Iterable[TerminalLine]:
    """What a model wrote instead of calling its tools; shown because it was not believed."""
    if not state.retries and not state.warned:
        return
    for turn in state.turns:
        if turn.call_ids or not turn.content:
            continue
        yield TerminalLine(
            (("the model only wrote: ", "warn"), (_quoted(turn.content, SPOKEN_CHARS), "dim")), "note", 1
        )
    times = "once" if state.retries == 1 else f"{state.retries} times"
    named = ", ".join(map(escape_text, state.step.required_tools))
    if state.retries:
        yield TerminalLine(((f"not accepted: nothing called {named}; told {times} to call it", "warn"),), "note", 1)
    else:
        yield TerminalLine(((f"advisory: went on without {named}", "warn"),), "note", 1)


def _calls_lines(execution: ExecutionState, state: StepState) -> Iterable[TerminalLine]:
    for call in state.calls:
        if call.status != "proposed":
            yield _call_line(execution, call)
    if state.status == "completed" and not state.calls and not state.warned and isinstance(state.result, str):
        yield TerminalLine((("→ ", "dim"), _quoted(state.result, SPOKEN_CHARS)), indent=1)


def _call_line(execution: ExecutionState, call: Call) -> TerminalLine:
    suspension = execution.suspensions.get(call.suspension_id or "")
    is_question = suspension is not None and suspension.question.call_id == call.call_id
    only_asks = is_question and suspension is not None and suspension.question.kind in ("confirmation", "input", "wait")
    arguments = "" if only_asks else arguments_text(call.arguments if call.arguments is not None else call.proposed)
    name = f"{escape_text(call.tool_name)}{arguments}"
    text, style = _outcome(execution, call)
    return TerminalLine((name, (" → ", "dim"), (text, style)), indent=1)


def _outcome(execution: ExecutionState, call: Call) -> tuple[str, Style]:
    texts: dict[CallStatus, tuple[str, Style]] = {
        "running": ("running", "busy"),
        "decided": ("decided", "busy"),
        "suspended": (_waiting_for(execution, call), "warn"),
        "failed": (one_line(f"failed: {call.error_message}", RESULT_CHARS * 2), "bad"),
        "rejected": (decision_text(execution, call.suspension_id) or "rejected", "bad"),
        "outcome_unknown": ("nobody knows whether it happened", "bad"),
    }
    if call.status in texts:
        return texts[call.status]
    suspension = execution.suspensions.get(call.suspension_id or "")
    decided = decision_text(execution, call.suspension_id)
    if decided is None or suspension is None:
        return value_summary(call.value), "dim"
    if suspension.question.call_id != call.call_id:
        return f"{value_summary(call.value)} (covered by the confirmation)", "dim"
    if suspension.question.kind in ("confirmation", "wait"):
        return decided, "good"
    if suspension.question.kind == "input" and suspension.decision is not None:
        return f"{value_summary(suspension.decision.content)} ({decided})", "good"
    return f"{value_summary(call.value)} ({decided})", "dim"


def _waiting_for(execution: ExecutionState, call: Call) -> str:
    suspension = execution.suspensions.get(call.suspension_id or "")
    if suspension is not None and suspension.question.addressee == "clock":
        return "waits for the clock"
    return "waits for a person"


def decision_text(execution: ExecutionState, suspension_id: str | None) -> str | None:
    """Who decided and what that proves, in the words of the log; None while nobody did."""
    suspension = execution.suspensions.get(suspension_id or "")
    if suspension is None or suspension.is_open:
        return None
    if suspension.question.addressee == "clock":
        return "the time has passed"
    if suspension.status == "timed_out":
        return f"nobody answered in time: {suspension.question.on_timeout}"
    if suspension.decision is None:
        return "withdrawn"
    verdict = "approved" if suspension.decision.approved else "rejected"
    who = escape_text(suspension.principal or "somebody")
    said = suspension.decision.reason
    reason = f": {_quoted(said, SPOKEN_CHARS)}" if said else ""
    return f"{verdict} by {who} ({suspension.assurance}, {escape_text(suspension.channel or '')}){reason}"


def _trouble_lines(state: StepState) -> Iterable[TerminalLine]:
    if state.status == "rejected":
        return
    shown = {call.error_message for call in state.calls if call.status == "failed"}
    if state.error_message is not None and not any(text and text in state.error_message for text in shown):
        yield TerminalLine((("error: " + one_line(state.error_message, RESULT_CHARS * 3), "bad"),), indent=1)


def outcome_lines(execution: ExecutionState) -> tuple[TerminalLine, ...]:
    """How it ended: counts that the log proves, the text if there is one, the error if there is one."""
    done = sum(1 for state in execution.steps.values() if state.status == "completed")
    usage = execution.usage
    counts = [f"{done} of {len(execution.steps)} steps completed", _many(usage.tool_calls, "tool call")]
    if usage.model_calls:
        counts.append(_many(usage.model_calls, "model reply", "model replies"))
    lines = [TerminalLine((" · ".join(counts),))]
    if execution.synthesis:
        lines += [TerminalLine((escape_text(text),)) for text in execution.synthesis.splitlines()[:40]]
    if execution.error_code is not None:
        message = one_line(execution.error_message or "", 500)
        lines.append(TerminalLine(((f"{execution.error_code}: ", "bad"), message)))
    if execution.exhausted is not None:
        lines.append(TerminalLine(((f"the budget of {execution.exhausted} is used up", "bad"),)))
    if execution.cancel_reason:
        lines.append(TerminalLine((f"cancelled: {one_line(execution.cancel_reason, 300)}",)))
    return tuple(lines)


def heard_line(heard: str) -> TerminalLine:
    """The end of an answer that a model is writing; it is progress and disappears with the next drawing."""
    tail = escape_text(heard[-HEARD_CHARS:])[-HEARD_CHARS:]
    return TerminalLine((("writing: ", "busy"), (f"…{tail}", "dim")), "busy")


def arguments_text(arguments: Mapping[str, JsonValue]) -> str:
    """`(name=value, …)` on one line, cut."""
    inside = ", ".join(f"{escape_text(name)}={value_summary(value, 40)}" for name, value in arguments.items())
    return f"({_cut(inside, ARGUMENT_CHARS)})"


def value_summary(value: JsonValue, limit: int = RESULT_CHARS) -> str:
    """A value in a few words: short ones whole, long lists by their length."""
    if isinstance(value, dict):
        if is_stand_in(value):
            return f"{value['sizeBytes']} bytes, artifact {escape_text(str(value['artifactId']))}"
        if "$from" in value:
            return f"from {escape_text(str(value['$from']))}"
        parts = (f"{escape_text(key)}: {_inner(child)}" for key, child in value.items())
        return _cut(", ".join(parts) or "{}", limit)
    return _cut(_inner(value), limit)


def _inner(value: JsonValue) -> str:
    if isinstance(value, list):
        whole = _json(value)
        return whole if len(whole) <= 40 else _many(len(value), "item")
    if isinstance(value, dict):
        whole = _json(value)
        return whole if len(whole) <= 40 else "{…}"
    return _json(value)


def one_line(text: str, limit: int) -> str:
    """The text escaped and cut, on one line."""
    return _cut(escape_text(" ".join(text.split("\n")).strip()), limit)


def _quoted(text: str, limit: int) -> str:
    return f'"{one_line(text, limit)}"'


def _json(value: JsonValue) -> str:
    return escape_text(json.dumps(value, ensure_ascii=False))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _many(number: int, one: str, several: str | None = None) -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"
