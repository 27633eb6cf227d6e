"""Secrets that the processes of one home share: the key of request states, the inbox's passphrase, logins to servers.

A home on SQLite keeps each in a file of its own (`storage/secret_files.py`). Processes that share a PostgreSQL keep
them there as records, sealed with a key that the database never sees (`storage/sealing.py`). The rest of planwarden
sees only `SecretStore`.
"""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

SECRET_KEY_VARIABLE = "PLANWARDEN_SECRET_KEY"
"""The key that seals secrets in PostgreSQL: 32 bytes in base64, the same for all processes of one store, which do not
serve without it; `planwarden key new-secret` makes one."""
MAX_SECRET_BYTES = 512 * 1024
LOCK_TIMEOUT_S = 45.0
"""How long a process waits for a lock that another one holds."""


class SecretStore(Protocol):
    """Values by name, such as `downstream/mail.login`.

    Laws: a call that returned is durable; readers see a whole value, never half of one; of racing `create` calls one
    stores its value, and all return that value. Every method raises `StoreError` when the medium fails, and
    `UsageError` when this process has not the key that a value needs.
    """

    async def check(self) -> None:
        """Make sure that values can be read and stored here; a process that serves calls this first."""
        ...

    async def read(self, name: str) -> bytes | None:
        """Return the value; None when there is none."""
        ...

    async def create(self, name: str, value: bytes) -> bytes:
        """Store the value unless there is one; returns the stored one."""
        ...

    async def replace(self, name: str, value: bytes) -> None:
        """Store the value, of at most `MAX_SECRET_BYTES`, in place of another or of none."""
        ...

    async def delete(self, name: str) -> bool:
        """Return False when there was no value."""
        ...

    async def version(self, name: str) -> str | None:
        """Return a text that differs after every change; None when there is no value. Needs no key."""
        ...

    def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        """Keep the other processes that lock the name waiting. Not reentrant; ends with a process that is killed.

        Entering raises `StoreError` when another process held the lock for `LOCK_TIMEOUT_S`.
        """
        ...

    def locate(self, name: str) -> str:
        """Return where the value is kept, for messages."""
        ...
