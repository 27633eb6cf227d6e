"""Tools written in Python, which every process of a stage loads from its settings and runs inside itself."""

import os
import threading
from pathlib import Path
from typing import Any

import planwarden
from tests.harness.ledger import Ledger, Manner, carry_out
from tests.harness.process import STAGE


def _begin(context: planwarden.CallContext) -> tuple[Path, str]:
    stage, key = Path(os.environ[STAGE]), context.idempotency_key
    Ledger.of(stage).write("begun", key=key)
    return stage, key


def _make_payment(name: str, description: str, **facts: Any) -> object:
    def pay_somebody(amount: int, to: str, context: planwarden.CallContext) -> dict[str, Any]:
        return carry_out(*_begin(context), name, {"amount": amount, "to": to})

    pay_somebody.__doc__ = description
    return planwarden.tool(name=name, **facts)(pay_somebody)


pay = _make_payment("pay", "Pay somebody.")
hurry = _make_payment("hurry", "Pay somebody, if a person agrees soon.")
send = _make_payment("send", "Send a letter.", risk="confirm")
jot = _make_payment("jot", "Write something down; nobody needs to agree.", risk="read", effect="effect")


@planwarden.tool(risk="read", effect="effect")
def hold(to: str, context: planwarden.CallContext) -> dict[str, Any]:
    """Write something down, after the file of that name was made."""
    stage, key = _begin(context)
    while not (stage / to).exists():
        threading.Event().wait(0.01)
    return carry_out(stage, key, "hold", {"to": to})


@planwarden.tool(risk="read", effect="read")
def look(size: int) -> dict[str, Any]:
    """Read something of that many characters."""
    Manner.read(Path(os.environ[STAGE])).pause()
    return {"code": "c7", "text": "x" * size}
