"""Random plans: reads, effects that need nobody, a form or a person, confirmations that cover, waits, large results."""

import random
from collections.abc import Callable
from typing import Any

from tests.harness.clients import Document
from tests.harness.people import STANDING
from tests.harness.team import FORM

NEEDS_CONSENT = ("pay", "send", "hurry", "desk_charge")
"""Tools that run only after a person approved exactly these arguments."""
EFFECTS = (*NEEDS_CONSENT, "jot", "hold", "desk_note")
NAMES = ("Ada", "Grace", "Edsger", "Łukasz")


def random_plan(chance: random.Random) -> Document:
    """Two to five parts of one or two steps, one after another or at the same time."""
    steps: list[Document] = []
    for _ in range(chance.randrange(2, 6)):
        parts = chance.choices([part for part, _ in PARTS], [weight for _, weight in PARTS])[0](chance, len(steps))
        if steps and chance.random() < 0.6:
            parts[0].setdefault("dependencies", [])
        steps += parts
    return {"todoList": steps}


def _step(number: int, tool: str, arguments: Document, **extra: Any) -> Document:
    call = {"toolName": tool, "arguments": arguments}
    return {"id": f"s{number}", "description": f"use {tool}", "toolCalls": [call], "onReject": "continue", **extra}


def _payment(chance: random.Random) -> Document:
    return {"amount": chance.randrange(1_000_000), "to": chance.choice(NAMES)}


def _effect(chance: random.Random, number: int) -> list[Document]:
    return [_step(number, chance.choice(("pay", "desk_charge", "desk_charge", "send", "hurry")), _payment(chance))]


def _free_effect(chance: random.Random, number: int) -> list[Document]:
    return [_step(number, chance.choice(("jot", "desk_note", "desk_note")), _payment(chance))]


def _covered(chance: random.Random, number: int) -> list[Document]:
    ask = {"action": f"Pay number {chance.randrange(1_000_000)}?"}
    effects = [
        _step(number + 1 + place, chance.choice(("pay", "desk_charge")), _payment(chance), dependencies=[f"s{number}"])
        for place in range(chance.randrange(1, 3))
    ]
    return [_step(number, "displayConfirmation", ask, confirms=[effect["id"] for effect in effects]), *effects]


def _read(chance: random.Random, number: int) -> list[Document]:
    """A result, small or so large that it is stored beside the log, of which the next step uses a part."""
    look = _step(number, "look", {"size": chance.choice((10, 10, 300_000))})
    target = {"$from": f"s{number}", "pointer": "/code"}
    use = _step(number + 1, "jot", {"amount": chance.randrange(1_000_000), "to": target})
    return [look, use] if chance.random() < 0.5 else [_step(number, "desk_peek", {})]


def _pause(chance: random.Random, number: int) -> list[Document]:
    return [_step(number, "wait", {"seconds": chance.choice((0.1, 0.3, 0.8))})]


def _form(chance: random.Random, number: int) -> list[Document]:
    ask = _step(number, "requestInput", {"message": "Who?", "form": FORM})
    name = {"$from": f"s{number}", "pointer": "/content/name"}
    return [ask, _step(number + 1, "send", {"amount": chance.randrange(1_000_000), "to": name})]


def _standing(chance: random.Random, number: int) -> list[Document]:
    """Letters of which a grant lets some through, and all of which may leave at the same time."""
    return [
        _step(number + place, "send", {"amount": chance.randrange(1_000_000), "to": STANDING}, dependencies=[])
        for place in range(chance.randrange(1, 4))
    ]


PARTS: tuple[tuple[Callable[[random.Random, int], list[Document]], int], ...] = (
    (_effect, 5),
    (_free_effect, 4),
    (_covered, 3),
    (_read, 2),
    (_pause, 1),
    (_form, 1),
    (_standing, 3),
)
