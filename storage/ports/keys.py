"""Keys of people, and the challenges that they are asked to sign: the port that every store implements.

A key is a WebAuthn credential (https://www.w3.org/TR/webauthn-3/): the private half stays in a security key or in the
person's device, the public half is kept here. A challenge rests on a nonce that one session may use once, within minutes,
for one purpose. Times are Unix seconds by the store's clock and come in as arguments.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.store import Store

OPEN_NONCES = 10
"""Of one session; the oldest is forgotten when there would be more."""

Purpose = Literal["sign", "add"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
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
    """Of its newest signature; 0 for as long as the authenticator does not count."""
    created_at: float
    used_at: float | None = None
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningNonce:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """One verified signature."""

    key_id: str
    principal: str
    sign_count: int
    """As the authenticator says in this signature."""
    at: float


class KeyStore(Protocol):
    """Keys and nonces of one home.

    Laws:
    * `take_nonce` is atomic: of racing calls exactly one gets the nonce. One that was taken or has expired does not exist.
    * A use counts only if the key is its principal's, is not revoked, and its sign count has grown (or neither counts).
    * The first key of a principal is added by nothing, every further one by a use of another; two that race to be the first
      are not both added. A revoked key neither signs nor hinders a first one.
    * Whatever changes a key is stored together with its row of the audit, or not at all. Keys are never deleted.
    * Acknowledged means committed.
    """

    async def add_nonce(self, nonce: SigningNonce, now: float) -> None:
        """Keep a nonce; expired ones go, and of its session all but the newest `OPEN_NONCES`."""
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
        """End a key; False when there is none or it ended before, with `spares_last` also when its principal has no other."""
        ...

    async def keys(self, principal: str | None = None) -> tuple[SigningKey, ...]:
        """Of one principal or of all, revoked ones included, oldest first."""
        ...


@runtime_checkable
class HasKeys(Protocol):
    """A store that keeps keys too."""

    @property
    def signing_keys(self) -> KeyStore: ...


def keys_of(store: Store) -> KeyStore:
    """The keys beside the store's executions.

    Raises:
        UsageError: this store keeps none, so nothing can be signed.
    """
    if not isinstance(store, HasKeys):
        raise UsageError(f"{type(store).__name__} keeps no keys, so nothing can be signed")
    return store.signing_keys


def counts(known: int, given: int) -> bool:
    """Whether a sign count may follow the one before (https://www.w3.org/TR/webauthn-3/#sctn-sign-counter)."""
    return given > known or given == known == 0
