"""Parses plans: a small one at once, a large one only after it was parsed in a thread, whoever wrote it.

A judgement that needs a large plan raises `ParsingNeeded`. Whoever runs it parses the plan elsewhere and judges again,
with the same `PlanParsing`, which then has the plan or its faults.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple

import msgspec

from planwarden.agent.common.canonical import digest, exceeds
from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, LimitExceeded
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.bindings import Earlier, EarlierNeeded, EarlierResult, Reference
from planwarden.agent.core.plan import Author, Plan, ToolFacts, list_earlier_results
from planwarden.agent.core.plan_parser import parse_plan

MAX_VALUES, MAX_CHARS = 1_000, 100_000
"""Of a plan that is parsed at once, in about 10 ms."""

Parsed = tuple[Plan, tuple[str, ...]]


class ParsingNeeded(Exception):
    """Not an error: the plan is large, so `parse` has to be called in a thread before the judgement is repeated."""

    def __init__(self, parse: Callable[[], None]) -> None:
        super().__init__()
        self.parse = parse


class _Request(NamedTuple):
    """All that the outcome of parsing depends on."""

    document_digest: str
    author: Author
    tools: Mapping[str, str]
    """Digests of their definitions."""
    max_steps: int
    earlier: Mapping[Reference, EarlierResult | str] | None
    known: Plan | None


class PlanParsing:
    """Parses the plans of one judgement; remembers the last large one."""

    def __init__(self) -> None:
        self._last: tuple[_Request, Parsed | InvalidPlan | LimitExceeded | EarlierNeeded] | None = None

    def parse(
        self,
        document: JsonValue,
        *,
        author: Author,
        tools: Mapping[str, ToolFacts],
        max_steps: int,
        earlier: Earlier | None = None,
        known: Plan | None = None,
    ) -> Parsed:
        """Return and raise what `parse_plan` does.

        Raises:
            ParsingNeeded: the plan is large and was not parsed yet.
        """
        parse = partial(
            parse_plan, document, author=author, tools=tools, max_steps=max_steps, earlier=earlier, known=known
        )
        if not exceeds(document, MAX_VALUES, MAX_CHARS):
            return parse()
        try:
            document_digest = digest(document, context="plan")
        except (InvalidArguments, RecursionError):
            # It is not JSON, or nested too deeply, so it is refused before anything long begins.
            return parse()
        digests = {name: facts.digest for name, facts in tools.items()}
        # The caller may add to what it found earlier.
        found = None if earlier is None else dict(earlier)
        request = _Request(document_digest, author, digests, max_steps, found, known)
        if self._last is None or self._last[0] != request:
            raise ParsingNeeded(partial(self._remember, request, parse))
        outcome = self._last[1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _remember(self, request: _Request, parse: Callable[[], Parsed]) -> None:
        try:
            self._last = (request, parse())
        except (InvalidPlan, LimitExceeded, EarlierNeeded) as error:
            self._last = (request, error)


class PlanIntake(msgspec.Struct, frozen=True, kw_only=True):
    """Reads the plans that an answer or a reply has: what they are checked against, and who parses them."""

    tools: Mapping[str, ToolFacts]
    max_steps: int
    parsing: PlanParsing = msgspec.field(default_factory=PlanParsing)
    earlier: Earlier | None = None
    """Results of earlier executions, as far as they were looked up."""

    def read(self, document: JsonValue, *, author: Author, known: Plan | None = None) -> Parsed:
        """Return and raise what `PlanParsing.parse` does."""
        return self.parsing.parse(
            document, author=author, tools=self.tools, max_steps=self.max_steps, earlier=self.earlier, known=known
        )

    def list_results(self, plan: Plan, known: Collection[Reference] = ()) -> tuple[EarlierResult, ...]:
        """Return what a plan that was read takes from earlier executions and is not known yet."""
        return tuple(found for found in list_earlier_results(plan, self.earlier) if found.reference not in known)
