"""What the load started and how each execution has to end, and what went wrong."""

import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

WAITS = "suspended"
NEVER = "never started"
"""Allowed for an execution whose caller was gone before it had an answer."""


@dataclass
class Book:
    """The expected statuses by goal; every execution has a goal of its own."""

    expected: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    orders: set[str] = field(default_factory=set[str])
    """The goals whose order a person approved."""
    visits: Counter[str] = field(default_factory=Counter[str])
    """How often each scene was played to its end."""
    faults: list[str] = field(default_factory=list[str])

    def expect(self, goal: str, *statuses: str) -> None:
        self.expected[goal] = statuses

    def record_failure(self, scene: str, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self.faults.append(f"{scene}: {text[-3000:]}")

    def find_unfinished(self, found: Iterable[tuple[str, str]]) -> list[str]:
        """Returns the goals of executions that run, or wait although they should come to an end."""
        return [
            goal for goal, status in found if status in ("running", WAITS) and status not in self.expected.get(goal, ())
        ]

    def compare(self, found: Iterable[tuple[str, str]], ledger: Iterable[str]) -> list[str]:
        """Returns every difference between goals with statuses, the lines of the ledger, and this book."""
        statuses = dict(found)
        orders = Counter(ledger)
        return [
            *(
                f"{goal} was never started"
                for goal in self.expected.keys() - statuses.keys()
                if NEVER not in self.expected[goal]
            ),
            *(f"{goal} is unknown" for goal in statuses.keys() - self.expected.keys()),
            *(
                f"{goal} is {status}, expected {' or '.join(self.expected[goal])}"
                for goal, status in statuses.items()
                if goal in self.expected and status not in self.expected[goal]
            ),
            *(f"{goal} was ordered {count} times" for goal, count in orders.items() if count > 1),
            *(f"{goal} was ordered without approval" for goal in orders.keys() - self.orders),
            *(f"{goal} was approved and not ordered" for goal in self.orders - orders.keys()),
        ]
