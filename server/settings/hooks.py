"""The operator's `[hooks.NAME]` tables: requests from elsewhere that start a saved plan, and their signatures.

Signatures follow https://www.standardwebhooks.com.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.notifications.messages import sign_message
from planwarden.server.notifications.settings import Variable, read_key
from planwarden.server.settings.faults import Table

TOLERANCE_S = 300.0
"""The most seconds between a message's time stamp and the time here."""
MAX_ID_CHARS = 256
MAX_SIGNATURES = 10
MAX_HOOKS = 100
HookName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


def is_timely(message_id: str, timestamp: str, now: float) -> bool:
    """Return whether the id has a usable form, and the time stamp is at most `TOLERANCE_S` seconds from now.

    Dots separate the signed parts: if an id could contain a dot, one signature would fit two messages.
    """
    has_id = 0 < len(message_id) <= MAX_ID_CHARS and message_id.isascii() and message_id.isprintable()
    has_id = has_id and "." not in message_id
    has_time = timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12
    return has_id and has_time and abs(int(timestamp) - now) <= TOLERANCE_S


def is_signed(key: bytes, message_id: str, timestamp: str, body: bytes, signatures: str) -> bool:
    """Return, in constant time, whether one of the first `MAX_SIGNATURES` signatures, split at spaces, is right."""
    expected = sign_message(key, message_id, timestamp, body).encode()
    values = signatures.split(" ")[:MAX_SIGNATURES]
    return sum(hmac.compare_digest(expected, signature.encode()) for signature in values) > 0


class HookSettings(Table):
    """One `[hooks.NAME]` table; `POST /hooks/NAME` starts its plan."""

    plan: Annotated[str, Field(min_length=1, max_length=200)]
    """The saved plan; the body of the request is its input `event`."""
    secret_env: Variable
    """The environment variable that holds the sender's secret, `whsec_` and 24 to 64 bytes in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """An address to which requests are posted; it accepts none while it has a `problem`."""

    name: str
    plan: str
    key: bytes = field(default=b"", repr=False)
    problem: str | None = None
    """Why signatures cannot be checked here; None if they can."""


def build_hooks(tables: Mapping[str, HookSettings], environment: Mapping[str, str]) -> tuple[Hook, ...]:
    """Return the hooks in the order of the file. A missing or wrong secret becomes the `problem` of its hook.

    Raises:
        InvalidArguments: there are too many hooks.
    """
    if len(tables) > MAX_HOOKS:
        raise InvalidArguments(f"planwarden.toml has {len(tables)} [hooks] tables, the limit is {MAX_HOOKS}")
    hooks: list[Hook] = []
    for name, table in tables.items():
        key, problem = read_key(table.secret_env, environment)
        hooks.append(Hook(name=name, plan=table.plan, key=key, problem=problem))
    return tuple(hooks)
