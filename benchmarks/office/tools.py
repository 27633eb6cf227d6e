"""The office's tools, and the ledger of what they did."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import planwarden
from planwarden.agent.common.errors import ToolError

Row = dict[str, Any]

INVOICES: tuple[Row, ...] = (
    {"number": "1001", "customer": "Alder", "amount": 1200.0, "currency": "EUR", "status": "overdue"},
    {"number": "1002", "customer": "Birch", "amount": 480.5, "currency": "EUR", "status": "overdue"},
    {"number": "1003", "customer": "Cedar", "amount": 2300.0, "currency": "EUR", "status": "overdue"},
    {"number": "1004", "customer": "Birch", "amount": 250.0, "currency": "EUR", "status": "paid"},
    {"number": "1005", "customer": "Elm", "amount": 80.0, "currency": "EUR", "status": "paid"},
    {"number": "1006", "customer": "Elm", "amount": 640.0, "currency": "EUR", "status": "open"},
)
CUSTOMERS: dict[str, str] = {
    "Alder": "accounts@alder.test",
    "Birch": "birch@birch.test",
    "Cedar": "office@cedar.test",
    "Elm": "elm@elm.test",
}
RATES: dict[str, float] = {"EUR/USD": 1.25, "EUR/GBP": 0.8}


@dataclass
class Office:
    """What happened in one conversation."""

    effects: list[tuple[str, Row]] = field(default_factory=list[tuple[str, Row]])
    """Name and arguments of every call that changed something, in order."""

    def list(self, name: str) -> list[Row]:
        """Return the arguments of the effects of that tool."""
        return [arguments for tool, arguments in self.effects if tool == name]


def build_tools(office: Office) -> Sequence[Callable[..., Any]]:
    """Return the tools, which write into the ledger of the office."""

    @planwarden.tool(name="list_invoices", risk="read", effect="read")
    async def list_invoices(status: str | None = None) -> dict[str, list[Row]]:
        """List invoices: all, or those that are open, overdue or paid."""
        return {"invoices": [row for row in INVOICES if status in (None, row["status"])]}

    @planwarden.tool(name="get_customer", risk="read", effect="read")
    async def get_customer(name: str) -> Row:
        """Look up a customer's address by name."""
        if name not in CUSTOMERS:
            raise ToolError(f"there is no customer {name!r}; there are {', '.join(CUSTOMERS)}")
        return {"name": name, "email": CUSTOMERS[name]}

    @planwarden.tool(name="get_rate", risk="read", effect="read")
    async def get_rate(base: str, quote: str) -> Row:
        """Get today's exchange rate of two currencies, such as EUR and USD."""
        if f"{base}/{quote}" not in RATES:
            raise ToolError(f"there is no rate {base}/{quote}; there are {', '.join(RATES)}")
        return {"rate": RATES[f"{base}/{quote}"]}

    @planwarden.tool(name="send_email", risk="dangerous", effect="effect")
    async def send_email(to: str, subject: str, text: str) -> Row:
        """Send an e-mail."""
        office.effects.append(("send_email", {"to": to, "subject": subject, "text": text}))
        return {"sent": True, "to": to}

    @planwarden.tool(name="refund_invoice", risk="dangerous", effect="effect")
    async def refund_invoice(number: str, amount: float) -> Row:
        """Refund an amount in EUR of a paid invoice to its customer."""
        office.effects.append(("refund_invoice", {"number": number, "amount": amount}))
        return {"refunded": amount, "number": number}

    @planwarden.tool(name="file_report", risk="confirm", effect="effect")
    async def file_report(title: str, text: str) -> Row:
        """File a report under a title."""
        if title != title.upper():
            raise ToolError("the title of a report must be in capitals", retryable=True)
        office.effects.append(("file_report", {"title": title, "text": text}))
        return {"filed": True}

    return [list_invoices, get_customer, get_rate, send_email, refund_invoice, file_report]
