"""Whether people can tell the ids of steps apart: no characters that nobody sees, and a warning about look-alikes."""

import unicodedata
from collections.abc import Iterator, Sequence

from planwarden.agent.core.plan import PlanStep

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
