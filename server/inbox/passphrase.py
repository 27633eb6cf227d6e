"""The optional passphrase of the inbox: a second thing to know besides holding a one-time code.

The file holds one line, `scrypt:N:R:P:SALT:HASH` with salt and hash in hex (https://www.rfc-editor.org/rfc/rfc7914).
"""

import hashlib
import hmac
import os
import secrets
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from planwarden.agent.common.errors import UsageError

COST, BLOCK_BYTES, LANES = 2**15, 8, 1
"""32 MiB and some 100 ms for each guess."""
MAX_COST, MAX_BLOCK_BYTES, MAX_LANES = 2**20, 32, 16
MEMORY_BYTES = 64 * 1024 * 1024
MIN_CHARS, MAX_CHARS = 8, 1_000


@dataclass(frozen=True, slots=True)
class Passphrase:
    """What a passphrase has to hash to."""

    cost: int
    block: int
    lanes: int
    salt: bytes
    hash: bytes

    @classmethod
    def read(cls, path: Path) -> "Passphrase":
        """Raises `UsageError` when the file cannot be read or does not hold a hash; nobody is let in then."""
        try:
            name, cost, block, lanes, salt, found = path.read_text(encoding="ascii").strip().split(":")
            made = cls(int(cost), int(block), int(lanes), bytes.fromhex(salt), bytes.fromhex(found))
        except OSError as error:
            raise UsageError(
                f"cannot read the passphrase file {str(path)!r}: {error.strerror}; `planwarden inbox "
                "--set-passphrase` writes it"
            ) from error
        except ValueError:
            raise _build_invalid_file_error(path) from None
        fits = 2 <= made.cost <= MAX_COST and 1 <= made.block <= MAX_BLOCK_BYTES and 1 <= made.lanes <= MAX_LANES
        if name != "scrypt" or not fits or len(made.salt) < 8 or len(made.hash) < 16:
            raise _build_invalid_file_error(path)
        return made

    def matches(self, text: str) -> bool:
        """Slow on purpose; run it in a thread."""
        return hmac.compare_digest(self._derived(text), self.hash)

    def _derived(self, text: str) -> bytes:
        return _scrypt(text, self.salt, self.cost, self.block, self.lanes, len(self.hash))


def write_passphrase(path: Path, text: str) -> None:
    """Write the hash of `text` to a file of mode 0600, replacing what was there.

    Raises:
        UsageError: the passphrase is too short, or the file cannot be written.
    """
    if not MIN_CHARS <= len(text) <= MAX_CHARS:
        raise UsageError(f"a passphrase has {MIN_CHARS} to {MAX_CHARS} characters")
    salt = secrets.token_bytes(16)
    found = _scrypt(text, salt, COST, BLOCK_BYTES, LANES, 32)
    line = f"scrypt:{COST}:{BLOCK_BYTES}:{LANES}:{salt.hex()}:{found.hex()}\n"
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(line)
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write the passphrase file {str(path)!r}: {error.strerror}") from error


def _scrypt(text: str, salt: bytes, cost: int, block: int, lanes: int, length: int) -> bytes:
    # One form of each character, so that the same passphrase typed on another keyboard is the same.
    data = unicodedata.normalize("NFKC", text).encode("utf-8", "surrogatepass")
    memory = max(MEMORY_BYTES, 256 * cost * block)
    return hashlib.scrypt(data, salt=salt, n=cost, r=block, p=lanes, maxmem=memory, dklen=length)


def _build_invalid_file_error(path: Path) -> UsageError:
    return UsageError(
        f"{str(path)!r} does not hold the hash of a passphrase; `planwarden inbox --set-passphrase` writes it"
    )
