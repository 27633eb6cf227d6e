"""Tools written in Python, which every process of a stage loads from its settings and runs inside itself."""

import os
import threading
from pathlib import Path
from typing import Any

import planwarden
from tests.campaign.ledger import Ledger
from tests.campaign.manner import Manner

STAGE_VARIABLE = "CAMPAIGN_STAGE"


def _carry_out(name: str, context: planwarden.CallContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """One effect: in the ledger before and after, as slow as the stage wants it now."""
    stage = Path(os.environ[STAGE_VARIABLE])
    ledger, manner, key = Ledger(stage), Manner.read(stage), context.idempotency_key
    ledger.write("begun", key=key)
    manner.pause()
    ledger.write("done", key=key, tool=name, arguments=arguments)
    manner.pause()
    ledger.write("ended", key=key)
    return {"receipt": key, "code": "c7"}


@planwarden.tool
def pay(amount: int, to: str, context: planwarden.CallContext) -> dict[str, Any]:
    """Pay somebody."""
    return _carry_out("pay", context, {"amount": amount, "to": to})


@planwarden.tool
def hurry(amount: int, to: str, context: planwarden.CallContext) -> dict[str, Any]:
    """Pay somebody, if a person agrees soon."""
    return _carry_out("hurry", context, {"amount": amount, "to": to})


@planwarden.tool(risk="confirm")
def send(amount: int, to: str, context: planwarden.CallContext) -> dict[str, Any]:
    """Send a letter."""
    return _carry_out("send", context, {"amount": amount, "to": to})


@planwarden.tool(risk="read", effect="effect")
def jot(amount: int, to: str, context: planwarden.CallContext) -> dict[str, Any]:
    """Write something down; nobody needs to agree."""
    return _carry_out("jot", context, {"amount": amount, "to": to})


@planwarden.tool(risk="read", effect="effect")
def hold(to: str, context: planwarden.CallContext) -> dict[str, Any]:
    """Write something down, after the file of that name was made."""
    stage, key = Path(os.environ[STAGE_VARIABLE]), context.idempotency_key
    ledger = Ledger(stage)
    ledger.write("begun", key=key)
    while not (stage / to).exists():
        threading.Event().wait(0.01)
    ledger.write("done", key=key, tool="hold", arguments={"to": to})
    ledger.write("ended", key=key)
    return {"receipt": key, "code": "c7"}


@planwarden.tool(risk="read", effect="read")
def look(size: int) -> dict[str, Any]:
    """Read something of that many characters."""
    threading.Event().wait(Manner.read(Path(os.environ[STAGE_VARIABLE])).call_s / 2)
    return {"code": "c7", "text": "x" * size}
