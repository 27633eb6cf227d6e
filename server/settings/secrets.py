"""Where the secrets of a home are: in files beside a SQLite database, sealed in the store that processes share.

A process that serves or works checks the key before it begins. A command needs the key only when it reads or stores a
secret: `list` and `token` work without, `inbox` and `login` do not.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from planwarden.agent.ports.environment import SecretStore
from planwarden.server.settings.configuration import Settings
from planwarden.storage.opening import open_store
from planwarden.storage.secret_files import SECRET_KEY_VARIABLE, SecretFiles
from planwarden.storage.sql.processes import HasProcesses

PASSPHRASE = "inbox.passphrase"
"""The name of the hash of the inbox's passphrase."""


def find_secrets(settings: Settings, store: object) -> SecretStore:
    """Return the secrets that belong to the open store; in the home where it keeps none."""
    if not isinstance(store, HasProcesses):
        elsewhere = {} if settings.passphrase_file is None else {PASSPHRASE: settings.passphrase_file}
        return SecretFiles(settings.home, elsewhere)
    # Imported here: a home without such a store needs no cryptography.
    from planwarden.storage.sealing import SealedSecrets

    return SealedSecrets(store, settings.environment.get(SECRET_KEY_VARIABLE, ""))


@asynccontextmanager
async def open_secrets(settings: Settings) -> AsyncGenerator[SecretStore]:
    """The secrets of a process that has no open store. Opens one only where they are in it.

    Raises:
        StoreError: that store cannot be opened.
    """
    if settings.store.path is not None:
        yield find_secrets(settings, None)
        return
    async with open_store(settings.store) as store:
        yield find_secrets(settings, store)
