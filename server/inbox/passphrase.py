"""The optional passphrase of the inbox: a secret that a person needs in addition to a one-time code.

Only a hash is stored: one line `PARAMETERS:SALT:HASH`, salt and hash in hex (https://www.rfc-editor.org/rfc/rfc7914).
With SQLite the line is in the file that `[inbox] passphrase_file` names. With PostgreSQL it is in the store, and all
inboxes ask for the passphrase even without this setting; the setting then only demands that a hash is stored.
"""

import hashlib
import hmac
import unicodedata
from secrets import token_bytes

import anyio.to_thread
import msgspec

from planwarden.agent.common.errors import UsageError
from planwarden.agent.ports.environment import SecretStore
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.secrets import PASSPHRASE

COST, BLOCK_BYTES, LANES = 2**15, 8, 1
"""The settings of scrypt, with which each guess takes 32 MiB of memory and about 100 ms."""
PARAMETERS = f"scrypt:{COST}:{BLOCK_BYTES}:{LANES}"
"""The beginning of the stored line; a line that begins otherwise is not the hash of a passphrase."""
SALT_BYTES, HASH_BYTES = 16, 32
MEMORY_BYTES = 64 * 1024 * 1024
MIN_CHARS, MAX_CHARS = 8, 1_000


class Passphrase(msgspec.Struct, frozen=True):
    """The stored hash of a passphrase."""

    salt: bytes
    hash: bytes

    @classmethod
    def parse(cls, data: bytes) -> "Passphrase | None":
        """Return the hash that the stored line holds; None if the data is not such a line."""
        try:
            parameters, salt, derived = data.decode("ascii").strip().rsplit(":", 2)
            value = cls(bytes.fromhex(salt), bytes.fromhex(derived))
        except ValueError:
            return None
        fits = len(value.salt) == SALT_BYTES and len(value.hash) == HASH_BYTES
        return value if fits and parameters == PARAMETERS else None

    def matches(self, text: str) -> bool:
        """Return whether the text is the passphrase. Slow on purpose; call it in a thread."""
        return hmac.compare_digest(_derive(text, self.salt), self.hash)


class InboxPassphrase:
    """The passphrase of one inbox, which asks for it when one is stored, or when the settings demand one."""

    def __init__(self, settings: Settings, secrets: SecretStore) -> None:
        self._secrets = secrets
        self._is_wanted = settings.passphrase_file is not None
        # A file counts only while a setting names it.
        self._is_possible = self._is_wanted or settings.store.path is None

    async def is_asked(self) -> bool:
        """Return whether a person needs a passphrase in addition to a code. This needs no sealing key."""
        return self._is_wanted or (self._is_possible and await self._secrets.version(PASSPHRASE) is not None)

    async def read(self) -> Passphrase | None:
        """Return the stored passphrase; None if nobody is asked for one.

        Raises:
            UsageError: a passphrase is asked for, but no hash of one is stored, so nobody can log in.
            StoreError: the stored line cannot be read.
        """
        data = await self._secrets.read(PASSPHRASE) if self._is_possible else None
        if data is None and not self._is_wanted:
            return None
        passphrase = None if data is None else Passphrase.parse(data)
        if passphrase is None:
            why = "does not exist" if data is None else "does not hold the hash of a passphrase"
            location = self._secrets.locate(PASSPHRASE)
            raise UsageError(f"{location} {why}; `planwarden inbox --set-passphrase` writes it")
        return passphrase

    async def replace(self, text: str) -> None:
        """Store the hash of `text` in place of any earlier hash.

        Raises:
            UsageError: the passphrase is too short or too long.
            StoreError: the hash cannot be stored.
        """
        if not MIN_CHARS <= len(text) <= MAX_CHARS:
            raise UsageError(f"a passphrase has {MIN_CHARS} to {MAX_CHARS} characters")
        salt = token_bytes(SALT_BYTES)
        derived = await anyio.to_thread.run_sync(_derive, text, salt)
        line = f"{PARAMETERS}:{salt.hex()}:{derived.hex()}\n"
        await self._secrets.replace(PASSPHRASE, line.encode())

    async def forget(self) -> bool:
        """Delete the stored hash, so that nobody is asked for a passphrase. Return False if there was none.

        Raises:
            UsageError: the settings demand a passphrase.
        """
        if self._is_wanted:
            raise UsageError("planwarden.toml wants a passphrase; remove passphrase_file under [inbox] first")
        return self._is_possible and await self._secrets.delete(PASSPHRASE)


def _derive(text: str, salt: bytes) -> bytes:
    # Normalize the text, because another keyboard may produce the same passphrase in another form of Unicode.
    data = unicodedata.normalize("NFKC", text).encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=COST, r=BLOCK_BYTES, p=LANES, maxmem=MEMORY_BYTES, dklen=HASH_BYTES)
