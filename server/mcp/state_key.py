"""The key that seals what a client carries between two calls: one per home directory, shared by its processes.

A key that died with its process would make every question a client still holds unanswerable after a restart.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from planwarden.agent.common.errors import StoreError

FILE = "request-state.key"
KEY_BYTES = 32


def load_request_state_key(home: Path) -> bytes:
    """The key of this home directory, made by whichever process asks first; mode 0600.

    Raises:
        StoreError: it can be neither read nor written, or is not a key.
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
    """Write the whole key beside its place and link it there: readers never see half, and the first writer wins."""
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
