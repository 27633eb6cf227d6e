"""Ids: 128 random bits as 26 lower-case letters and digits; they can be typed, and never start with a dash."""

import secrets
from base64 import b32encode


class RandomIds:
    """Derived from nothing, so knowing some says nothing about others."""

    def new(self) -> str:
        return b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()
