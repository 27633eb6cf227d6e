"""The job that every side does: five planned tool calls; the third waits for a person's approval.

The calls are fixed and only the order's number changes, so no model takes part anywhere. The four tools are
asynchronous, check their arguments against a schema, count as effects that must not happen twice, and do next to
nothing themselves: what is measured is the price of durability and suspension, not the tools.
"""

from itertools import count
from typing import NamedTuple

from planwarden.agent.common.struct import JsonValue

CENTS = 1999
CONFIRMATION = "displayConfirmation"
_numbers = count(1042)


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
