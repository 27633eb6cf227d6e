"""The operator's channels for notifications: the `[[notify]]` tables in `planwarden.toml`.

Their secrets come only from the environment.
"""

import base64
import binascii
import ipaddress
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.execution.notifications import SUBSCRIBABLE, NotificationKind

MAX_CHANNELS = 10
KEY_BYTES = range(24, 65)
"""Valid key lengths: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md"""
_PREFIX = "whsec_"
_TOPIC = re.compile(r"/[-_A-Za-z0-9]{1,64}")
_TOKEN = re.compile(r"[!-~]{1,1000}")

Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
ChannelEvent = Literal["asked", "reminded", "escalated", "decided", "timed_out"]


class NotificationChannel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel to which notifications go. This process can deliver to it unless it has a `problem`."""

    name: str
    kind: Literal["webhook", "ntfy"]
    url: str
    host: str
    events: frozenset[NotificationKind]
    key: bytes = b""
    """For a webhook: the key that signs its messages."""
    token: str | None = None
    """The access token, for an ntfy server that requires one."""
    problem: str | None = None
    """Why this process cannot deliver to the channel; None if it can."""

    def __repr__(self) -> str:
        return f"NotificationChannel({self.name!r}, {self.kind}, {self.host!r}, problem={self.problem!r})"


class NotifySettings(BaseModel):
    """One `[[notify]]` table."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    kind: Literal["webhook", "ntfy"]
    """`webhook` (Standard Webhooks, signed) or `ntfy`."""
    url: Annotated[str, Field(max_length=2_000, repr=False)]
    """The address for notifications: https, or http on this machine; for ntfy, the server and one topic."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:-]{0,63}$")] | None = None
    """The name in `doctor` and in the audit; default: kind and host."""
    events: Annotated[list[ChannelEvent], Field(min_length=1)] | None = None
    """The events to send; default: all of them."""
    secret_env: Variable | None = None
    """For webhooks: the environment variable that holds the secret, `whsec_` and 24 to 64 random bytes in base64."""
    token_env: Variable | None = None
    """For ntfy: the environment variable that holds an access token, for servers that require one."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            is_usable = bool(parts.hostname) and parts.port != 0 and url.isascii() and url.isprintable()
        except ValueError:
            raise ValueError("this is not an address; write https://host/path") from None
        if not is_usable or parts.scheme not in ("http", "https") or parts.fragment or " " in url:
            raise ValueError("this is not an address that a notification can be sent to; write https://host/path")
        if parts.username is not None or parts.password is not None:
            raise ValueError("an address must not hold a user name or password; use token_env")
        if parts.scheme == "http" and not _is_loopback(parts):
            raise ValueError("plain http is allowed for this machine only; use https")
        return url

    @model_validator(mode="after")
    def _check_kind(self) -> "NotifySettings":
        if self.kind == "webhook" and (self.secret_env is None or self.token_env is not None):
            raise ValueError("a webhook is signed: set secret_env to the variable with its secret, and omit token_env")
        if self.kind == "ntfy" and self.secret_env is not None:
            raise ValueError("ntfy uses no secret_env; for a server that requires a token, set token_env")
        parts = urlsplit(self.url)
        if self.kind == "ntfy" and (parts.query or not _TOPIC.fullmatch(parts.path)):
            raise ValueError("an ntfy address is a server and one topic, such as https://ntfy.sh/my-topic")
        return self


def build_channels(
    settings: Sequence[NotifySettings], environment: Mapping[str, str]
) -> tuple[NotificationChannel, ...]:
    """Return the channels in the order of the file. A missing or wrong secret becomes the `problem` of its channel.

    Raises:
        InvalidArguments: there are too many channels, or two with the same name.
    """
    if len(settings) > MAX_CHANNELS:
        raise InvalidArguments(f"planwarden.toml has {len(settings)} [[notify]] channels, the limit is {MAX_CHANNELS}")
    channels = tuple(_build_channel(table, environment) for table in settings)
    repeated = [name for name, count in Counter(channel.name for channel in channels).items() if count > 1]
    if repeated:
        raise InvalidArguments(
            f"planwarden.toml has two [[notify]] channels called {repeated[0]!r}; give each a different 'name'"
        )
    return channels


def _build_channel(settings: NotifySettings, environment: Mapping[str, str]) -> NotificationChannel:
    parts = urlsplit(settings.url)
    host = parts.netloc.lower()
    key, token, problem = b"", None, None
    if settings.secret_env is not None:
        key, problem = read_key(settings.secret_env, environment)
    if settings.token_env is not None:
        token = environment.get(settings.token_env)
        if token is None or not _TOKEN.fullmatch(token):
            token, problem = None, f"the environment variable {settings.token_env} holds no token"
    return NotificationChannel(
        name=settings.name or f"{settings.kind}:{host}",
        kind=settings.kind,
        url=settings.url,
        host=host,
        events=frozenset[NotificationKind](settings.events or SUBSCRIBABLE),
        key=key,
        token=token,
        problem=problem,
    )


def read_key(variable: str, environment: Mapping[str, str]) -> tuple[bytes, str | None]:
    """Return the key from the Standard Webhooks secret in the variable, and None; else an empty key and the fault."""
    text = environment.get(variable)
    if not text:
        return b"", f"the environment variable {variable} is not set"
    try:
        encoded = text.strip().removeprefix(_PREFIX)
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) not in KEY_BYTES:
        return b"", f"the environment variable {variable} is not {_PREFIX} and 24 to 64 bytes in base64"
    return key, None


def _is_loopback(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
