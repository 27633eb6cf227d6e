"""Where the secrets of a home are: in files beside a SQLite database, or sealed in a store that processes share.

A server or worker checks the key of a shared store before it begins. A command needs the key only when it reads or
stores a secret: `list` and `token` work without it, `inbox` and `login` do not.
"""

import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from planwarden.agent.common.errors import StoreError
from planwarden.agent.ports.environment import SecretStore
from planwarden.server.settings.configuration import Settings
from planwarden.storage.opening import open_store
from planwarden.storage.secret_files import SECRET_KEY_VARIABLE, SecretFiles
from planwarden.storage.sql.processes import HasProcesses

logger = logging.getLogger(__name__)

PASSPHRASE = "inbox.passphrase"
"""The name under which the hash of the inbox's passphrase is stored."""
STATE_KEY = "request-state.key"
"""The secret that seals what a client carries between two calls. All present and later processes of a home share it:
otherwise a client could not answer a question after a restart, or in a call that reaches another process."""
KEY_BYTES = 32


def find_secrets(settings: Settings, store: object) -> SecretStore:
    """Return the secrets that belong to the open store, or those in the home if the store keeps none."""
    if not isinstance(store, HasProcesses):
        elsewhere = {} if settings.passphrase_file is None else {PASSPHRASE: settings.passphrase_file}
        return SecretFiles(settings.home, elsewhere)
    # Imported here, because a home without a shared store needs no cryptography.
    from planwarden.storage.sealing import SealedSecrets

    return SealedSecrets(store, settings.environment.get(SECRET_KEY_VARIABLE, ""))


@asynccontextmanager
async def open_secrets(settings: Settings) -> AsyncGenerator[SecretStore]:
    """Yield the secrets for a process that has no open store; open the store only if the secrets are in it.

    Raises:
        StoreError: the store cannot be opened.
    """
    if settings.store.path is not None:
        yield find_secrets(settings, None)
        return
    async with open_store(settings.store) as store:
        yield find_secrets(settings, store)


async def load_request_state_key(store: SecretStore) -> bytes:
    """Return the key that seals request states; the first process of the home makes the key.

    Raises:
        StoreError: the key cannot be read or stored, or what is stored is not a key.
        UsageError: this process does not have the key that seals the store.
    """
    text = await store.read(STATE_KEY) or await store.create(STATE_KEY, f"{secrets.token_hex(KEY_BYTES)}\n".encode())
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise StoreError(
            f"{store.locate(STATE_KEY)} is not a planwarden key; delete it; open forms then ask their question again"
        )
    return key


async def find_request_state_key(settings: Settings, store: SecretStore) -> bytes | None:
    """Return the key as `load_request_state_key` does. With SQLite, log a `StoreError` and return None: a restart then
    repeats the questions in open forms. If the home itself is unusable, later calls report it.
    """
    try:
        return await load_request_state_key(store)
    except StoreError as error:
        if settings.store.path is None:
            raise
        logger.error("%s", error.message)
        return None
