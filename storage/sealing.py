"""Sealed secrets: reading the database, its backups or its replicas reveals no secret.

Each value is sealed with AES-256-GCM (https://csrc.nist.gov/pubs/sp/800/38/d/final), a fresh random nonce, and the name
of the secret as associated data: a changed row is refused, and so is a row that was moved to another name. The key is
`PLANWARDEN_SECRET_KEY`, which every process gets and the database never does. One row, `CHECK`, is there only
to tell a wrong key from a damaged row.

Not promised: a person who can write to the database can delete a row, or put back what the same row held before.

A key cannot be replaced yet. That would take three things: processes that know several keys (the first seals, any one
opens); a command that opens every row, `CHECK` included, and seals it with the new key, all in one transaction; and a
restart of the processes without the old key.
"""

import base64
import hashlib
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.storage.secret_files import LOCK_TIMEOUT_S, MAX_SECRET_BYTES, SECRET_KEY_VARIABLE
from planwarden.storage.sql.records import Columns, ExpiringRecord, Record, RecordStore, RecordTransaction

KEY_BYTES = 32
NONCE_BYTES = 12
FORM = b"\x01"
CHECK = "check"
_LOCK = "secret locks"
LEASE_S = 60.0
"""Seconds after which a lock ends: enough to refresh a token, but not a long wait if its holder was killed."""
PAUSE_S = 0.1
_CHECKED = b"planwarden"


def make_secret_key() -> str:
    """Return a new key, in the form in which the variable holds it."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


class SecretKey:
    """Seals values, each for one name."""

    def __init__(self, text: str) -> None:
        """Raise `UsageError` when the text is not a key."""
        try:
            key = base64.b64decode(text.strip(), validate=True)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise UsageError(
                f"{SECRET_KEY_VARIABLE} is not {KEY_BYTES} bytes in base64; set it to the key that the other processes "
                "of this store have, or for a new store to what `planwarden key new-secret` prints"
            )
        self._cipher = AESGCM(key)

    def seal(self, name: str, value: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return FORM + nonce + self._cipher.encrypt(nonce, value, _bind(name))

    def open(self, name: str, sealed: bytes) -> bytes | None:
        """Return the value; None when it was sealed with another key or for another name, or was changed."""
        start = len(FORM) + NONCE_BYTES
        if sealed[: len(FORM)] != FORM:
            return None
        try:
            return self._cipher.decrypt(sealed[len(FORM) : start], sealed[start:], _bind(name))
        # `ValueError` means that `sealed` is too short for a nonce or a tag.
        except (InvalidTag, ValueError):
            return None


def _bind(name: str) -> bytes:
    return b"planwarden secret/v1\0" + name.encode()


class SealedSecret(Record, frozen=True, kw_only=True):
    """A value that nobody can read, or change unnoticed, without the key."""

    columns = Columns("secret", "name")

    name: str
    sealed: bytes


class SecretLock(ExpiringRecord, frozen=True, kw_only=True):
    """A lock on the name of a secret. It is a row that expires, because its holder may die, and because no transaction
    or connection may stay open while a server on the internet is asked for a token."""

    columns = Columns("secret_lock", "name", "holder")

    name: str
    holder: str


class SealedSecrets:
    """Implements `SecretStore` over sealed records. The key is parsed and checked only when a value needs it."""

    def __init__(self, store: object, key: str) -> None:
        """`key` is the text of `PLANWARDEN_SECRET_KEY`, empty where it is not set."""
        self._records = RecordStore(store, SealedSecret)
        self._text = key
        self._key: SecretKey | None = None

    async def check(self) -> None:
        """Check the key. In a new store, the key of the first process becomes the key of the store.

        Raises:
            UsageError: no key is set, the text is not a key, or it is not the key of this store.
        """
        key = self._read_key()
        _confirm(key, await self._create(CHECK, key.seal(CHECK, _CHECKED)))
        self._key = key

    async def is_in_use(self) -> bool:
        """Return whether the store already has a key. Writes nothing; raises what `check` raises."""
        key, check = self._read_key(), await self._records.find(CHECK)
        if check is not None:
            _confirm(key, check.sealed)
        return check is not None

    async def read(self, name: str) -> bytes | None:
        record = await self._records.find(name)
        return None if record is None else self._open(await self._find_key(), name, record.sealed)

    async def create(self, name: str, value: bytes) -> bytes:
        key = await self._find_key()
        return self._open(key, name, await self._create(name, key.seal(name, value)))

    async def _create(self, name: str, sealed: bytes) -> bytes:
        def insert(transaction: RecordTransaction) -> bytes:
            secret = SealedSecret(name=name, sealed=sealed)
            former = None if transaction.insert(secret) else transaction.find(SealedSecret, name)
            return (former or secret).sealed

        return await self._records.write(insert)

    async def replace(self, name: str, value: bytes) -> None:
        if len(value) > MAX_SECRET_BYTES:
            raise StoreError(f"{self.locate(name)} would have more than {MAX_SECRET_BYTES} bytes; nothing was stored")
        key = await self._find_key()
        secret = SealedSecret(name=name, sealed=key.seal(name, value))
        await self._records.write(lambda transaction: transaction.put(secret))

    async def delete(self, name: str) -> bool:
        return await self._records.write(lambda transaction: transaction.delete(SealedSecret, name))

    async def version(self, name: str) -> str | None:
        # Each write uses a new nonce, so the digest changes even if the same value is written again.
        record = await self._records.find(name)
        return None if record is None else hashlib.sha256(record.sealed).hexdigest()

    def locate(self, name: str) -> str:
        return f"the secret {name!r} of the store"

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncGenerator[None]:
        holder = secrets.token_hex(8)
        try:
            deadline = anyio.current_time() + LOCK_TIMEOUT_S
            while not await self.take_lock(name, holder, LEASE_S):
                if anyio.current_time() > deadline:
                    raise StoreError(f"another process has locked {self.locate(name)}; try again")
                await anyio.sleep(PAUSE_S)
            yield
        finally:
            # If the lock cannot be freed, it ends by itself.
            with anyio.CancelScope(shield=True), suppress(StoreError):
                await self.free_lock(name, holder)

    async def take_lock(self, name: str, holder: str, lease_s: float) -> bool:
        """Take the lock for `lease_s` at most, if it is free or `holder` has it. Return whether `holder` has it now."""
        now = self._records.clock.now()
        lock = SecretLock(name=name, holder=holder, expires_at=now + lease_s)

        def take(transaction: RecordTransaction) -> bool:
            former = transaction.find(SecretLock, name, now)
            return (former is None or former.holder == holder) and transaction.put(lock)

        return await self._records.write(take, lock=_LOCK)

    async def free_lock(self, name: str, holder: str) -> None:
        """Free the lock, unless the holder has lost it."""

        def free(transaction: RecordTransaction) -> bool:
            former = transaction.find(SecretLock, name)
            return former is not None and former.holder == holder and transaction.delete(SecretLock, name)

        await self._records.write(free, lock=_LOCK)

    async def _find_key(self) -> SecretKey:
        """Return the key, checked before its first use, so that a wrong one seals nothing."""
        if self._key is None:
            await self.check()
        assert self._key is not None
        return self._key

    def _read_key(self) -> SecretKey:
        if not self._text:
            raise UsageError(
                f"{SECRET_KEY_VARIABLE} is not set, but a store on PostgreSQL seals its secrets with it; set it to the "
                "key of this store, or for a new store to what `planwarden key new-secret` prints"
            )
        return SecretKey(self._text)

    def _open(self, key: SecretKey, name: str, sealed: bytes) -> bytes:
        value = key.open(name, sealed)
        if value is None:
            raise StoreError(
                f"{self.locate(name)} was changed, or belongs to another name or key; restore a backup, or delete its "
                "row and make it again"
            )
        return value


def _confirm(key: SecretKey, sealed: bytes) -> None:
    if key.open(CHECK, sealed) != _CHECKED:
        raise UsageError(
            f"{SECRET_KEY_VARIABLE} is not the key of this store; set it to the one that the other processes have"
        )
