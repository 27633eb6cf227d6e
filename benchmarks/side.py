"""The job that every side does, what one process of a side is, and how it tells the process that measures.

The job is five planned tool calls; the third waits for a person's approval. The calls are fixed and only the order's
number changes, so no model takes part anywhere. The four tools are asynchronous, check their arguments against a
schema, count as effects that must not happen twice, and do next to nothing themselves: what is measured is the price of
durability and suspension, not the tools.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple, TypeVar

from planwarden.agent.common.struct import JsonValue

Result = TypeVar("Result")

IN_FLIGHT = 100
"""Executions at once when they are concurrent."""
HOLD_S = 150.0
"""Seconds that a held call takes, so long that its process is dead or stopped before it returns."""
CENTS = 1999
CONFIRMATION = "displayConfirmation"
_numbers = count(1042)


class Side:
    """One system under measurement; a process of it calls the methods that its standard input names.

    Those that share a database with others may have three more: `wait(name)` begins an execution that belongs to this
    process and returns what `decide(waiting)` needs in any process, and `hold(name)` begins a call that takes long and
    that another process starts again when it has taken the execution over. What they do is told by `report_effect`.
    """

    async def run_one(self) -> None:
        """Run a whole execution, suspension and approval included."""
        raise NotImplementedError

    async def suspend_one(self) -> tuple[str, str]:
        """Run an execution up to the question; return its thread and suspension ids."""
        raise NotImplementedError

    async def sequential(self, count: int) -> None:
        """Run executions one after the other."""
        for _ in range(count):
            await self.run_one()

    async def concurrent(self, count: int) -> None:
        """Run executions, `IN_FLIGHT` at a time."""
        await run_together(self.run_one, count)

    async def suspend(self, count: int) -> list[tuple[str, str]]:
        """Run executions up to the question; return the ids of the last ones."""
        return (await run_together(self.suspend_one, count))[-20:]

    async def run(self, seconds: float, at_once: int) -> int:
        """Start the next execution whenever one of the `at_once` ends, until the time is over; return how many ran."""
        until = time.monotonic() + seconds

        async def work() -> int:
            done = 0
            while not done or time.monotonic() < until:
                await self.run_one()
                done += 1
            return done

        return sum(await asyncio.gather(*(work() for _ in range(at_once))))


async def run_together(make: Callable[[], Awaitable[Result]], count: int) -> list[Result]:
    """Return what `count` of them return, `IN_FLIGHT` at a time."""
    results: list[Result] = []
    for start in range(0, count, IN_FLIGHT):
        results += await asyncio.gather(*(make() for _ in range(min(IN_FLIGHT, count - start))))
    return results


def report_effect(name: str) -> None:
    """Tell that the effect happens now, by the machine's clock that all processes share."""
    answer(effect=name, at=time.monotonic())


def answer(**facts: Any) -> None:
    """Send one line to the process that measures."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class PlannedCall(NamedTuple):
    """One step of the job."""

    tool: str
    description: str
    arguments: dict[str, JsonValue]


def number_orders_from(first: int) -> None:
    """Give the orders of this process numbers of their own, where several processes share a database."""
    global _numbers
    _numbers = count(first)


def make_order() -> str:
    """Return the number of a new order: each execution has its own, as in a shop."""
    return f"A-{next(_numbers)}"


def plan_job(order: str) -> tuple[PlannedCall, ...]:
    """Return the five steps for one order."""
    return (
        PlannedCall("find_order", "Look the order up", {"order": order}),
        PlannedCall("reserve_stock", "Reserve the goods", {"order": order, "quantity": 2}),
        PlannedCall(CONFIRMATION, "Ask before money moves", {"action": f"Charge {CENTS} cents for order {order}?"}),
        PlannedCall("charge_card", "Charge the card", {"order": order, "cents": CENTS}),
        PlannedCall("send_receipt", "Send the receipt", {"order": order, "to": "kim@shop.test"}),
    )


async def find_order(order: str) -> dict[str, JsonValue]:
    """Look an order up."""
    return {"order": order, "items": 2, "cents": CENTS}


async def reserve_stock(order: str, quantity: int) -> dict[str, JsonValue]:
    """Reserve goods for an order."""
    return {"order": order, "reserved": quantity}


async def charge_card(order: str, cents: int) -> dict[str, JsonValue]:
    """Charge the card on file."""
    return {"order": order, "charged": cents}


async def send_receipt(order: str, to: str) -> dict[str, JsonValue]:
    """Send the receipt."""
    return {"order": order, "sent": to}


FUNCTIONS = (find_order, reserve_stock, charge_card, send_receipt)
