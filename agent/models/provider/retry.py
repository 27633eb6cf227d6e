"""Repeats a request when a provider is busy, broken or unreachable, within limits for attempts and time.

The wait doubles from attempt to attempt and varies at random, so that many processes do not try again at the same
moment. A wait that the provider asks for is respected up to `Retries.longest_wait_s`; a longer one is left to the
caller, who waits durably (`planwarden.agent.core.control.provider_waits`). A model request has no side effect, so
repeating it is safe, and the number of attempts limits the cost.

Source: https://httpwg.org/specs/rfc9110.html#field.retry-after.
"""

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from planwarden.agent.common.errors import ModelError
from planwarden.agent.core.control.provider_waits import bound_asked_s

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class AttemptFailed(Exception):
    """One attempt failed. Internal to this package, which raises `ModelError` to its callers."""

    def __init__(
        self,
        sentence: str,
        *,
        is_transient: bool = False,
        is_outage: bool | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Count a transient failure as an outage, unless `is_outage` says otherwise."""
        super().__init__(sentence)
        self.sentence = sentence
        self.is_transient = is_transient
        """Whether the same request may succeed in a moment."""
        self.is_outage = is_transient if is_outage is None else is_outage
        """Whether the same request may succeed in minutes or hours."""
        self.retry_after_s = bound_asked_s(retry_after_s)
        """Seconds for which the provider asks its clients to wait, within limits."""


@dataclass(frozen=True, kw_only=True)
class Retries:
    """Runs attempts within limits. Tests pass their own clock, sleep and random numbers, so that they need not wait."""

    attempts: int = 4
    total_s: float = 300.0
    """The most seconds for all attempts and waits of one request together."""
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    """The longest wait between two attempts; if the provider asks for a longer one, there is no further attempt."""
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    clock: Callable[[], float] = anyio.current_time
    random_fraction: Callable[[], float] = random.random

    async def run(self, attempt: Callable[[float], Awaitable[Result]]) -> Result:
        """Return the first result. `attempt` gets the seconds that are left. Raises `ModelError` with one sentence."""
        began = self.clock()
        number = 0
        while True:
            number += 1
            try:
                return await attempt(max(0.001, self.total_s - (self.clock() - began)))
            except AttemptFailed as error:
                failure = error
            remaining_s = self.total_s - (self.clock() - began)
            own_s = min(self.first_wait_s * 2 ** (number - 1), self.longest_wait_s) * (0.5 + self.random_fraction() / 2)
            wait_s = max(own_s, failure.retry_after_s or 0.0)
            refusal = self._find_refusal(failure, number, wait_s, remaining_s)
            if refusal is not None:
                raise ModelError(refusal, retryable=failure.is_outage, asked_s=failure.retry_after_s)
            logger.info("%s; trying again in %.1f s", failure.sentence, wait_s)
            await self.sleep(wait_s)

    def _find_refusal(self, fault: AttemptFailed, number: int, wait_s: float, remaining_s: float) -> str | None:
        times = f" ({number} attempts)" if number > 1 else ""
        if not fault.is_transient or number >= self.attempts:
            return f"{fault.sentence}{times}"
        if wait_s > self.longest_wait_s:
            return f"{fault.sentence}{times}; it asks to wait {wait_s:.0f} s; try again then"
        if wait_s >= remaining_s:
            return f"{fault.sentence}{times}; {self.total_s:g} s for one request are used up"
        return None
