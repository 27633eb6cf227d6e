"""Says which id was meant: of another kind, with blanks around it, or only the beginning of one.

Only ids of the principal's own threads are named; for all others an id looks as if it did not exist.
"""

from typing import Literal

from planwarden.agent.ports.store import FoundId, Store

Kind = Literal["thread", "suspension"]

MAX_CANDIDATES = 3
MIN_BEGINNING_CHARS = 4
IDS: dict[Kind, str] = {"thread": "threadId", "suspension": "suspensionId"}
"""The arguments that name something."""
_ARGUMENTS = {"thread": "threadId", "suspension": "suspensionId", "execution": "executionId"}


async def describe_id(store: Store, wanted: Kind, given: str, principal: str) -> str | None:
    """Return a sentence about what the text is instead of an id of the kind; None if it is not like any id."""
    text = given.strip()
    if not text:
        return f"{_ARGUMENTS[wanted]!r} is empty"
    if len(text) < MIN_BEGINNING_CHARS:
        return None
    found = [entry for entry in await store.find_ids(text, MAX_CANDIDATES) if await _is_own(store, entry, principal)]
    whole = [entry for entry in found if entry.id == text]
    same = [entry for entry in whole or found if entry.kind == wanted]
    if same and given != same[0].id:
        return f"{given[:64]!r} is not a whole id (did you mean {' or '.join(repr(entry.id) for entry in same)}?)"
    for entry in [] if same else whole or found:
        return (
            f"{given[:64]!r} is the {_ARGUMENTS[entry.kind]} of thread {entry.thread_id!r}, not a {_ARGUMENTS[wanted]}"
            if entry.kind != "thread"
            else f"{given[:64]!r} is a threadId, not a {_ARGUMENTS[wanted]}; get_execution shows its open questions"
        )
    return None


async def _is_own(store: Store, entry: FoundId, principal: str) -> bool:
    headers = await store.thread(entry.thread_id)
    return bool(headers) and headers[0].principal == principal
