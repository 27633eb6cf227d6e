"""Digests and ids of hexadecimal digits in fewer characters: base64 (RFC 4648, section 4) without its padding.

Any other text stands behind a `=`, with which no base64 begins, so that every text comes back as it was.
"""

from binascii import a2b_base64, b2a_base64

from planwarden.agent.common.errors import StoreError


def packed(text: str) -> str:
    """43 characters for 64 digits, 22 for 32."""
    try:
        held = bytes.fromhex(text)
    except ValueError:
        return f"={text}"
    # Upper-case digits and spaces are hexadecimal to Python, too.
    if not held or held.hex() != text:
        return f"={text}"
    return b2a_base64(held, newline=False).rstrip(b"=").decode()


def unpacked(text: str) -> str:
    """What was packed. Raises `StoreError` for what `packed` does not write."""
    if text.startswith("="):
        return text[1:]
    try:
        return a2b_base64(f"{text}{'=' * (-len(text) % 4)}", strict_mode=True).hex()
    except ValueError as error:
        raise StoreError(f"a stored id or digest is damaged: {text[:80]!r}; restore a backup") from error
