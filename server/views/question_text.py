"""The card of a question as lines of text, with values cut to a given limit, and the digest of that text.

Terminals, prompts and the view in hosts with MCP Apps show these lines; a decision records their digest. Values are
JSON, so no value can start a new line or a new field. The same question always gives the same text.
"""

from collections.abc import Iterator

from planwarden.agent.common.errors import count_of
from planwarden.server.views.card import Card, Vote
from planwarden.server.views.card_calls import CardCall, PlannedStep, ToolNote
from planwarden.server.views.escaping import VALUE_CHARS, format_argument_name, format_value, hash_text
from planwarden.server.views.instants import format_instant


def format_lines(card: Card) -> list[str]:
    """Return the card as lines of text: the heading, the findings, the facts and the words."""
    findings = (f"planwarden found: {sentence}" for sentence in card.findings)
    words = (f"{card.label}: {card.words}",) if card.words else ()
    return [card.heading, *findings, *format_facts(card), *words]


def format_facts(card: Card, *, limit: int | None = VALUE_CHARS, is_form_shown: bool = False) -> list[str]:
    """Return the facts, one per line. Indentation shows what belongs together; no value takes several lines.

    Values are cut to `limit`, or not at all if it is None. If `is_form_shown`, the form is not repeated as a value.
    """
    return [*_list_call_lines(card, limit, is_form_shown), *_list_other_facts(card, limit)]


def format_call(call: CardCall, limit: int | None, note: str = "") -> Iterator[str]:
    """Yield the lines of a call that a decision covers, indented: its tool, place and note, then its arguments."""
    yield f"  {_format_tool(call.tool)} ({call.place}{note})"
    yield from _format_arguments(call, "    ", limit)


def is_whole(card: Card, *, is_form_shown: bool = False) -> bool:
    """Return True if no fact is cut and, where the decision is about the words, the words are not cut either."""
    cut, whole = (format_facts(card, limit=limit, is_form_shown=is_form_shown) for limit in (VALUE_CHARS, None))
    is_about_words = not card.question.traits.is_about_calls and card.repeated_argument is None
    return cut == whole and (not is_about_words or card.words == card.whole_words)


def hash_question(card: Card) -> str:
    """Return the hex SHA-256 of the text of the question; it is recorded with the decision."""
    return hash_text("\n".join(format_lines(card)))


def _list_call_lines(card: Card, limit: int | None, is_form_shown: bool) -> Iterator[str]:
    if card.call is not None:
        yield f"Tool: {_format_tool(card.call.tool)}"
        if card.call.tool.claim:
            yield f"  {card.call.tool.claim}"
        yield from _format_arguments(card.call, "  ", limit, is_form_shown=is_form_shown)
    for step in card.steps:
        yield step.heading
        yield from (f"  {line}" for line in _format_planned_step(step, limit))
    covered = card.covered or card.rows
    if card.plan is not None and covered:
        yield f"Approving can cover {count_of(len(covered), 'call')} at once, if you say so:"
    elif covered:
        yield f"The same decision {'also ' if card.covered else ''}covers {count_of(len(covered), 'call')}:"
    for call in covered:
        yield from format_call(call, limit)
    if card.released:
        yield f"As {card.asker} says, approving it lets {count_of(len(card.released), 'call')} run there:"
    for call in card.released:
        yield f"  {call.tool.label}"
        yield from _format_arguments(call, "    ", limit)
    if is_form_shown and card.form_titles:
        yield f"The form says of itself: {format_value(card.form_titles, limit)}"


def _list_other_facts(card: Card, limit: int | None) -> Iterator[str]:
    """Yield the other facts of the question: its risk, who approved, when it ends, and where it comes from."""
    question = card.question
    if question.risk is not None:
        yield f"Risk: {question.risk}"
    if question.quorum > 1:
        votes = ", ".join(_format_vote(vote, limit) for vote in card.votes)
        yield f"Needs {question.quorum} different people; approved by: {votes or 'nobody yet'}"
    if card.expires_at is not None:
        yield f"If nobody answers by {format_instant(card.expires_at)}: {question.on_timeout}"
    yield from (f"{fact.name}: {fact.text}" for fact in card.lineage)


def _format_vote(vote: Vote, limit: int | None) -> str:
    answer = "" if vote.answer is None else f" (who answered {format_value(vote.answer.value, limit)})"
    return f"{vote.principal}{answer}"


def _format_planned_step(step: PlannedStep, limit: int | None) -> Iterator[str]:
    for call in step.calls:
        yield f"Tool: {_format_tool(call.tool)}"
        yield from _format_arguments(call, "  ", limit)
    yield from (f"{key} = {format_value(value.value, limit)}" for key, value in step.facts)


def _format_tool(tool: ToolNote) -> str:
    return f"{tool.label}, {tool.source}"


def _format_arguments(call: CardCall, indent: str, limit: int | None, *, is_form_shown: bool = False) -> Iterator[str]:
    for argument in call.arguments:
        title = f" (titled {format_value(argument.schema_title)})" if argument.schema_title else ""
        is_below = is_form_shown and argument.is_form
        value = "(the fields below)" if is_below else format_value(argument.value.value, limit)
        origins = f" ({', '.join(argument.origins)})" if argument.origins else ""
        yield f"{indent}{format_argument_name(argument.name, limit)}{title} = {value}{origins}"
    if not call.arguments:
        yield f"{indent}(no arguments)"
