"""How the faults of a plan are put into words and details: bounded, because what was sent may have many."""

from collections.abc import Callable, Iterable
from itertools import islice

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.plan_words import MAX_ID_CHARS

MAX_LISTED = 50
"""Faults in the details of one error."""
MAX_QUOTED = 10
"""Names in one fault."""
MAX_TOLD = 20
"""Faults in one message."""


def join_faults(problems: list[str]) -> str:
    """The first faults as one text, and how many more there are."""
    more = f"; and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
    return "; ".join(problems[:MAX_TOLD]) + more


def quote_some(names: Iterable[str]) -> str:
    """The first names, quoted and cut: what was sent may have many long ones."""
    return ", ".join(repr(name[:MAX_ID_CHARS]) for name in islice(names, MAX_QUOTED))


def refuse_at_once(*checks: Callable[[], None]) -> None:
    """Run every check, and raise one `InvalidPlan` with the faults of all of them."""
    errors: list[InvalidPlan] = []
    for check in checks:
        try:
            check()
        except InvalidPlan as error:
            errors.append(error)
    if not errors:
        return
    if len(errors) == 1:
        raise errors[0]
    problems: list[JsonValue] = []
    details: dict[str, JsonValue] = {}
    for error in errors:
        listed = error.details.get("problems")
        problems += listed if isinstance(listed, list) else [error.message]
        details |= error.details
    message = "; besides, ".join(error.message for error in errors)
    raise InvalidPlan(message, details={**details, "problems": problems[:MAX_LISTED]})
