"""Keys of people, and the challenges that they sign.

A key is a WebAuthn credential (https://www.w3.org/TR/webauthn-3/). Its private half stays in a security key or in the
person's device; its public half is stored here. A challenge contains a nonce that one session may use once, within
minutes, for one purpose. Callers pass all times, in Unix seconds by the store's clock.
"""

from typing import Literal

import msgspec
from msgspec.structs import replace

from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.storage.sql.records import Columns, ExpiringRecord, Record, RecordStore, RecordTransaction

OPEN_NONCES = 10
"""The most nonces that one session has; a further one replaces the oldest."""

_LOCK = "keys"

Purpose = Literal["sign", "add"]


class SigningKey(Record, frozen=True, kw_only=True):
    """The public half of a person's key."""

    columns = Columns("key", "key_id", "principal")

    key_id: str
    """First 16 hexadecimal digits of the SHA-256 of the credential id; for people and for the audit."""
    credential_id: bytes
    """As the authenticator made it; at most 1,023 bytes."""
    public_key: bytes
    """COSE_Key, https://www.rfc-editor.org/rfc/rfc9052#section-7."""
    principal: str
    """The person whose signatures the key makes."""
    rp_id: str
    """Name of the host at which the key can be used."""
    label: str
    sign_count: int
    """The count in its newest signature; 0 if the authenticator does not count."""
    created_at: float
    used_at: float | None = None
    revoked_at: float | None = None


class SigningNonce(ExpiringRecord, frozen=True, kw_only=True):
    """What a challenge was made from, and its purpose."""

    columns = Columns("nonce", "nonce", "session")

    nonce: str
    """64 hexadecimal digits, random."""
    purpose: Purpose
    session: str
    """Hash of the session that asked for it."""
    suspension_id: str = ""
    digest: str = ""
    """Digest of the question's revision that is signed."""
    content: str = ""
    """Digest of the answer that goes with the signature; empty when the question has no form."""


class KeyUse(msgspec.Struct, frozen=True, kw_only=True):
    """One verified signature."""

    key_id: str
    principal: str
    sign_count: int
    """The count in this signature."""
    at: float


class KeyStore(RecordStore[SigningKey]):
    """Keys and nonces of one home.

    Guarantees:
    * `take_nonce` is atomic: exactly one of racing calls gets the nonce. A nonce that was taken or has expired does not
      exist.
    * A signature counts only if its principal owns the key, the key is not revoked, and the sign count has grown (or
      the authenticator does not count).
    * A principal's first key needs no other; each further one needs a signature by another key. Of two keys that race
      to be the first, at most one is added. A revoked key cannot sign. Who has only revoked keys may add a first one.
    * A change of a key and its audit row are stored together or not at all. Keys are never deleted.
    """

    def __init__(self, store: object) -> None:
        super().__init__(store, SigningKey)

    async def add_nonce(self, nonce: SigningNonce, now: float) -> None:
        """Store a nonce; delete expired ones, and all but the newest `OPEN_NONCES` of its session."""

        def add(transaction: RecordTransaction) -> None:
            for former in transaction.all(SigningNonce, nonce.session)[: 1 - OPEN_NONCES]:
                transaction.delete(SigningNonce, former.nonce)
            transaction.delete_due(SigningNonce, now)
            transaction.insert(nonce)

        await self.write(add)

    async def take_nonce(self, nonce: str, now: float) -> SigningNonce | None:
        """Return the nonce and delete it; None if it does not exist."""

        def take(transaction: RecordTransaction) -> SigningNonce | None:
            record = transaction.find(SigningNonce, nonce, now)
            return record if transaction.delete(SigningNonce, nonce) else None

        return await self.write(take)

    async def add_key(self, key: SigningKey, by: KeyUse | None, entry: AuditEntry) -> bool:
        """Add a key; return False when the key is known already, or when `by` does not permit a further key."""

        def add(transaction: RecordTransaction) -> bool:
            if transaction.find(SigningKey, key.key_id) is not None:
                return False
            if by is None:
                return not _list_usable(transaction, key.principal) and transaction.insert(key)
            return by.principal == key.principal and _count(transaction, by) and transaction.insert(key)

        return await self.write(add, entry, lock=_LOCK)

    async def use_key(self, use: KeyUse, entry: AuditEntry) -> bool:
        """Record a signature in its key; return False when the signature does not count (see the guarantees above)."""
        return await self.write(lambda transaction: _count(transaction, use), entry, lock=_LOCK)

    async def revoke_key(self, key_id: str, at: float, entry: AuditEntry, *, spares_last: bool = False) -> bool:
        """Revoke a key; return False if there is no such key or it was revoked before. With `spares_last`, also return
        False for the last usable key of its principal."""

        def revoke(transaction: RecordTransaction) -> bool:
            key = transaction.find(SigningKey, key_id)
            if key is None or key.revoked_at is not None:
                return False
            if spares_last and len(_list_usable(transaction, key.principal)) < 2:
                return False
            return transaction.change(replace(key, revoked_at=at))

        return await self.write(revoke, entry, lock=_LOCK)


def counts(before: int, after: int) -> bool:
    """Return whether the count `after` may follow `before` (https://www.w3.org/TR/webauthn-3/#sctn-sign-counter)."""
    return after > before or after == before == 0


def _list_usable(transaction: RecordTransaction, principal: str) -> list[SigningKey]:
    return [key for key in transaction.all(SigningKey, principal) if key.revoked_at is None]


def _count(transaction: RecordTransaction, use: KeyUse) -> bool:
    key = transaction.find(SigningKey, use.key_id)
    if key is None or key.revoked_at is not None or key.principal != use.principal:
        return False
    return counts(key.sign_count, use.sign_count) and transaction.change(
        replace(key, sign_count=use.sign_count, used_at=use.at)
    )
