"""A provider's failures: the sentence that describes each of them, and when a request is repeated.

A sentence says what happened, to which model, and what to do next. It quotes the provider only where that helps (after
it refused a request): in one line, shortened, and without the key. It never quotes the answer to a wrong key. The
clients' exceptions hold requests and headers, so only these sentences leave this package.

`Retries` repeats a request when a provider is busy, broken or unreachable, within limits for attempts and time. The
wait doubles from attempt to attempt and varies at random, so that many processes do not try again at the same moment.
A wait that the provider asks for is respected up to `Retries.longest_wait_s`; a longer one is left to the caller, who
waits durably (`planwarden.agent.core.control.provider_waits`). A model request has no side effect, so repeating it is
safe, and the number of attempts limits the cost. Source: https://httpwg.org/specs/rfc9110.html#field.retry-after.
"""

import logging
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

import anyio
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)

from planwarden.agent.common.errors import ModelError
from planwarden.agent.core.control.provider_waits import bound_asked_s
from planwarden.agent.models.client import AnswerTooLarge
from planwarden.agent.models.endpoint import MODE_VARIABLE, TIMEOUT_VARIABLE, URL_VARIABLE, Endpoint

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_QUOTE_CHARS = 240
_KEY_LIKE = re.compile(r"\b(?:sk|pk|gsk|hf|xai)[-_][\w*.-]{8,}|\bAIza[\w*-]{8,}|\bBearer\s+\S+", re.IGNORECASE)
_ABOUT_FORCING = re.compile(r"tool[_ ]?choice|function[_ ]?calling|forc", re.IGNORECASE)
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})

_PERMANENT: tuple[tuple[type[Exception], str], ...] = (
    (ModelQuotaExceededError, ": the account's quota or credit is used up{status}"),
    (ModelAuthenticationError, ": the key was refused{status}; check {endpoint.key_variable}"),
    (ModelNotFoundError, " was not found at {endpoint.url}{status}; check the model's name and the address"),
    (ModelContextWindowExceededError, ": the prompt is longer than the model's context window"),
    (ContentFilterError, " refused to answer: its content filter stopped it"),
)
"""Failures that would happen again in an attempt a moment later, each with the rest of its sentence."""


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


class CannotForce(Exception):
    """The provider refuses to force the model to call a tool, but may accept the same request unforced. Internal."""


def is_refusal_to_force(error: Exception) -> bool:
    """Return whether the model, or its provider, refuses a request because the request forces a tool call."""
    if isinstance(error, UserError):
        return "tool_choice" in str(error)
    return (
        isinstance(error, ModelHTTPError)
        and error.status_code in (400, 422)
        and bool(_ABOUT_FORCING.search(_find_message(error)))
    )


def describe_failure(error: Exception, endpoint: Endpoint) -> AttemptFailed:
    """Return the failure: its sentence, and whether a retry may succeed in a moment, or only in minutes or hours."""
    if any(isinstance(cause, AnswerTooLarge) for cause in _list_causes(error)):
        return AttemptFailed(f"{endpoint.name} sent an answer that is too large")
    status = f" ({error.status_code})" if isinstance(error, ModelHTTPError) else ""
    for kind, sentence in _PERMANENT:
        if isinstance(error, kind):
            text = f"{endpoint.name}{sentence.format(status=status, endpoint=endpoint)}"
            # Waiting can help: a quota begins again, and credit can be bought.
            is_outage = kind is ModelQuotaExceededError
            asked_s = error.retry_after if is_outage and isinstance(error, ModelHTTPError) else None
            return AttemptFailed(text, is_outage=is_outage, retry_after_s=asked_s)
    match error:
        case ModelRequestTimeout() | ModelTimeoutError():
            text = f"{endpoint.name} did not answer within {endpoint.timeout_s:g} s ({TIMEOUT_VARIABLE})"
            return AttemptFailed(text, is_transient=True)
        case ModelConnectionError(phase="read" | "write"):
            return AttemptFailed(
                f"{endpoint.name}: the connection broke before the answer was complete", is_transient=True
            )
        case ModelConnectionError():
            return AttemptFailed(f"{endpoint.name} cannot be reached at {endpoint.url}", is_transient=True)
        case ModelHTTPError():
            return _describe_http_error(error, endpoint, status)
        case ModelAPIError() | UnexpectedModelBehavior():
            text = f"{endpoint.name}: what {endpoint.url} sent is not an answer of its API; check {URL_VARIABLE}"
            return AttemptFailed(text, is_transient=True)
        case UserError():
            return AttemptFailed(f"{endpoint.name} cannot take this request: {_quote(str(error), endpoint)}")
        case _:
            return AttemptFailed(f"{endpoint.name} sent an answer that cannot be read ({type(error).__name__})")


def _describe_http_error(error: ModelHTTPError, endpoint: Endpoint, status: str) -> AttemptFailed:
    is_busy = isinstance(error, ModelRateLimitError | ModelUnavailableError | ModelServerError)
    if is_busy or error.status_code in _TRANSIENT_STATUS or error.status_code >= 500:
        what = "is rate limited" if isinstance(error, ModelRateLimitError) else "is not available now"
        may_repeat = error.provider_retry_hint is not False
        return AttemptFailed(
            f"{endpoint.name} {what}{status}", is_transient=may_repeat, is_outage=True, retry_after_s=error.retry_after
        )
    message = _find_message(error)
    quote = f": {_quote(message, endpoint)}" if message else ""
    hint = f"; a model without tool calling needs {MODE_VARIABLE}=text" if _ABOUT_FORCING.search(message) else ""
    return AttemptFailed(f"{endpoint.name} refused the request{status}{quote}{hint}")


def _quote(text: str, endpoint: Endpoint) -> str:
    """Return the text in one line, without the key and without anything that looks like a key, masked or not."""
    line = " ".join(text.split())
    if endpoint.key:
        line = line.replace(endpoint.key, "***")
    return _KEY_LIKE.sub("***", line)[:MAX_QUOTE_CHARS]


def _find_message(error: Exception) -> str:
    """Return the message in an error's body; providers send it bare, in an object, or in a list of one object."""
    part: object = error.body if isinstance(error, ModelAPIError) else None
    for _ in range(3):
        if isinstance(part, list):
            part = next(iter(cast("list[object]", part)), None)
        if not isinstance(part, dict):
            break
        body = cast("dict[str, object]", part)
        part = body.get("message") or body.get("error")
    return part[:2000] if isinstance(part, str) else ""


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its causes, at most ten."""
    current: BaseException | None = error
    for _ in range(10):
        if current is None:
            return
        yield current
        current = current.__cause__ or current.__context__


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
