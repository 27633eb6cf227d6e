"""An execution as lines of text: its steps, their calls with results and waits, and how the execution ended.

The functions return lines for a terminal to draw. They escape all text from plans, models and tools, so that it cannot
move the cursor, start a new line or imitate a line of planwarden.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.spinner import Spinner
from rich.text import Text

from planwarden.agent.common.artifact import is_stand_in
from planwarden.agent.common.errors import ModelError, count_of
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import WHEN
from planwarden.agent.core.execution.state import Call, CallStatus, ExecutionState, ModelOutage, StepState
from planwarden.server.cli.output import replace_tools_by_commands
from planwarden.server.views.decisions import (
    describe_call_edit,
    describe_decision,
    describe_rejection,
    describe_shortfall,
    find_decided,
)
from planwarden.server.views.escaping import (
    END_ISOLATE,
    ISOLATE,
    cut_text,
    escape_rest,
    escape_text,
    format_once,
    is_isolating,
    shorten_id,
)
from planwarden.server.views.execution import MAX_LOOP_CALLS, describe_rehearsal, pick_notable
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.server.views.status_text import describe_lost_patience, describe_outage
from planwarden.server.views.status_words import SIGNS, WAITS, WORDS, Mark, Tone

Style = Tone | Literal["plain", "bold"]
Part = str | tuple[str, Style]

MAX_LISTED = 20
ARGUMENT_CHARS = 70
RESULT_CHARS = 100
QUOTE_CHARS = 160
"""How many characters of a model's answer are quoted."""
MAX_TEXT_LINES = 40
"""The most lines of the final text that are shown."""
ONCE_CHARS = 80
"""How many characters of a business key are shown."""
STREAM_CHARS = 400
"""How many characters are shown from the end of an answer that a model is still writing."""


_ASCII = str.maketrans({"→": "->", "…": "...", "·": "|", "–": "-"})
_SPINNER = Spinner("dots")


class TerminalLine:
    """One line. Each of its `parts` is a text, or a text and its style, and never markup."""

    def __init__(self, *parts: Part, mark: Mark | None = None, indent: int = 0) -> None:
        self.parts = parts
        self.mark: Mark | None = mark
        self.indent = indent

    @property
    def text(self) -> str:
        """The text without styles, mark and indentation."""
        return "".join(part if isinstance(part, str) else part[0] for part in self.parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the line's rows: text that does not fit continues in the next row. Without wrapping, yield one row."""
        text, head = Text(), Text("    " * self.indent)
        for part in self.parts:
            words, style = (part, "plain") if isinstance(part, str) else part
            text.append(write_in_set(words, is_ascii=options.ascii_only), style)
        if self.mark is not None:
            sign = SIGNS[self.mark]
            symbol = sign.ascii if options.ascii_only else sign.text
            if self.mark == "busy" and console.is_terminal and not options.ascii_only:
                symbol = str(_SPINNER.render(console.get_time()))
            head = Text.assemble(" " if console.is_terminal else "", head, (symbol, sign.tone), " ")
            head.stylize("bold")
        if options.no_wrap:
            text.rstrip()
            yield head + text
            return
        for row in text.wrap(console, max(2, options.max_width - head.cell_len), overflow="fold"):
            row.rstrip()
            is_isolated = is_isolating(head.plain + row.plain)
            yield head + row + Text(END_ISOLATE * is_isolated)
            head = Text(" " * head.cell_len + ISOLATE * is_isolated)


def indent_fact(fact: str) -> TerminalLine:
    """Return the line for a fact. Its leading spaces indent every row, so that no wrapped text begins at the margin."""
    text = fact.lstrip(" ")
    return TerminalLine(text, indent=(len(fact) - len(text)) // 2)


def write_in_set(text: str, *, is_ascii: bool) -> str:
    """Return the text to print, with hidden characters escaped and, with `is_ascii`, the signs of `_ASCII` replaced."""
    result = escape_rest(text)
    return result.translate(_ASCII) if is_ascii else result


def step_lines(execution: ExecutionState, state: StepState) -> tuple[TerminalLine, ...]:
    """Return lines for a step: its head, text in place of calls, its calls, a wait for a provider, and an error."""
    step = state.step
    is_quiet = state.status in ("pending", "skipped")
    width = max((len(name) for name in execution.steps), default=0)
    name = escape_text(step.step_id).ljust(min(width, 16))
    description = one_line(step.description, 200)
    parts: list[Part] = [(name, "dim" if is_quiet else "bold"), "  ", (description, "dim" if is_quiet else "plain")]
    if state.taken_from is not None:
        parts.append((f"  (taken over from execution {escape_text(shorten_id(state.taken_from))})", "dim"))
    shortfall = describe_shortfall(state)
    if shortfall:
        parts.append((f"  ({shortfall})", "warn"))
    head = TerminalLine(*parts, mark=WORDS["step"]["partly" if shortfall else state.status].mark)
    outage = outage_lines(execution, state.outage, indent=1)
    return (head, *_prose_lines(state), *_calls_lines(execution, state), *outage, *_error_lines(execution, state))


def outage_lines(execution: ExecutionState, outage: ModelOutage | None, indent: int = 0) -> list[TerminalLine]:
    """Return one line if the prompt of the outage waits for a provider; otherwise an empty list."""
    text = None if outage is None else describe_outage(execution, outage)
    return [] if text is None else [TerminalLine((text, "warn"), mark="waits", indent=indent)]


def _prose_lines(state: StepState) -> Iterable[TerminalLine]:
    """Yield what a model wrote instead of calling its tools, and how planwarden reacted."""
    if not state.retries and not state.warned:
        return
    for turn in state.turns:
        if turn.content and not turn.call_ids:
            quote = _quote(turn.content)
            yield TerminalLine(("the model only wrote: ", "warn"), (quote, "dim"), mark="note", indent=1)
    times = "once" if state.retries == 1 else f"{state.retries} times"
    tools = ", ".join(map(escape_text, state.step.required_tools))
    if state.retries:
        yield TerminalLine(
            (f"not accepted: nothing called {tools}; told {times} to call it", "warn"), mark="note", indent=1
        )
    else:
        yield TerminalLine((f"advisory: went on without {tools}", "warn"), mark="note", indent=1)


def _calls_lines(execution: ExecutionState, state: StepState) -> Iterable[TerminalLine]:
    calls = [call for call in state.list_known_calls() if call.status != "proposed"]
    rows = calls if state.items is None or len(calls) <= MAX_LOOP_CALLS else pick_notable(calls, MAX_LOOP_CALLS)
    for call in rows:
        yield _call_line(execution, call)
    if len(rows) < len(calls):
        text = f"and {len(calls) - len(rows)} more calls; show --step {escape_text(state.step.step_id)} has all items"
        yield TerminalLine((text, "dim"), indent=1)
    if state.status == "completed" and not state.calls and not state.warned and isinstance(state.result, str):
        yield TerminalLine(("→ ", "dim"), _quote(state.result), indent=1)


def _call_line(execution: ExecutionState, call: Call) -> TerminalLine:
    ruling = find_decided(execution, call)
    only_asks = ruling is not None and ruling.question.call_id == call.call_id and ruling.question.traits.is_verbatim
    is_hidden = only_asks or _only_waited(execution, call)
    arguments = "" if is_hidden else arguments_text(call.arguments if call.arguments is not None else call.proposed)
    name = f"{escape_text(call.tool_name)}{arguments}"
    text, style = _describe_outcome(execution, call)
    parts: tuple[Part, ...] = (name, (" → ", "dim"), (text, style))
    if ruling is not None and (edit := describe_call_edit(ruling.question, call.call_id)):
        parts = (*parts, (f"  ({edit})", "warn"))
    if call.origin and execution.steps[call.step_id].taken_from is None:
        made_by = escape_text(shorten_id(call.origin.partition(":")[0]))
        parts = (*parts, (f"  (taken over from execution {made_by})", "dim"))
    if call.once is not None and call.status not in ("failed", "rehearsed"):
        parts = (*parts, (f"  ({cut_text(format_once(call.once.values), ONCE_CHARS)})", "dim"))
    return TerminalLine(*parts, indent=1)


def _describe_outcome(execution: ExecutionState, call: Call) -> tuple[str, Style]:
    texts: dict[CallStatus, tuple[str, Style]] = {
        "suspended": (_describe_wait(execution, call), "warn"),
        "failed": (one_line(f"failed: {call.error_message}", RESULT_CHARS * 2), "bad"),
        "rejected": (_describe_rejected(execution, call), "bad"),
        "rehearsed": (_describe_rehearsed(call), "warn"),
    }
    if call.status in texts:
        return texts[call.status]
    if call.status != "succeeded":
        words = WORDS["call"][call.status]
        return words.word, words.tone
    suspension = find_decided(execution, call)
    decided = describe_decision(suspension)
    if _only_waited(execution, call):
        return "the time has passed", "good"
    if decided is None or suspension is None:
        allowed = "" if call.grant_id is None else f" (allowed by grant {escape_text(shorten_id(call.grant_id))})"
        if call.rule is not None:
            allowed = f" (allowed by rule {call.rule.number})"
        return f"{value_summary(call.value)}{allowed}", "dim"
    if suspension.question.call_id != call.call_id and not suspension.question.rows:
        return f"{value_summary(call.value)} (covered by the confirmation)", "dim"
    if suspension.question.kind == "confirmation":
        return decided, "good"
    if suspension.question.kind == "input" and suspension.decision is not None:
        return f"{value_summary(suspension.decision.content)} ({decided})", "good"
    return f"{value_summary(call.value)} ({decided})", "dim"


def _only_waited(execution: ExecutionState, call: Call) -> bool:
    """Return whether the call did nothing but wait; False for a call that waits after a failed attempt."""
    suspension = execution.suspensions.get(call.suspension_id or "")
    return suspension is not None and suspension.question.addressee == "clock" and not call.attempts


def _describe_rejected(execution: ExecutionState, call: Call) -> str:
    """Return who rejected the call, and why. If the call is a row of a question, only the step shows the reason."""
    suspension = find_decided(execution, call)
    is_row = suspension is not None and bool(suspension.question.rows)
    return describe_decision(suspension, is_left_out=True, has_reason=not is_row) or "rejected"


def _describe_rehearsed(call: Call) -> str:
    rehearsed = call.rehearsed
    if rehearsed is None or rehearsed.asks == "wait":
        return "not done: a rehearsal waits for nothing"
    if rehearsed.covered_by is not None:
        return f"not done: would run after the confirmation {escape_text(rehearsed.covered_by)}"
    if rehearsed.asks is not None:
        people = "a person" if rehearsed.quorum == 1 else f"{rehearsed.quorum} people"
        return f"not done: would ask {people} first ({rehearsed.risk}, needs {rehearsed.needs})"
    grant = f", with grant {escape_text(shorten_id(rehearsed.grant_id))}" if rehearsed.grant_id is not None else ""
    rule = f", by rule {rehearsed.rule.number}" if rehearsed.rule is not None else ""
    return f"not done: would run without a question{grant or rule}"


def _describe_wait(execution: ExecutionState, call: Call) -> str:
    suspension = execution.suspensions.get(call.suspension_id or "")
    if suspension is None or suspension.question.addressee != "clock":
        return WAITS["human"]
    if call.last_failure is None or suspension.question.expires_at is None:
        return WAITS["clock"]
    until = format_instant(to_utc(suspension.question.expires_at))
    return f"failed: {one_line(call.last_failure, RESULT_CHARS * 2)}; called again at {until}"


def _error_lines(execution: ExecutionState, state: StepState) -> Iterable[TerminalLine]:
    if state.status == "rejected":
        suspension = execution.suspensions.get(state.rejected_by or "")
        # A question about one call is shown at that call, with the answer.
        if suspension is not None and suspension.question.call_id is None:
            yield TerminalLine((describe_decision(suspension, is_left_out=True) or "rejected", "bad"), indent=1)
        return
    if state.status == "skipped" and state.skipped_by == WHEN:
        yield TerminalLine(("its condition did not hold", "dim"), indent=1)
    elif state.status == "skipped" and state.skipped_by is not None and execution.options.rehearse:
        why = f"only a real run has the result of {escape_text(state.skipped_by)}"
        yield TerminalLine((why, "dim"), indent=1)
    if state.status == "skipped" and state.error_message is not None:
        yield TerminalLine(("skipped: " + one_line(state.error_message, RESULT_CHARS * 3), "dim"), indent=1)
        return
    call_errors = {call.error_message for call in state.calls if call.status == "failed"}
    if state.error_message is not None and not any(text and text in state.error_message for text in call_errors):
        yield TerminalLine(
            (f"error: {one_line(replace_tools_by_commands(state.error_message), RESULT_CHARS * 3)}", "bad"), indent=1
        )


def outcome_lines(execution: ExecutionState) -> tuple[TerminalLine, ...]:
    """Return how the execution ended: counts that the log proves, the final text, and the error."""
    successes = sum(1 for state in execution.steps.values() if state.status == "completed")
    usage = execution.usage
    steps = count_of(len(execution.steps), "step")
    counts = [f"{successes} of {steps} completed", count_of(usage.tool_calls, "tool call")]
    if usage.model_calls:
        counts.append(f"{usage.model_calls} model {'reply' if usage.model_calls == 1 else 'replies'}")
    lines = [TerminalLine(" · ".join(counts))]
    if execution.synthesis:
        lines.append(TerminalLine(("The agent says (unverified):", "dim")))
        texts = execution.synthesis.split("\n")
        lines += [TerminalLine(escape_text(text), indent=1) for text in texts[:MAX_TEXT_LINES]]
        if len(texts) > MAX_TEXT_LINES:
            lines.append(TerminalLine((f"and {count_of(len(texts) - MAX_TEXT_LINES, 'more line')}", "dim")))
    if execution.error_code is not None:
        message = one_line(replace_tools_by_commands(execution.error_message or ""), 500)
        lines.append(TerminalLine((f"{execution.error_code}: ", "bad"), message))
    lost = describe_lost_patience(execution)
    if lost is not None:
        lines.append(TerminalLine((f"{ModelError.code}: ", "bad"), lost))
    elif execution.exhausted is not None:
        lines.append(TerminalLine((f"the budget of {execution.exhausted} is used up", "bad")))
    if execution.status == "rehearsed":
        lines.append(TerminalLine((describe_rehearsal(execution), "warn")))
    if execution.status == "rejected" and (rejection := describe_rejection(execution)):
        lines.append(TerminalLine((rejection, "bad")))
    if execution.cancel_reason:
        lines.append(TerminalLine(f"cancelled: {one_line(execution.cancel_reason, 300)}"))
    return tuple(lines)


def streaming_line(text: str) -> TerminalLine:
    """Return the end of an answer that a model is still writing. The next drawing replaces it."""
    tail = escape_text(text[-STREAM_CHARS:])[-STREAM_CHARS:]
    return TerminalLine(("writing: ", "busy"), (f"…{tail}", "dim"), mark="busy")


def arguments_text(arguments: Mapping[str, JsonValue]) -> str:
    """Return `(name=value, …)` on one line, cut to `ARGUMENT_CHARS`."""
    inside = ", ".join(f"{escape_text(name)}={value_summary(value, 40)}" for name, value in arguments.items())
    return f"({_cut(inside, ARGUMENT_CHARS)})"


def value_summary(value: JsonValue, limit: int = RESULT_CHARS) -> str:
    """Return a value in at most `limit` characters: a short list as it is, a long list as the number of its items."""
    if isinstance(value, dict):
        if is_stand_in(value):
            return f"{value['sizeBytes']} bytes, artifact {escape_text(str(value['artifactId']))}"
        if "$from" in value:
            return f"from {escape_text(str(value['$from']))}"
        parts = (f"{escape_text(key)}: {_summarize(child)}" for key, child in value.items())
        return _cut(", ".join(parts) or "{}", limit)
    return _cut(_summarize(value), limit)


def _summarize(value: JsonValue) -> str:
    whole = escape_text(json.dumps(value, ensure_ascii=False))
    if len(whole) <= 40 or not isinstance(value, list | dict):
        return whole
    return count_of(len(value), "item") if isinstance(value, list) else "{…}"


def one_line(text: str, limit: int) -> str:
    """Return the text on one line, escaped, and cut to `limit` characters."""
    return _cut(escape_text(" ".join(text.split("\n")).strip()), limit)


def join_names(names: Sequence[str]) -> str:
    """Return the first `MAX_LISTED` names, escaped, and the number of the others."""
    text = ", ".join(one_line(name, 64) for name in names[:MAX_LISTED])
    return text + (f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else "")


def _quote(text: str) -> str:
    return f'"{one_line(text, QUOTE_CHARS)}"'


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else cut_text(text, limit - 1) + "…"
