"""Keys and nonces without a disk: every law of the port except durability."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.ports.keys import OPEN_NONCES, KeyUse, SigningKey, SigningNonce, counts


class MemoryKeys:
    """Implements `KeyStore` for one process."""

    def __init__(self, audit: Callable[[Sequence[AuditEntry]], Awaitable[None]]) -> None:
        self._audit = audit
        self._keys: dict[str, SigningKey] = {}
        self._nonces: dict[str, SigningNonce] = {}

    async def add_nonce(self, nonce: SigningNonce, now: float) -> None:
        self._nonces = {key: known for key, known in self._nonces.items() if known.expires_at > now}
        self._nonces[nonce.nonce] = nonce
        for old in [key for key, known in self._nonces.items() if known.session == nonce.session][:-OPEN_NONCES]:
            del self._nonces[old]

    async def take_nonce(self, nonce: str, now: float) -> SigningNonce | None:
        found = self._nonces.pop(nonce, None)
        return found if found is not None and found.expires_at > now else None

    async def add_key(self, key: SigningKey, by: KeyUse | None, entry: AuditEntry) -> bool:
        if key.key_id in self._keys:
            return False
        if by is None and any(self._open_of(key.principal)):
            return False
        if by is not None and (by.principal != key.principal or not self._count(by)):
            return False
        self._keys[key.key_id] = key
        await self._audit((entry,))
        return True

    async def use_key(self, use: KeyUse, entry: AuditEntry) -> bool:
        if not self._count(use):
            return False
        await self._audit((entry,))
        return True

    async def revoke_key(self, key_id: str, at: float, entry: AuditEntry, *, spares_last: bool = False) -> bool:
        found = self._keys.get(key_id)
        if found is None or found.revoked_at is not None:
            return False
        if spares_last and len(self._open_of(found.principal)) < 2:
            return False
        self._keys[key_id] = replace(found, revoked_at=at)
        await self._audit((entry,))
        return True

    async def keys(self, principal: str | None = None) -> tuple[SigningKey, ...]:
        return tuple(key for key in self._keys.values() if principal in (None, key.principal))

    def _open_of(self, principal: str) -> list[SigningKey]:
        return [key for key in self._keys.values() if key.principal == principal and key.revoked_at is None]

    def _count(self, use: KeyUse) -> bool:
        found = self._keys.get(use.key_id)
        if found is None or found.principal != use.principal or found.revoked_at is not None:
            return False
        if not counts(found.sign_count, use.sign_count):
            return False
        self._keys[use.key_id] = replace(found, sign_count=use.sign_count, used_at=use.at)
        return True
