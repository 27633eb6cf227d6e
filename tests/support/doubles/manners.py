"""How models behave: one function each from what was asked to what is said.

The manners are those that break plan-and-execute agents, and a few that break HTTP clients. `MANNERS` is what a table
over all of them runs.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.doubles.asked import PLAN_TOOL, Asked, Said

PROSE = "I have carried out the step. Everything worked and the results are as expected."
HUGE_BYTES = 50_000_000
MANY_CALLS = 10_000


@dataclass(frozen=True)
class Manner:
    name: str
    does: str
    """For people: what such a model does."""
    answer: Callable[[Asked], Said]
    needs_wire: bool = False
    """Happens to the connection, so that a caller cannot have it."""


def _planned(asked: Asked) -> Said:
    if PLAN_TOOL in asked.tools:
        return Said(calls=((PLAN_TOOL, asked.plan),))
    return Said(text=f"Here is the plan.\n```json\n{json.dumps(asked.plan)}\n```")


def obedient(asked: Asked) -> Said:
    if asked.wants_plan:
        return _planned(asked)
    if not asked.tools:
        return Said(text="Here is what the record shows.")
    return Said(calls=tuple((name, asked.sample(name)) for name in asked.wanted))


def prose(asked: Asked) -> Said:
    return _planned(asked) if asked.wants_plan else Said(text=PROSE)


def prose_first(asked: Asked) -> Said:
    return obedient(asked) if asked.is_enforced or asked.wants_plan or not asked.tools else Said(text=PROSE)


def claims(asked: Asked) -> Said:
    if asked.wants_plan:
        return _planned(asked)
    forged = {"status": "completed", "validationStatus": "passed", "actualToolCalls": list(asked.tools), "result": "ok"}
    return Said(text=f"{PROSE}\n```json\n{json.dumps(forged)}\n```")


def wrong_tool(asked: Asked) -> Said:
    return _planned(asked) if asked.wants_plan else Said(calls=(("teleport", {"to": "Mars"}),))


def half(asked: Asked) -> Said:
    if asked.wants_plan or not asked.tools:
        return obedient(asked)
    first = next(iter(asked.tools))
    return Said(calls=((first, asked.sample(first)),)) if first in asked.wanted else Said(text=PROSE)


def malformed(asked: Asked) -> Said:
    if asked.wants_plan or not asked.tools:
        return obedient(asked)
    return Said(calls=tuple((name, '{"text": "the te') for name in asked.wanted))


def malformed_once(asked: Asked) -> Said:
    return obedient(asked) if asked.is_repeated else malformed(asked)


def cut_short(asked: Asked) -> Said:
    """Runs out of tokens in the middle of its arguments, until told to answer completely."""
    if asked.is_repeated or not asked.tools:
        return obedient(asked)
    broken = Said(calls=tuple((name, '{"text": "the te') for name in asked.wanted), is_cut_short=True)
    return broken


def empty_arguments(asked: Asked) -> Said:
    if asked.wants_plan or not asked.tools:
        return obedient(asked)
    return Said(calls=tuple((name, {}) for name in asked.wanted))


def placeholders(asked: Asked) -> Said:
    if asked.wants_plan or not asked.tools:
        return obedient(asked)
    return Said(calls=tuple((name, _placeholders(asked.sample(name))) for name in asked.wanted))


def _placeholders(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: f"<{key}>" if isinstance(value, str) else value for key, value in arguments.items()}


def never_ending(asked: Asked) -> Said:
    if asked.wants_plan:
        return _planned(asked)
    first = next(iter(asked.tools), "think")
    return Said(text="One more call.", calls=((first, asked.sample(first)),))


def many_calls(asked: Asked) -> Said:
    if asked.wants_plan or not asked.tools:
        return obedient(asked)
    first = next(iter(asked.tools))
    return Said(calls=((first, asked.sample(first)),) * MANY_CALLS)


def limited_once(asked: Asked) -> Said:
    if asked.number == 1:
        return Said(status=429, message="slow down", headers={"Retry-After": "7"})
    return obedient(asked)


def limited_for_ever(asked: Asked) -> Said:
    return Said(status=429, message="slow down")


def failing_once(asked: Asked) -> Said:
    return Said(status=500, message="internal trouble") if asked.number == 1 else obedient(asked)


def breaking_off(asked: Asked) -> Said:
    return Said(text=PROSE * 100, breaks_off=True)


def breaking_off_once(asked: Asked) -> Said:
    return breaking_off(asked) if asked.number == 1 else obedient(asked)


def huge(asked: Asked) -> Said:
    return Said(text="x" * HUGE_BYTES)


def hanging(asked: Asked) -> Said:
    return Said(hangs=True)


def web_page(asked: Asked) -> Said:
    return Said(raw=b"<html><body>Sign in to the network</body></html>")


def refusing(asked: Asked) -> Said:
    return Said(is_refused=True)


MANNERS: dict[str, Manner] = {
    manner.name: manner
    for manner in (
        Manner("obedient", "calls what it must, with real arguments", obedient),
        Manner("prose only", "describes the calls and never makes one", prose),
        Manner("prose first", "describes the calls until told that this does not count", prose_first),
        Manner("forged status", "answers with JSON that says the step is completed", claims),
        Manner("wrong tool", "calls a tool that it was not offered", wrong_tool),
        Manner("half", "calls the first of the required tools, then claims the rest", half),
        Manner("malformed", "sends arguments that are no JSON", malformed),
        Manner("malformed once", "sends arguments that are no JSON, and good ones when asked again", malformed_once),
        Manner("cut short", "runs out of tokens in the middle of its arguments once", cut_short),
        Manner("empty arguments", "calls everything with {}", empty_arguments),
        Manner("placeholders", "fills in <text> and the like", placeholders),
        Manner("never-ending", "calls the first tool for ever", never_ending),
        Manner("ten thousand calls", "calls the first tool ten thousand times in one answer", many_calls),
        Manner("content filter", "is stopped by a content filter", refusing, needs_wire=True),
        Manner("429 once", "is rate limited once and says when to come back", limited_once, needs_wire=True),
        Manner("429 for ever", "is rate limited and stays so", limited_for_ever, needs_wire=True),
        Manner("500 once", "fails once", failing_once, needs_wire=True),
        Manner("breaks off", "closes the connection in the middle of every answer", breaking_off, needs_wire=True),
        Manner(
            "breaks off once", "closes the connection in the middle of one answer", breaking_off_once, needs_wire=True
        ),
        Manner("50 MB", "sends fifty megabytes", huge, needs_wire=True),
        Manner("hangs", "accepts the request and never answers", hanging, needs_wire=True),
        Manner("web page", "is a captive portal that answers everything with a page", web_page, needs_wire=True),
    )
}
