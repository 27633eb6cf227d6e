"""The key that seals the request state which a client carries between two calls: one key for each home directory.

All processes of the home share it, and it outlives them: otherwise a restart would make every question that a client
still holds unanswerable.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from planwarden.agent.common.errors import StoreError

FILE = "request-state.key"
KEY_BYTES = 32


def load_request_state_key(home: Path) -> bytes:
    """The key of this home directory; the first process creates it, with mode 0600.

    Raises:
        StoreError: the file cannot be read or written, or is not a key.
    """
    path = home / FILE
    try:
        if not path.exists():
            _create_key(path)
        text = path.read_text(encoding="ascii").strip()
        key = bytes.fromhex(text)
    except OSError as error:
        raise StoreError(f"cannot use the key {str(path)!r}: {error.strerror}; set PLANWARDEN_HOME") from error
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise StoreError(f"{str(path)!r} is not a key of planwarden; delete it, open forms then have to be asked again")
    return key


def _create_key(path: Path) -> None:
    """Writes the key to a file beside it and links that: readers never see half a key, and the first writer wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
