"""What the tables keep beside the log: rows derived from the events of one transaction, the same for every store."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from planwarden.agent import events as ev
from planwarden.agent.ports import Append

RowStatus = Literal["pending", "decided", "timed_out", "withdrawn"]


@dataclass(frozen=True, slots=True)
class Opened:
    question: ev.Question


@dataclass(frozen=True, slots=True)
class Revised:
    question: ev.Question


@dataclass(frozen=True, slots=True)
class Answered:
    suspension_id: str
    status: RowStatus


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Every question still pending when the execution ended."""


Change = Opened | Revised | Answered | Withdrawn


def projection(append: Append) -> Iterator[Change]:
    """Changes to the suspension rows, in the order of the events."""
    for recorded in append.recorded:
        match recorded.event:
            case ev.Suspended(question=question):
                yield Opened(question)
            case ev.SuspensionRevised(question=question):
                yield Revised(question)
            case ev.SuspensionDecided(suspension_id=suspension_id):
                yield Answered(suspension_id, "decided")
            case ev.SuspensionTimedOut(suspension_id=suspension_id):
                yield Answered(suspension_id, "timed_out")
            case _:
                pass
    if append.execution.is_finished and any(s.status == "withdrawn" for s in append.execution.suspensions.values()):
        yield Withdrawn()
