"""Keys of people, and the challenges that they sign: a port that every store implements.

A key is a WebAuthn credential (https://www.w3.org/TR/webauthn-3/). Its private half stays in a security key or in the
person's device; its public half is stored here. A challenge contains a nonce that one session may use once, within
minutes, for one purpose. Times are arguments, in Unix seconds by the store's clock.
"""

from typing import Literal, Protocol, runtime_checkable

import msgspec

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.store import Store

OPEN_NONCES = 10
"""The most nonces that one session has; a further one replaces the oldest."""

Purpose = Literal["sign", "add"]


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    """The public half of a person's key."""

    key_id: str
    """First 16 hexadecimal digits of the SHA-256 of the credential id; for people and for the audit."""
    credential_id: bytes
    """As the authenticator made it; at most 1,023 bytes."""
    public_key: bytes
    """COSE_Key, https://www.rfc-editor.org/rfc/rfc9052#section-7."""
    principal: str
    """Whose signatures it makes."""
    rp_id: str
    """Name of the host at which it can be used."""
    label: str
    sign_count: int
    """Of its newest signature; 0 if the authenticator does not count."""
    created_at: float
    used_at: float | None = None
    revoked_at: float | None = None


class SigningNonce(msgspec.Struct, frozen=True, kw_only=True):
    """What a challenge was made from, and what for."""

    nonce: str
    """64 hexadecimal digits, random."""
    purpose: Purpose
    session: str
    """Hash of the session that asked for it."""
    suspension_id: str = ""
    digest: str = ""
    """Of the question's revision that is signed."""
    content: str = ""
    """Digest of the answer that goes with the signature; empty when the question has no form."""
    expires_at: float


class KeyUse(msgspec.Struct, frozen=True, kw_only=True):
    """One verified signature."""

    key_id: str
    principal: str
    sign_count: int
    """As the authenticator says in this signature."""
    at: float


class KeyStore(Protocol):
    """Keys and nonces of one home.

    Laws:
    * `take_nonce` is atomic: exactly one of racing calls gets the nonce. A nonce that was taken or has expired does not
      exist.
    * A use counts only if the key belongs to its principal, is not revoked, and its sign count has grown (or neither
      counts).
    * A principal's first key needs no other key; every further one needs a use of another. Two keys that race to be the
      first are not both added. A revoked key neither signs nor prevents a first key.
    * A change of a key and its row of the audit are stored together or not at all. Keys are never deleted.
    * Acknowledged means committed.
    """

    async def add_nonce(self, nonce: SigningNonce, now: float) -> None:
        """Store a nonce; delete expired ones, and all but the newest `OPEN_NONCES` of its session."""
        ...

    async def take_nonce(self, nonce: str, now: float) -> SigningNonce | None:
        """The nonce, once."""
        ...

    async def add_key(self, key: SigningKey, by: KeyUse | None, entry: AuditEntry) -> bool:
        """Add a key; False when it is known already, or when `by` does not allow it."""
        ...

    async def use_key(self, use: KeyUse, entry: AuditEntry) -> bool:
        """Count a signature; False when it does not count."""
        ...

    async def revoke_key(self, key_id: str, at: float, entry: AuditEntry, *, spares_last: bool = False) -> bool:
        """Revoke a key; False if there is none or it was revoked before, with `spares_last` also if it is the only
        one."""
        ...

    async def keys(self, principal: str | None = None) -> tuple[SigningKey, ...]:
        """Of one principal or of all, revoked ones included, oldest first."""
        ...


@runtime_checkable
class HasKeys(Protocol):
    """A store that also stores keys."""

    @property
    def signing_keys(self) -> KeyStore: ...


def keys_of(store: Store) -> KeyStore:
    """The keys beside the store's executions.

    Raises:
        UsageError: this store has none, so nothing can be signed.
    """
    if not isinstance(store, HasKeys):
        raise UsageError(f"{type(store).__name__} keeps no keys, so nothing can be signed")
    return store.signing_keys


def counts(known: int, given: int) -> bool:
    """Whether a sign count may follow the one before (https://www.w3.org/TR/webauthn-3/#sctn-sign-counter)."""
    return given > known or given == known == 0
