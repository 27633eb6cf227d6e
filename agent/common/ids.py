"""Ids: 128 random bits as 32 lower-case hexadecimal digits; they can be typed, and never start with a dash."""

import secrets


class RandomIds:
    """Derived from nothing, so knowing some says nothing about others."""

    def new(self) -> str:
        return secrets.token_hex(16)
