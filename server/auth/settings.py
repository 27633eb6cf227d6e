"""`[http]` of the operator's file: the names under which the server answers, and the issuer whose tokens it accepts."""

import ipaddress
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, AnyHttpUrl, BaseModel, ConfigDict, Field, model_validator

_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
"""RFC 6749, section 3.3."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host: `localhost`, or a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_secure(url: str) -> bool:
    """Return whether data that is sent to the URL is encrypted, or stays on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _check_host(entry: str) -> str:
    if not _HOST.fullmatch(entry):
        raise ValueError("this is not NAME or NAME:PORT (no scheme, no path, no wildcard)")
    return entry.lower()


def _check_url(text: str) -> str:
    """Allow plain http only on this machine: keys and tokens must not cross a network unencrypted."""
    parts = urlsplit(text)
    if not is_secure(text) or not parts.hostname or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("this is not an https URL without query and fragment (http only on this machine)")
    return text


def _check_public_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError("this is not an http or https URL without query and fragment")
    if parts.path not in ("", "/"):
        raise ValueError("the URL has a path; the server answers at the root of its name")
    # Leave the default port out, as browsers do in `Host` and `Origin`.
    return str(AnyHttpUrl(text)).rstrip("/")


def _check_scope(scope: str) -> str:
    if not _SCOPE.fullmatch(scope):
        raise ValueError("this is not a scope")
    return scope


class HttpSettings(BaseModel):
    """The table `[http]`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    auth: Literal["auto", "required"] = "auto"
    """With `auto`, requests need a token if the address is not a loopback one, if there is an `issuer`, or if a token
    was ever made; with `required`, always."""
    allowed_hosts: tuple[Annotated[str, AfterValidator(_check_host)], ...] = Field(default=(), strict=False)
    """Names under which clients reach the server, as `NAME` or `NAME:PORT`; loopback names are always allowed."""
    public_url: Annotated[str, AfterValidator(_check_public_url)] | None = None
    """Address in links and metadata behind a proxy; `X-Forwarded-*` headers are never read."""
    issuer: Annotated[str, AfterValidator(_check_url)] | None = None
    """URL of the OAuth authorization server whose JWT access tokens are accepted, exactly as in their `iss`."""
    audience: Annotated[str, Field(min_length=1, max_length=2_000)] | None = None
    """Required value of `aud`; default: the address of `/mcp` under `public_url`."""
    jwks_url: Annotated[str, AfterValidator(_check_url)] | None = None
    """Address of the issuer's keys; default: the one in its metadata."""
    required_scopes: tuple[Annotated[str, AfterValidator(_check_scope)], ...] = Field(default=(), strict=False)
    """Scopes that every OAuth token must carry."""

    @model_validator(mode="after")
    def _check_together(self) -> "HttpSettings":
        if self.issuer is None and (self.audience or self.jwks_url or self.required_scopes):
            raise ValueError("audience, jwks_url and required_scopes need an issuer")
        if self.issuer is not None and self.audience is None and self.public_url is None:
            raise ValueError("an issuer needs an audience, or a public_url from which it follows")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """`allowed_hosts` with the host of `public_url`."""
        public = urlsplit(self.public_url or "").netloc.lower()
        return tuple(dict.fromkeys((*self.allowed_hosts, *((public,) if public else ()))))
