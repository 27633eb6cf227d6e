"""Ids: 128 random bits as 32 lower-case hexadecimal digits; people can type them, and none starts with a dash."""

from secrets import token_hex

BYTES = 16


class RandomIds:
    """Independent random ids: knowing some of them does not help to guess others."""

    def new(self) -> str:
        return token_hex(BYTES)
