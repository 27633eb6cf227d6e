"""Trying again when a provider is busy, broken or unreachable: seldom, later each time, and never for long.

The wait doubles from attempt to attempt and is spread at random, so that many processes do not come back together. A
provider that says how long to wait is believed, unless that is longer than anybody would wait here. A model request has
no effect of its own, so repeating it is safe; what it costs is bounded by the number of attempts.

Source: https://httpwg.org/specs/rfc9110.html#field.retry-after.
"""

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from planwarden.agent.common.errors import ModelError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class AttemptFailed(Exception):
    """One attempt failed. Internal to the provider's modules; what leaves them is a `ModelError`."""

    def __init__(self, sentence: str, *, is_transient: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.is_transient = is_transient
        """The same request may succeed later."""
        self.retry_after_s = retry_after_s
        """What the provider asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How often and how long to try."""

    attempts: int = 4
    total_s: float = 300.0
    """Of all attempts and waits of one request together."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    """Also of what a provider may ask for."""


class Retries:
    """Runs attempts; the clock, the sleep and the dice are given, so that tests need not wait."""

    def __init__(
        self,
        patience: RetryLimits,
        *,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        clock: Callable[[], float] | None = None,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._limits = patience
        self._sleep = sleep
        self._clock = clock or anyio.current_time
        self._random = dice

    async def run(self, attempt: Callable[[float], Awaitable[Result]]) -> Result:
        """The first result; `attempt` is given the seconds that are left. Raises `ModelError` with one sentence."""
        began = self._clock()
        number = 0
        while True:
            number += 1
            try:
                return await attempt(max(0.001, self._limits.total_s - (self._clock() - began)))
            except AttemptFailed as fault:
                failed = fault
            left_s = self._limits.total_s - (self._clock() - began)
            wait_s = self._choose_wait_s(failed, number)
            refusal = self._find_refusal(failed, number, wait_s, left_s)
            if refusal is not None:
                raise ModelError(refusal)
            logger.info("%s; trying again in %.1f s", failed.sentence, wait_s)
            await self._sleep(wait_s)

    def _choose_wait_s(self, fault: AttemptFailed, number: int) -> float:
        own_s = min(self._limits.first_wait_s * 2 ** (number - 1), self._limits.longest_wait_s)
        own_s *= 0.5 + self._random() / 2
        return max(own_s, fault.retry_after_s or 0.0)

    def _find_refusal(self, fault: AttemptFailed, number: int, wait_s: float, left_s: float) -> str | None:
        """Why there is no further attempt, or None."""
        times = f" ({number} attempts)" if number > 1 else ""
        if not fault.is_transient or number >= self._limits.attempts:
            return f"{fault.sentence}{times}"
        if wait_s > self._limits.longest_wait_s:
            return f"{fault.sentence}{times}; it asks to wait {wait_s:.0f} s, so try again then"
        if wait_s >= left_s:
            return f"{fault.sentence}{times}; {self._limits.total_s:g} s for one request are over"
        return None
