"""A question in three voices that are never mixed: what planwarden found, the facts, and what somebody says.

Every surface for people takes its sentences from here: the page, the terminal, forms, the view of hosts with MCP Apps,
prompts and the digest of what was shown. Each voice has a field of its own, in the order in which it is shown:

* `heading` and `found` are planwarden's own sentences: that the tool changed, who edited arguments, that it is a retry.
  Texts of others stand in them as quoted JSON only.
* `facts` come from the stored call, see `planwarden.server.views.facts`.
* `words` are those of whoever asks, under `label`, and nothing that planwarden added: for an approval the step's
  description. They are escaped, on one line, and cut; only those of the operator's own plan count as verified.
"""

from collections.abc import Iterator

import msgspec

from planwarden.agent.core.suspension_kinds import KINDS
from planwarden.server.views.facts import (
    VALUE_CHARS,
    count_hidden_in,
    cut_text,
    escape_text,
    find_repeated_argument,
    format_argument_name,
    format_facts,
    format_value,
    hash_text,
    iterate_strings,
    list_planned_steps,
    measure_text,
)
from planwarden.server.views.lineage_facts import list_lineage_facts
from planwarden.server.views.suspension import Background, EditView, Suspension
from planwarden.server.views.tools import RuleView

AGENT_CHARS = 500
ASKER_CHARS = 3_000
"""Replaces `AGENT_CHARS` when a server or another agent asks, because all of its question must be seen."""
GOAL_CHARS = 300

_ASSURANCES = {
    "human": "a person, ",
    "signed": "a person with a key, ",
    "second": "a second person, ",
    "claimed": "the calling model's claim, ",
    "caller": "the calling model, ",
    "timeout": "by itself, ",
}
_CHANNELS = {
    "inbox": "in the inbox",
    "terminal": "at the terminal",
    "terminal --yes": "with --yes at a terminal",
    "code": "with a code of the inbox",
    "elicitation": "in a form of the host",
    "tasks": "in a form of the host",
    "app": "in a view of the host",
    "mcp": "over MCP",
    "oauth": "after a login",
    "python": "in the program",
}


class Voices(msgspec.Struct, frozen=True, kw_only=True):
    """One question. No line breaks; no field holds a sentence of another voice."""

    heading: str
    place: str
    """Which step of what, and which program asked for it; the goal and the program's name are quoted claims."""
    found: tuple[str, ...]
    facts: tuple[str, ...]
    label: str
    """Says whose `words` these are, and that they are unverified unless the operator's own plan has them."""
    words: str

    @property
    def lines(self) -> list[str]:
        """Everything but the place as lines of text, in the order of the voices."""
        found = (f"planwarden found: {sentence}" for sentence in self.found)
        return [self.heading, *found, *self.facts, f"{self.label}: {self.words}"]


def build_voices(
    suspension: Suspension, *, limit: int | None = VALUE_CHARS, is_cut: bool = True, is_form_shown: bool = False
) -> Voices:
    """Returns the question in its voices; `limit` cuts values, `is_cut` the words, `is_form_shown` as in the facts."""
    return Voices(
        heading=build_heading(suspension),
        place=format_place(suspension.background),
        found=tuple(format_found(suspension, limit)),
        facts=(
            *format_facts(suspension, limit=limit, is_form_shown=is_form_shown),
            *(f"{fact.name}: {fact.text}" for fact in list_lineage_facts(suspension.background.lineage)),
        ),
        label=build_label(suspension),
        words=format_words(suspension, is_cut=is_cut),
    )


def build_heading(suspension: Suspension) -> str:
    """Returns planwarden's question."""
    if suspension.asker is not None:
        return f"{_capitalize(escape_text(suspension.asker))} asks"
    if len(suspension.calls) > 1:
        return f"Run these {len(suspension.calls)} calls?"
    return KINDS[suspension.kind].heading


def build_title(suspension: Suspension) -> str:
    """Returns the heading with the tool's name where it is about a call, for lists and notices."""
    if suspension.is_about_calls and suspension.tool_call is not None:
        return f"Run {escape_text(suspension.tool_call.tool_name)}?"
    if suspension.calls:
        names = sorted({escape_text(call.tool_name) for call in suspension.calls})
        return f"Run {', '.join(names)} {len(suspension.calls)} times?"
    return build_heading(suspension)


def build_label(suspension: Suspension) -> str:
    """Returns whose words the question has."""
    note = "" if suspension.is_verified else " (unverified)"
    return f"{_capitalize(escape_text(suspension.speaker))} says{note}"


def format_place(background: Background) -> str:
    """Returns for example `Step 2 of 3 of "Remind customers" \u00b7 Claude Code`; empty without a step and a host."""
    parts: list[str] = []
    if background.step_number or background.plan is not None:
        goal = (background.goal or "")[:GOAL_CHARS]
        of_goal = f" of {format_value(goal)}" if goal else ""
        place = f"Step {background.step_number} of {background.step_count}"
        parts.append(f"{place if background.step_number else f'Plan of {background.step_count} step(s)'}{of_goal}")
    if background.host:
        parts.append(format_host(background.host))
    return " \u00b7 ".join(parts)


def format_host(name: str) -> str:
    """Returns the name of a program; quoted when it has characters that could pass for more than a name."""
    is_plain = name.isascii() and all(part.isalnum() or part in " _-./:@()" for part in name)
    return name if is_plain else format_value(name)


def format_found(
    suspension: Suspension, limit: int | None = VALUE_CHARS, *, escaped_count: int | None = None
) -> Iterator[str]:
    """Yields what planwarden found, one sentence each; `escaped_count` replaces the number of escaped characters."""
    yield from map(escape_text, suspension.found)
    if suspension.rule is not None:
        yield format_rule(suspension.rule)
    for edit in suspension.edits:
        editor = describe_editor(edit)
        # A person's name stays as it is.
        start = _capitalize(editor) if editor.startswith("the ") else editor
        yield f"{start} edited after it was asked: {format_edited_arguments(edit, limit)}."
    if suspension.revision > 1 and not suspension.found and not suspension.edits:
        yield f"This is revision {suspension.revision}: something changed since it was first asked."
    if suspension.undecidable is not None:
        yield f"It cannot be approved here, only rejected: {escape_text(suspension.undecidable)}"
    escaped = count_escaped(suspension) if escaped_count is None else escaped_count
    if escaped:
        yield f"Control or invisible characters escaped: {escaped}."


def format_rule(rule: RuleView) -> str:
    """Returns which rule of the operator applies, and on which values, in a sentence."""
    matched = f"; here {', '.join(map(escape_text, rule.matched))}" if rule.matched else ""
    return f"Rule {rule.number} applies: {escape_text(rule.words)}{matched}."


def format_words(suspension: Suspension, *, is_cut: bool = True) -> str:
    """Returns the words of whoever asks, escaped, cut to `AGENT_CHARS` or `ASKER_CHARS` characters."""
    if not is_cut:
        return escape_text(suspension.message)
    limit = AGENT_CHARS if suspension.asker is None else ASKER_CHARS
    said = escape_text(suspension.message[: limit + 1])
    if measure_text(said) > limit or len(suspension.message) > limit:
        note = f"... [{len(suspension.message)} characters]"
        said = cut_text(said, limit - len(note)) + note
    return said


def describe_editor(edit: EditView) -> str:
    """Returns who edited arguments and how sure that is; only a proven person is called by a name alone."""
    if edit.assurance in ("claimed", "caller"):
        return "the calling model"
    name = escape_text(edit.principal)
    who = f"the client of {name}" if edit.assurance == "client" else name
    return f"{who} ({describe_proof(edit.assurance, edit.channel)})"


def describe_proof(assurance: str, channel: str) -> str:
    """Returns how a decision or an edit was made and what that proves, in words."""
    way = _CHANNELS.get(channel) or escape_text(channel)
    if assurance == "client":
        return f"{way}; not proven to be a person"
    return f"{_ASSURANCES.get(assurance, '')}{way}"


def name_decider(principal: str | None, assurance: str | None) -> str:
    """Return whose decision it was: a model that says so on somebody's behalf is not that person."""
    name = escape_text(principal or "somebody")
    return f"the calling model of {name}" if assurance == "claimed" else name


def format_edited_arguments(edit: EditView, limit: int | None = VALUE_CHARS) -> str:
    """Returns the names of the edited arguments, separated by commas; those of a row with its number."""
    return ", ".join(_format_edited_name(name, limit) for name in edit.arguments)


def _format_edited_name(name: str, limit: int | None) -> str:
    place, _, argument = name.partition("/")
    if argument and place.isascii() and place.isdecimal():
        return f"{format_argument_name(argument, limit)} of row {int(place) + 1}"
    return format_argument_name(name, limit)


def count_escaped(suspension: Suspension) -> int:
    """Return how many characters of the question are escaped, as `count_hidden_in` does."""
    return sum(map(count_hidden_in, _iterate_texts(suspension)))


def is_whole(suspension: Suspension, *, is_form_shown: bool = False) -> bool:
    """Returns True if nothing that planwarden found and no fact is cut, nor the words where they are decided about."""
    shown, whole = (
        build_voices(suspension, limit=limit, is_cut=limit is not None, is_form_shown=is_form_shown)
        for limit in (VALUE_CHARS, None)
    )
    if (shown.found, shown.facts) != (whole.found, whole.facts):
        return False
    is_about_words = not suspension.is_about_calls and find_repeated_argument(suspension) is None
    return not is_about_words or shown.words == whole.words


def hash_question(suspension: Suspension) -> str:
    """Returns the hex SHA-256 of the text of the question; it is recorded with the decision."""
    return hash_text("\n".join(build_voices(suspension).lines))


def _iterate_texts(suspension: Suspension) -> Iterator[str]:
    """Yields all shown text from outside; the message once, although it may be an argument too."""
    yield suspension.message
    call, spoken = suspension.tool_call, find_repeated_argument(suspension)
    shown = {name: value for name, value in call.arguments.items() if name != spoken} if call is not None else {}
    yield from iterate_strings(shown)
    for covered in (*suspension.covered, *suspension.releases):
        yield from iterate_strings(covered.arguments)
    for step in list_planned_steps(suspension):
        yield from iterate_strings(step.facts)


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
