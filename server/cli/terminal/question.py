"""A question in the terminal: what planwarden found, the facts, what the agent says, then the prompt.

Nobody approves by accident: only a typed `y` or `yes` approves, and an empty line leaves the question open. The caller
sends the digest of the shown question with the decision, so a question that changed meanwhile is refused.
"""

import json
from collections.abc import Sequence

from msgspec.structs import replace

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import is_of_host
from planwarden.server.cli.terminal.editor import FaultFinder, edit_arguments, edit_json
from planwarden.server.cli.terminal.form import ask_for_json, fill_in
from planwarden.server.cli.terminal.lines import Style, TerminalLine
from planwarden.server.cli.terminal.rows import RowTable
from planwarden.server.cli.terminal.terminal import NO, YES, Choice, Terminal
from planwarden.server.views.facts import VALUE_CHARS, escape_text, format_value, shorten_id
from planwarden.server.views.question_text import build_heading, build_label, build_voices, format_words, is_whole
from planwarden.server.views.suspension import Suspension

MIN_DIGEST_CHARS = 12
"""How much of a digest names a question; it stands only below what is shown whole."""

_NEEDS = {
    "client": "a person, here or in a form of the client",
    "human": "a person, here or in the inbox",
    "signed": "a signature in the inbox, or a person other than the owner",
    "second": "a person other than the owner",
}
_RISK_STYLES: dict[str | None, Style] = {"dangerous": "bad", "critical": "bad"}


def show(terminal: Terminal, suspension: Suspension, *, is_cut: bool = True, is_paged: bool = False) -> None:
    """Draws the question in a frame; long values are cut unless nobody can ask here to view all.

    Where it is paged, `ask` draws the rows of a question about many calls.
    """
    shown = replace(suspension, calls=()) if is_paged else suspension
    voices = build_voices(shown, limit=VALUE_CHARS if is_cut else None, is_cut=is_cut)
    lines = [TerminalLine(((voices.place, "dim"),))] if voices.place else []
    lines += [TerminalLine((("planwarden found: ", "warn"), sentence), "note") for sentence in voices.found]
    lines += [_indent(fact) for fact in voices.facts]
    if suspension.needs is not None:
        lines.append(TerminalLine((f"Needs: {_NEEDS.get(suspension.needs, suspension.needs)}",)))
    if not is_cut:
        lines.append(TerminalLine(((f"Digest: {suspension.digest[:MIN_DIGEST_CHARS]}", "dim"),)))
    lines += [TerminalLine(((f"{voices.label}:", "bold"),)), TerminalLine(((voices.words, "dim"),), indent=1)]
    terminal.panel(
        f"{build_heading(suspension)} {shorten_id(suspension.suspension_id)}",
        lines,
        _RISK_STYLES.get(suspension.risk, "warn"),
    )


def _indent(fact: str) -> TerminalLine:
    """Keeps what a long value continues on further lines away from the margin, where planwarden speaks."""
    text = fact.lstrip(" ")
    return TerminalLine((text,), indent=(len(fact) - len(text)) // 2)


def ask(terminal: Terminal, suspension: Suspension, find_faults: FaultFinder) -> Decision | None:
    """Returns the decision that the person typed; None when the question stays open."""
    if suspension.calls:
        rows = RowTable(terminal, suspension, find_faults)
        rows.show()
        return terminal.choose("Approve?", lambda: rows.list_choices(_reject(terminal)))
    if suspension.answer_schema is not None and not is_whole(suspension):
        _show_whole(terminal, suspension)
    if suspension.kind == "reconcile":
        return _ask_what_happened(terminal)
    if suspension.answer_schema is not None:
        return _ask_for_form(terminal, suspension.answer_schema)
    whole = Choice(("v",), "v view all", lambda: _show_whole(terminal, suspension))
    viewing = [] if is_whole(suspension) else [whole]
    if suspension.background.plan is not None:
        return _ask_for_review(terminal, suspension, suspension.background.plan, viewing)
    return _ask_for_consent(terminal, suspension, find_faults, viewing)


def _ask_for_consent(
    terminal: Terminal, suspension: Suspension, find_faults: FaultFinder, viewing: Sequence[Choice]
) -> Decision | None:
    call = suspension.tool_call
    edited: dict[str, JsonValue] | None = None

    def edit() -> None:
        nonlocal edited
        if call is not None:
            arguments = call.arguments if edited is None else edited
            changed = edit_arguments(terminal, "The call", call.tool_name, arguments, find_faults)
            edited = edited if changed is None else changed

    may_edit = call is not None and suspension.asker is None and not is_of_host(call.tool_name)
    choices = [
        Choice(YES, "y yes", lambda: Decision(approved=True, modified_args=edited)),
        _reject(terminal),
        *([Choice(("e",), "e edit the arguments", edit)] if may_edit else []),
        *viewing,
    ]
    return terminal.choose("Approve?", lambda: choices)


def _ask_for_review(
    terminal: Terminal, suspension: Suspension, plan: dict[str, JsonValue], viewing: Sequence[Choice]
) -> Decision | None:
    """As for consent; the person may also edit the plan, or approve its known calls at once."""
    edited = dict[str, JsonValue]()

    def cover() -> Decision | None:
        if not edited:
            return Decision(approved=True, content={"cover": True})
        terminal.warn("An edited plan is approved without covering calls: y approves it.")
        return None

    def edit() -> None:
        changed = _edit_plan(terminal, edited.get("plan", plan))
        if changed is not None:
            edited["plan"] = changed

    covering = f"c yes, and the {len(suspension.confirms)} call(s) that it can cover"
    choices = [
        Choice(YES, "y yes", lambda: Decision(approved=True, content=edited or None)),
        *([Choice(("c",), covering, cover)] if suspension.confirms else []),
        _reject(terminal),
        Choice(("e",), "e edit the plan", edit),
        *viewing,
    ]
    return terminal.choose("Start it?", lambda: choices)


def _edit_plan(terminal: Terminal, plan: JsonValue) -> JsonValue | None:
    """Returns the edited plan; None when it did not change."""
    edited = edit_json(terminal, plan)
    if edited is None or edited == plan or not isinstance(edited, dict):
        terminal.say("The plan is as it was.")
        return None
    terminal.warn("It would run as:")
    terminal.say(*map(escape_text, json.dumps(edited, ensure_ascii=False, indent=2).splitlines()))
    return edited


def _reject(terminal: Terminal, keys: tuple[str, ...] = NO, label: str = "n no, reject it") -> Choice:
    return Choice(keys, label, lambda: _ask_reason(terminal))


def _ask_reason(terminal: Terminal) -> Decision | None:
    reason = terminal.ask("Why not? (Enter: no reason given) ")
    return None if reason is None else Decision(approved=False, reason=reason[:2_000] or None)


def _ask_for_form(terminal: Terminal, form: dict[str, JsonValue]) -> Decision | None:
    content = fill_in(terminal, form)
    if content is None:
        return None
    terminal.say(TerminalLine((("Your answer: ", "bold"), escape_text(json.dumps(content, ensure_ascii=False)))))
    sending = Choice(YES, "y yes", lambda: Decision(content=content))
    rejecting = _reject(terminal, ("r", "reject"), "r reject the question")
    return terminal.choose("Send it?", lambda: [sending, rejecting])


def _ask_what_happened(terminal: Terminal) -> Decision | None:
    terminal.say(
        "y  it happened: the step continues with the result that you type",
        "n  it did not happen: the call is run again",
        "g  give up: the step fails",
    )

    def ask_for_result() -> Decision | None:
        is_usable, result = ask_for_json(terminal, "Its result as JSON (Enter: none): ")
        if not is_usable:
            return None
        return Decision(content={"happened": True} if result is None else {"happened": True, "result": result})

    choices = [
        Choice(YES, "y", ask_for_result),
        Choice(NO, "n", lambda: Decision(content={"happened": False})),
        _reject(terminal, ("g", "give up"), "g"),
    ]
    return terminal.choose("Did it happen?", lambda: choices)


def _show_whole(terminal: Terminal, suspension: Suspension) -> None:
    calls: list[tuple[str, dict[str, JsonValue]]] = []
    if suspension.background.plan is not None:
        calls.append(("the plan", suspension.background.plan))
    if suspension.tool_call is not None:
        calls.append((suspension.tool_call.tool_name, suspension.tool_call.arguments))
    calls += [(covered.tool_name, covered.arguments) for covered in suspension.covered]
    for name, arguments in calls:
        terminal.say(TerminalLine(((escape_text(name), "bold"),)))
        terminal.say(*map(escape_text, json.dumps(arguments, ensure_ascii=False, indent=2).splitlines()))
    for vote in suspension.endorsements:
        if vote.content is not None:
            terminal.say(f"{escape_text(vote.principal)} answered {format_value(vote.content, None)}")
    terminal.say(f"{build_label(suspension)}: {format_words(suspension, is_cut=False)}")
