"""A question in the terminal: what planwarden found, the facts, what the agent says, then the prompt.

Nobody approves by accident: only a typed `y` or `yes` approves, and an empty line leaves the question open. The caller
sends the digest of the shown question with the decision, so a question that changed meanwhile is refused.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import is_of_host
from planwarden.server.cli.terminal.commands import shorten
from planwarden.server.cli.terminal.lines import Style, TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.facts import VALUE_CHARS, escape_text, format_value
from planwarden.server.views.suspension import Suspension
from planwarden.server.views.voices import build_heading, build_label, build_voices, format_words, is_whole

# Most questions take a yes or a no: what edits, fills in and leafs through rows is imported for those that take more.
if TYPE_CHECKING:
    from planwarden.server.cli.terminal.editor import FaultFinder
    from planwarden.server.cli.terminal.rows import RowTable

MIN_DIGEST_CHARS = 12
"""How much of a digest names a question; it stands only below what is shown whole."""
YES, NO = ("y", "yes"), ("n", "no")

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
        f"{build_heading(suspension)} {shorten(suspension.suspension_id)}",
        lines,
        _RISK_STYLES.get(suspension.risk, "warn"),
    )


def _indent(fact: str) -> TerminalLine:
    """Keeps what a long value continues on further lines away from the margin, where planwarden speaks."""
    text = fact.lstrip(" ")
    return TerminalLine((text,), indent=(len(fact) - len(text)) // 2)


def ask(terminal: Terminal, suspension: Suspension, find_faults: "FaultFinder") -> Decision | None:
    """Returns the decision that the person typed; None when the question stays open."""
    if suspension.calls:
        from planwarden.server.cli.terminal.rows import RowTable

        return _ask_about_rows(terminal, RowTable(terminal, suspension, find_faults))
    if suspension.answer_schema is not None and not is_whole(suspension):
        _show_whole(terminal, suspension)
    if suspension.kind == "reconcile":
        return _ask_what_happened(terminal)
    if suspension.answer_schema is not None:
        return _ask_for_form(terminal, suspension.answer_schema)
    if suspension.background.plan is not None:
        return _ask_for_review(terminal, suspension, suspension.background.plan)
    return _ask_for_consent(terminal, suspension, find_faults)


def _ask_for_consent(terminal: Terminal, suspension: Suspension, find_faults: "FaultFinder") -> Decision | None:
    call = suspension.tool_call
    is_cut = not is_whole(suspension)
    may_edit = call is not None and suspension.asker is None and not is_of_host(call.tool_name)
    choices = [
        "y yes",
        "n no, reject it",
        *(["e edit the arguments"] if may_edit else []),
        *(["v view all"] if is_cut else []),
    ]
    prompt = f"Approve? [{' · '.join(choices)} · Enter leaves it open] "
    edited: dict[str, JsonValue] | None = None
    while True:
        typed = terminal.ask(prompt)
        key = (typed or "").lower()
        if key in YES:
            return Decision(approved=True, modified_args=edited)
        if key in NO:
            return _ask_reason(terminal)
        if key == "v" and is_cut:
            _show_whole(terminal, suspension)
        elif key == "e" and call is not None and may_edit:
            from planwarden.server.cli.terminal.editor import edit_arguments

            arguments = call.arguments if edited is None else edited
            changed = edit_arguments(terminal, "The call", call.tool_name, arguments, find_faults)
            edited = edited if changed is None else changed
        elif key == "":
            return None
        else:
            terminal.say(TerminalLine((("Type one of the letters, or Enter to leave the question open.", "warn"),)))


def _ask_about_rows(terminal: Terminal, rows: "RowTable") -> Decision | None:
    """As for consent, about rows of which some may be left out or edited."""
    rows.show()
    acts: dict[str, Callable[[], None]] = {
        "s": rows.choose,
        "e": rows.edit,
        "+": lambda: rows.turn(1),
        "-": lambda: rows.turn(-1),
        "v": lambda: rows.show(is_cut=False),
    }
    while True:
        key = (terminal.ask(f"Approve? [{' · '.join(rows.choices)} · Enter leaves it open] ") or "").lower()
        if key in YES and (decision := rows.approve()) is not None:
            return decision
        if key in NO:
            return _ask_reason(terminal)
        if key == "":
            return None
        if key in acts:
            acts[key]()
        elif key not in YES:
            terminal.say(TerminalLine((("Type one of the letters, or Enter to leave the question open.", "warn"),)))


def _ask_for_review(terminal: Terminal, suspension: Suspension, plan: dict[str, JsonValue]) -> Decision | None:
    """As for consent; the person may also edit the plan, or approve its known calls at once."""
    is_cut, edited = not is_whole(suspension), dict[str, JsonValue]()
    choices = [
        "y yes",
        *([f"c yes, and the {len(suspension.confirms)} call(s) that it can cover"] if suspension.confirms else []),
        "n no, reject it",
        "e edit the plan",
        *(["v view all"] if is_cut else []),
    ]
    prompt = f"Start it? [{' · '.join(choices)} · Enter leaves it open] "
    while True:
        key = (terminal.ask(prompt) or "").lower()
        if key in YES or (key == "c" and suspension.confirms and not edited):
            content: dict[str, JsonValue] = {**edited, **({"cover": True} if key == "c" else {})}
            return Decision(approved=True, content=content or None)
        if key in NO:
            return _ask_reason(terminal)
        if key == "v" and is_cut:
            _show_whole(terminal, suspension)
        elif key == "e":
            changed = _edit_plan(terminal, edited.get("plan", plan))
            edited = edited if changed is None else {"plan": changed}
        elif key == "c" and edited:
            terminal.say(TerminalLine((("An edited plan is approved without covering calls: y approves it.", "warn"),)))
        elif key == "":
            return None
        else:
            terminal.say(TerminalLine((("Type one of the letters, or Enter to leave the question open.", "warn"),)))


def _edit_plan(terminal: Terminal, plan: JsonValue) -> JsonValue | None:
    """Returns the edited plan; None when it did not change."""
    from planwarden.server.cli.terminal.editor import edit_json

    edited = edit_json(terminal, plan)
    if edited is None or edited == plan or not isinstance(edited, dict):
        terminal.say("The plan is as it was.")
        return None
    terminal.say(
        TerminalLine((("It would run as:", "warn"),)),
        *map(escape_text, json.dumps(edited, ensure_ascii=False, indent=2).splitlines()),
    )
    return edited


def _ask_reason(terminal: Terminal) -> Decision | None:
    reason = terminal.ask("Why not? (Enter: no reason given) ")
    return None if reason is None else Decision(approved=False, reason=reason[:2_000] or None)


def _ask_for_form(terminal: Terminal, form: dict[str, JsonValue]) -> Decision | None:
    from planwarden.server.cli.terminal.form import fill_in

    content = fill_in(terminal, form)
    if content is None:
        return None
    while True:
        terminal.say(TerminalLine((("Your answer: ", "bold"), escape_text(json.dumps(content, ensure_ascii=False)))))
        key = (terminal.ask("Send it? [y yes · r reject the question · Enter leaves it open] ") or "").lower()
        if key in YES:
            return Decision(content=content)
        if key in ("r", "reject"):
            return _ask_reason(terminal)
        if key in ("", *NO):
            return None


def _ask_what_happened(terminal: Terminal) -> Decision | None:
    terminal.say(
        "y  it happened: the step continues with the result that you type",
        "n  it did not happen: the call is run again",
        "g  give up: the step fails",
    )
    while True:
        key = (terminal.ask("Did it happen? [y · n · g · Enter leaves it open] ") or "").lower()
        if key in YES:
            from planwarden.server.cli.terminal.form import ask_for_json

            is_usable, result = ask_for_json(terminal, "Its result as JSON (Enter: none): ")
            if not is_usable:
                continue
            return Decision(content={"happened": True} if result is None else {"happened": True, "result": result})
        if key in NO:
            return Decision(content={"happened": False})
        if key in ("g", "give up"):
            return _ask_reason(terminal)
        if key == "":
            return None


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
