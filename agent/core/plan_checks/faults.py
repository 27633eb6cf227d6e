"""How the faults of a plan are put into words and details: bounded, because what was sent may have many."""

from collections.abc import Iterable
from itertools import islice

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
