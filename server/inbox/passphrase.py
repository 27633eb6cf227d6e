"""The optional passphrase of the inbox: a secret that a person needs in addition to a one-time code.

The file holds one line, `scrypt:N:R:P:SALT:HASH` with salt and hash in hex (https://www.rfc-editor.org/rfc/rfc7914).
"""

import hashlib
import hmac
import os
import secrets
import unicodedata
from pathlib import Path

import msgspec

from planwarden.agent.common.errors import UsageError

COST, BLOCK_BYTES, LANES = 2**15, 8, 1
"""Each guess costs 32 MiB of memory and about 100 ms."""
MAX_COST, MAX_BLOCK_BYTES, MAX_LANES = 2**20, 32, 16
MEMORY_BYTES = 64 * 1024 * 1024
MIN_CHARS, MAX_CHARS = 8, 1_000


class Passphrase(msgspec.Struct, frozen=True):
    """The stored hash of a passphrase, with its scrypt parameters."""

    cost: int
    block: int
    lanes: int
    salt: bytes
    hash: bytes

    @classmethod
    def read(cls, path: Path) -> "Passphrase":
        """Read the file; raises `UsageError` if it cannot be read or holds no hash, and then nobody can log in."""
        try:
            name, cost, block, lanes, salt, digest = path.read_text(encoding="ascii").strip().split(":")
            made = cls(int(cost), int(block), int(lanes), bytes.fromhex(salt), bytes.fromhex(digest))
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
        """Whether the text is the passphrase. Slow on purpose; call it in a thread."""
        derived = _derive(text, self.salt, self.cost, self.block, self.lanes, len(self.hash))
        return hmac.compare_digest(derived, self.hash)


def write_passphrase(path: Path, text: str) -> None:
    """Write the hash of `text` to a file of mode 0600; replaces an existing file.

    Raises:
        UsageError: the passphrase is too short, or the file cannot be written.
    """
    if not MIN_CHARS <= len(text) <= MAX_CHARS:
        raise UsageError(f"a passphrase has {MIN_CHARS} to {MAX_CHARS} characters")
    salt = secrets.token_bytes(16)
    derived = _derive(text, salt, COST, BLOCK_BYTES, LANES, 32)
    line = f"scrypt:{COST}:{BLOCK_BYTES}:{LANES}:{salt.hex()}:{derived.hex()}\n"
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(line)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write the passphrase file {str(path)!r}: {error.strerror}") from error


def _derive(text: str, salt: bytes, cost: int, block: int, lanes: int, length: int) -> bytes:
    # Unicode normalization, because another keyboard may produce the same passphrase in another form.
    data = unicodedata.normalize("NFKC", text).encode("utf-8", "surrogatepass")
    memory = max(MEMORY_BYTES, 256 * cost * block)
    return hashlib.scrypt(data, salt=salt, n=cost, r=block, p=lanes, maxmem=memory, dklen=length)


def _build_invalid_file_error(path: Path) -> UsageError:
    return UsageError(
        f"{str(path)!r} does not hold the hash of a passphrase; `planwarden inbox --set-passphrase` writes it"
    )
