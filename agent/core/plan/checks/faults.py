"""The faults of a plan, bounded because a plan may have many, and those of its step ids."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from planwarden.agent.core.plan.plan import PlanStep
from planwarden.agent.core.plan.plan_words import MAX_ID_CHARS

MAX_LISTED = 50
"""Faults in the details of one error."""
MAX_QUOTED = 10
"""Names in one fault."""
MAX_TOLD = 20
"""Faults in one message."""


def join_faults(problems: list[str]) -> str:
    """Return the first faults as one text, and how many more there are."""
    more = f"; and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
    return "; ".join(problems[:MAX_TOLD]) + more


def quote_some(names: Iterable[str]) -> str:
    """Return the first names, quoted and cut: what was sent may have many long ones."""
    return ", ".join(repr(name[:MAX_ID_CHARS]) for name in islice(names, MAX_QUOTED))


_UNSEEN = frozenset({"Cc", "Cf", "Cs"})
"""Controls such as NUL, formats such as bidirectional and zero-width characters, and halves of characters
(https://www.unicode.org/reports/tr36/)."""


def find_id_faults(steps: Sequence[PlanStep]) -> Iterator[str]:
    """Yield a sentence for each id with a control, bidirectional or invisible character."""
    for step in steps:
        if step.step_id.isascii() and step.step_id.isprintable():
            continue
        unseen = [f"U+{ord(letter):04X}" for letter in step.step_id if unicodedata.category(letter) in _UNSEEN]
        if unseen:
            yield f"step id {step.step_id!a} has the control or invisible character {unseen[0]}; rename the step"


def list_look_alikes(steps: Sequence[PlanStep]) -> Iterator[str]:
    """Yield a sentence for each id with characters, such as full-width ones, that look like usual ones."""
    ids = dict.fromkeys(step.step_id for step in steps)
    for step_id in ids:
        usual = step_id if step_id.isascii() else unicodedata.normalize("NFKC", step_id)
        if usual != step_id:
            other = f"the step {usual!r}, which is another one" if usual in ids else repr(usual)
            yield f"step id {step_id!a} looks like {other}"
