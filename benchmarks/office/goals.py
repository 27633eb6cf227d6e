"""The goals that a model is given, and what the ledger and the answer must be in the end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.office.tools import CUSTOMERS, INVOICES, Office

Check = Callable[[Office, str], bool]
_OVERDUE = [row for row in INVOICES if row["status"] == "overdue"]


@dataclass(frozen=True)
class Goal:
    """One goal."""

    text: str
    is_reached: Check
    """Whether ledger and final answer are right."""
    max_questions: int | None = None
    """Questions to a person that are enough; None where the goal says nothing of them."""
    edits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """By tool: what the person changes in the arguments before approving."""


def _mailed(office: Office, rows: list[dict[str, Any]]) -> bool:
    """Whether each invoice's customer got exactly one mail with number and amount, and nobody another one."""
    mails = office.list("send_email")
    wanted = {CUSTOMERS[row["customer"]]: row for row in rows}
    texts = {mail["to"]: f"{mail['subject']} {mail['text']}".replace(",", "") for mail in mails}
    return (
        len(mails) == len(rows)
        and texts.keys() == wanted.keys()
        and all(row["number"] in texts[to] and f"{row['amount']:g}" in texts[to] for to, row in wanted.items())
    )


def _says(answer: str, *words: str) -> bool:
    plain = answer.replace(",", "").casefold()
    return any(word in plain for word in words)


def _is_balance_filed_once(office: Office, _: str) -> bool:
    mails, reports = office.list("send_email"), office.list("file_report")
    return (
        len(mails) == 2
        and {mail["to"] for mail in mails} == {CUSTOMERS["Alder"], CUSTOMERS["Birch"]}
        and len(reports) == 1
    )


def _is_edit_told(office: Office, _: str) -> bool:
    refunds, mails = office.list("refund_invoice"), office.list("send_email")
    return (
        [(row["number"], row["amount"]) for row in refunds] == [("1005", 50.0)]
        and [mail["to"] for mail in mails] == [CUSTOMERS["Elm"]]
        and "50" in mails[0]["text"]
        and "80" not in mails[0]["text"].replace("1005", "")
    )


GOALS: tuple[Goal, ...] = (
    Goal(
        "How much do all invoices that are overdue or open come to in US dollars? Tell me the sum.",
        lambda office, answer: not office.effects and _says(answer, "5775.6"),
    ),
    Goal(
        "Remind every customer with an overdue invoice by e-mail. Each mail names the invoice number and the amount. "
        "Ask me once for all of them, not for each.",
        lambda office, _: _mailed(office, _OVERDUE),
        max_questions=1,
    ),
    Goal(
        "If a single customer owes us more than 10,000 EUR in overdue invoices, remind every customer with an overdue "
        "invoice by e-mail and ask me once; otherwise send nothing. Tell me what you did.",
        lambda office, _: not office.effects,
        max_questions=1,
    ),
    Goal(
        "Refund invoice 1004 in full, but only if it has been paid. Tell me what you did.",
        lambda office, _: office.effects == [("refund_invoice", {"number": "1004", "amount": 250.0})],
    ),
    Goal(
        "Refund invoice 1002 in full, but only if it has been paid. Tell me what you did.",
        lambda office, _: not office.effects,
    ),
    Goal(
        "Which of our customers had a birthday last week? Send each of them a card by e-mail.",
        lambda office, _: not office.effects,
    ),
    Goal(
        "For each overdue invoice, look up the customer's e-mail address and send a mail there that names the invoice "
        "number and the amount. Ask me once for all mails.",
        lambda office, _: _mailed(office, _OVERDUE),
        max_questions=1,
    ),
    Goal(
        "Mail Alder and Birch what they owe in overdue invoices, then file a report titled 'Balances mailed' that says "
        "what was mailed. If something fails, correct it without mailing anybody twice.",
        _is_balance_filed_once,
    ),
    Goal(
        "Refund 80 EUR of invoice 1005, then mail the customer (Elm) how much was really refunded.",
        _is_edit_told,
        edits={"refund_invoice": {"amount": 50.0}},
    ),
)
