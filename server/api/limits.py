"""What `Service` accepts: sizes of texts and pages, and how often a caller may try to decide for a person."""

import unicodedata
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import cast

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, RateLimited
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import SystemKey

MAX_GOAL_CHARS = 20_000
MAX_KEY_CHARS = 200
MAX_REASON_CHARS = 2_000
MAX_QUERY_CHARS = 1_000
MAX_PAGE = 100
MAX_WAIT_S = 300.0
ATTEMPTS, ATTEMPTS_S = 5, 600.0
"""A suspension allows so many attempts of a kind without authority in so many seconds; more are refused."""
_MAX_COUNTED = 10_000


class AttemptLimiter:
    """Counts decisions that a caller sent although only a person can decide."""

    def __init__(self, clock: Clock, program: Callable[[], str]) -> None:
        """Set up a limiter; `program` returns the first words of the command with which a person decides."""
        self._clock = clock
        self._program = program
        self._attempts: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    def count(self, suspension_id: str, kind: str = "approval") -> None:
        """Count one attempt; count each kind apart, because asking a person once uses up one attempt of each kind.

        Raises:
            RateLimited: there were `ATTEMPTS` of this kind within `ATTEMPTS_S` seconds.
        """
        now = self._clock.now()
        times = self._attempts.setdefault((suspension_id, kind), deque(maxlen=ATTEMPTS))
        if len(times) == ATTEMPTS and now - times[0] < ATTEMPTS_S:
            raise RateLimited(
                f"suspension {suspension_id!r} was approved {ATTEMPTS} times without a person; a person must decide: "
                f"`{self._program()} approve {suspension_id}`",
                details={"retryAfterSeconds": round(ATTEMPTS_S - (now - times[0]))},
            )
        times.append(now)
        if len(self._attempts) > _MAX_COUNTED:
            self._attempts.popitem(last=False)


def check_text(text: object, name: str, limit: int, *, may_be_empty: bool = False) -> None:
    if not isinstance(text, str):
        raise InvalidArguments(f"'{name}' must be text, not {type(text).__name__}")
    if not may_be_empty and not text.strip():
        raise InvalidArguments(f"'{name}' is empty")
    if len(text) > limit:
        raise LimitExceeded(f"'{name}' has {len(text)} characters, the limit is {limit}")


def copy_mapping(value: object, name: str) -> dict[str, JsonValue] | None:
    """Return a copy, or None for None. Raises `InvalidArguments` if a program passed something else."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidArguments(f"'{name}' must be a mapping, not {type(value).__name__}")
    return dict(cast("Mapping[str, JsonValue]", value))


def check_key(key: object) -> None:
    """Raise `InvalidArguments` unless the key can be stored and shown, and is not reserved for planwarden."""
    if not isinstance(key, str):
        raise InvalidArguments(f"'key' must be text of 1 to {MAX_KEY_CHARS} characters")
    if not key.strip():
        raise InvalidArguments(f"'key' is empty; choose 1 to {MAX_KEY_CHARS} characters, or leave it out")
    if len(key) > MAX_KEY_CHARS:
        raise InvalidArguments(f"'key' has {len(key)} characters, the limit is {MAX_KEY_CHARS}")
    if key.startswith(SystemKey.PREFIX) and not isinstance(key, SystemKey):
        raise InvalidArguments(f"'key' begins with {SystemKey.PREFIX!r}, as only planwarden's own keys do")
    for position, character in enumerate(key, 1):
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise InvalidArguments(f"'key' has the control character U+{ord(character):04X} at place {position}")


def check_wait(wait_seconds: float | None) -> None:
    if wait_seconds is not None and not 0 <= wait_seconds <= MAX_WAIT_S:
        raise InvalidArguments(f"waitSeconds must be between 0 and {MAX_WAIT_S:.0f}")


def check_limit(limit: int, most: int = MAX_PAGE) -> None:
    if not 1 <= limit <= most:
        raise InvalidArguments(f"'limit' must be between 1 and {most}")


def parse_offset(cursor: str | None, total: int) -> int:
    """Return the position that a cursor of `search_tools` means."""
    if cursor is None:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or int(cursor[:9]) > total:
        raise InvalidArguments(f"cursor {cursor[:64]!r} does not come from this server; start without a cursor")
    return int(cursor[:9])
