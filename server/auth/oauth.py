"""Verifies OAuth access tokens: JWTs of one issuer, with the keys that it publishes (RFC 9068, RFC 8414, RFC 7517).

A token needs a signature by an allowed asymmetric algorithm that fits the key, and valid `sub`, `iss`, `aud`, `exp`
and, if present, `nbf`. Its principal is `ISSUER#SUBJECT`. Keys are fetched when they are first needed, without
following redirects, within limits of size, number and time. An unknown key id causes another fetch at most every
`COOL_DOWN_S` seconds, so that invented tokens cause few requests. Opaque tokens and introspection are not supported.
"""

import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

import anyio
import httpx2
from jwt import PyJWK, PyJWTError, decode, get_unverified_header
from mcp.server.auth.provider import AccessToken, TokenVerifier
from pydantic import JsonValue, TypeAdapter, ValidationError

from planwarden.agent.ports.environment import Clock
from planwarden.server.auth.caller import VerifiedToken
from planwarden.server.auth.settings import HttpSettings, is_secure
from planwarden.storage.tokens import MAX_TOKEN_CHARS

logger = logging.getLogger(__name__)

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""The allowed algorithms, all asymmetric: with a shared secret, this server could issue tokens too."""
KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
LEEWAY_S = 30
MAX_DOCUMENT_BYTES = 256 * 1024
MAX_KEYS = 100
FETCH_S = 10.0
FRESH_S, STALE_S, COOL_DOWN_S = 3_600.0, 86_400.0, 30.0
"""Keys are fetched again after `FRESH_S`, used for at most `STALE_S`, and fetched at most every `COOL_DOWN_S`."""
MAX_SUBJECT_CHARS = 255
_DOCUMENT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


class _KeysUnavailable(Exception):
    """The issuer's keys cannot be fetched; the message says why, for the log."""


class IssuerKeys:
    """The cached keys of one issuer."""

    def __init__(self, issuer: str, jwks_url: str | None, clock: Clock, client: httpx2.AsyncClient) -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._clock = clock
        self._client = client
        self._keys: tuple[Mapping[str, JsonValue], ...] = ()
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._lock = anyio.Lock()

    async def find(self, key_id: str | None, algorithm: str) -> PyJWK | None:
        """Return the only key that fits the algorithm and the id, if given; None if no key fits, or several do."""
        key = self._choose(key_id, algorithm, FRESH_S)
        if key is None:
            # The lock is taken only here: while one token waits for new keys, a token with a fresh key must not wait.
            async with self._lock:
                now = self._clock.steady()
                may_fetch = self._tried_at is None or now - self._tried_at >= COOL_DOWN_S
                if may_fetch and self._choose(key_id, algorithm, FRESH_S) is None:
                    self._tried_at = now
                    try:
                        self._keys, self._fetched_at = await self._fetch(), now
                    except _KeysUnavailable as error:
                        logger.warning("cannot get the keys of %s: %s", self._issuer, error)
                key = self._choose(key_id, algorithm, STALE_S)
        return None if key is None else PyJWK(dict(key), algorithm)

    def _choose(self, key_id: str | None, algorithm: str, max_age_s: float) -> Mapping[str, JsonValue] | None:
        if self._fetched_at is None or self._clock.steady() - self._fetched_at > max_age_s:
            return None
        fitting = [
            key
            for key in self._keys
            if key.get("kty") == KEY_TYPES[algorithm[:2]] and key.get("alg", algorithm) == algorithm
        ]
        matching = fitting if key_id is None else [key for key in fitting if key.get("kid") == key_id]
        return matching[0] if len(matching) == 1 else None

    async def _fetch(self) -> tuple[Mapping[str, JsonValue], ...]:
        try:
            with anyio.fail_after(FETCH_S):
                document = await self._get(self._jwks_url or await self._discover())
        except TimeoutError:
            raise _KeysUnavailable(f"no answer within {FETCH_S:.0f} s") from None
        listed = document.get("keys")
        if not isinstance(listed, list) or len(listed) > MAX_KEYS:
            raise _KeysUnavailable(f"the key set is not a list of at most {MAX_KEYS} keys")
        keys = [key for key in listed if isinstance(key, dict)]
        return tuple(key for key in keys if key.get("use", "sig") == "sig")

    async def _discover(self) -> str:
        """Return `jwks_uri` of the issuer's metadata (RFC 8414 section 3, then OpenID Connect Discovery section 4)."""
        parts = urlsplit(self._issuer)
        path = parts.path.rstrip("/")
        root = f"{parts.scheme}://{parts.netloc}"
        urls = [
            f"{root}/.well-known/oauth-authorization-server{path}",
            f"{root}{path}/.well-known/openid-configuration",
        ]
        reasons: list[str] = []
        for url in urls:
            try:
                metadata = await self._get(url)
            except _KeysUnavailable as error:
                reasons.append(str(error))
                continue
            if metadata.get("issuer") != self._issuer:
                raise _KeysUnavailable(f"{url} names another issuer")
            address = metadata.get("jwks_uri")
            if not isinstance(address, str) or not is_secure(address):
                raise _KeysUnavailable(f"{url} has no https jwks_uri")
            return address
        raise _KeysUnavailable("; ".join(reasons))

    async def _get(self, url: str) -> Mapping[str, JsonValue]:
        try:
            async with self._client.stream("GET", url, follow_redirects=False) as response:
                if response.status_code != 200:
                    raise _KeysUnavailable(f"{url} answered {response.status_code}")
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_DOCUMENT_BYTES:
                        raise _KeysUnavailable(f"{url} is larger than {MAX_DOCUMENT_BYTES} bytes")
            return _DOCUMENT.validate_json(bytes(body))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _KeysUnavailable(f"{url}: {type(error).__name__}") from None
        except ValidationError:
            raise _KeysUnavailable(f"{url} is not a JSON object") from None


class IssuerCheck(TokenVerifier):
    """Verifies access tokens of one issuer."""

    def __init__(self, settings: HttpSettings, audience: str, clock: Clock, client: httpx2.AsyncClient) -> None:
        assert settings.issuer is not None
        self._issuer = settings.issuer
        self._audience = audience
        self._keys = IssuerKeys(settings.issuer, settings.jwks_url, clock, client)

    async def verify_token(self, token: str) -> AccessToken | None:
        if len(token) > MAX_TOKEN_CHARS or token.count(".") != 2:
            return None
        try:
            header = get_unverified_header(token)
            algorithm, kind = header.get("alg"), header.get("typ", "")
            if (
                not isinstance(algorithm, str)
                or algorithm not in ALGORITHMS
                or not isinstance(kind, str)
                or kind.lower() not in TYPES
            ):
                return None
            key = await self._keys.find(header.get("kid"), algorithm)
            if key is None:
                return None
            claims = decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except PyJWTError:
            return None
        return self._build_token(claims)

    def _build_token(self, claims: Mapping[str, JsonValue]) -> VerifiedToken | None:
        subject = claims["sub"]
        if not isinstance(subject, str) or not subject.isprintable() or not 0 < len(subject) <= MAX_SUBJECT_CHARS:
            return None
        client_id = claims.get("client_id", claims.get("azp"))
        return VerifiedToken.create(
            f"{self._issuer}#{subject}",
            scopes=_read_scopes(claims),
            # `decode` has checked the expiry. The SDK would check it again, without the leeway.
            expires_at=None,
            issuer=self._issuer,
            subject=subject,
            client_id=client_id if isinstance(client_id, str) and client_id else None,
        )


def _read_scopes(claims: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return the scopes. `scope` is one string (RFC 8693); some issuers send a list, `scp`, instead."""
    scopes = claims.get("scope", claims.get("scp", ""))
    listed = scopes.split(" ") if isinstance(scopes, str) else scopes
    if not isinstance(listed, list):
        return ()
    return tuple(entry for entry in listed if isinstance(entry, str) and entry)
