"""The key that seals the request state which a client carries between two calls: one key for all processes of a home.

They share it, and it outlives them: otherwise a restart, or a call that reaches another process, would make every
question that a client still holds unanswerable.
"""

import logging
import secrets

from planwarden.agent.common.errors import StoreError
from planwarden.agent.ports.environment import SecretStore
from planwarden.server.settings.configuration import Settings

logger = logging.getLogger(__name__)

NAME = "request-state.key"
KEY_BYTES = 32


async def load_request_state_key(store: SecretStore) -> bytes:
    """Return the key of this home; the first process makes it.

    Raises:
        StoreError: it cannot be read or stored, or is not a key.
        UsageError: this process has not the key that the store is sealed with.
    """
    text = await store.read(NAME) or await store.create(NAME, f"{secrets.token_hex(KEY_BYTES)}\n".encode())
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise StoreError(
            f"{store.locate(NAME)} is not a key of planwarden; delete it, open forms then have to be asked again"
        )
    return key


async def find_request_state_key(settings: Settings, store: SecretStore) -> bytes | None:
    """As `load_request_state_key`. None with SQLite when the home is not usable: then every call says so, or forms that
    are open at a restart are asked again.
    """
    try:
        return await load_request_state_key(store)
    except StoreError as error:
        if settings.store.path is None:
            raise
        logger.error("%s", error.message)
        return None
