"""Describes a provider's failure in one sentence: what happened, to which model, what to do next.

A sentence quotes the provider only where that helps (when it refused a request): one line, cut, and without the key.
It never quotes the answer to a wrong key. The clients' exceptions hold requests and headers, so only these sentences
leave this package.
"""

import re
from collections.abc import Iterator
from typing import cast

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

from planwarden.agent.models.provider.client import AnswerTooLarge
from planwarden.agent.models.provider.endpoint import MODE_VARIABLE, TIMEOUT_VARIABLE, URL_VARIABLE, Endpoint
from planwarden.agent.models.provider.retry import AttemptFailed

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
    """Return the text in one line without the key and without anything that looks like a key, even masked."""
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
