"""The kinds of suspension, as a table: who answers a question, what it is about, and which calls its answer lets run.

What is true of all questions of a kind is written here and nowhere else. A reader that needs to know it looks at
`question.traits`; only a place with a reason of its own names one kind.
"""

from collections.abc import Mapping
from typing import Literal

from planwarden.agent.common.struct import FrozenStruct

SuspensionKind = Literal[
    "confirmation",
    "input",
    "approval",
    "batch",
    "plan",
    "step",
    "synthesis",
    "reconcile",
    "delegated",
    "wait",
    "review",
]
Addressee = Literal["human", "caller", "clock"]
Purpose = Literal["plan", "step", "synthesize"]
Released = Literal["call", "rows", "again", "later_calls", "planned_calls"]


class Kind(FrozenStruct):
    """What is true of every question of one kind."""

    addressee: Addressee
    """Whose answer the execution waits for."""
    heading: str = "Decision needed"
    """planwarden's own words above the question; those about rows also say how many there are."""
    releases: Released | None = None
    """What an approval lets run: the call of the question, its rows, the lost call once more, the later calls that it
    names, or, if the answer says so, the calls of the plan that it names."""
    purpose: Purpose | None = None
    """The prompt that the caller answers in place of a model; it also says which form the answer has."""
    resumes_tool: bool = False
    """A tool asked while it was called, and receives the answer."""
    is_in_words: bool = False
    """The arguments of its call are the words that are shown, and say nothing more."""
    public_name: SuspensionKind | None = None
    """What callers see instead of its own name."""

    @property
    def is_about_calls(self) -> bool:
        """It asks whether calls run, exactly as shown; what is said about them decides nothing."""
        return self.releases in ("call", "rows")


KINDS: Mapping[SuspensionKind, Kind] = {
    "approval": Kind(addressee="human", heading="Run this call?", releases="call"),
    "batch": Kind(addressee="human", heading="Run this call?", releases="rows", public_name="approval"),
    "confirmation": Kind(
        addressee="human", heading="Confirm?", releases="later_calls", resumes_tool=True, is_in_words=True
    ),
    "input": Kind(
        addressee="human", heading="Answer needed", releases="later_calls", resumes_tool=True, is_in_words=True
    ),
    "delegated": Kind(addressee="human", resumes_tool=True),
    "reconcile": Kind(addressee="human", heading="Did this call happen?", releases="again"),
    "review": Kind(addressee="human", heading="Start this plan?", releases="planned_calls"),
    "plan": Kind(addressee="caller", purpose="plan"),
    "step": Kind(addressee="caller", purpose="step"),
    "synthesis": Kind(addressee="caller", purpose="synthesize"),
    "wait": Kind(addressee="clock", resumes_tool=True),
}
