"""The mark of a store that `planwarden move` moved away, or has not finished filling. Such a store must not be used.

The version of a marked store's schema is higher than any real one, so that every planwarden refuses to open it.
"""

import msgspec

MARKED = 1_000_000
"""The version of the schema of a marked store."""
TABLE = "move_mark"
"""The table that holds the mark in its only row."""


class MoveMark(msgspec.Struct, frozen=True):
    """The mark of one of the two stores of a move."""

    move_id: str
    is_source: bool
    """True if this store was moved away; False if it was filled by a move that is not finished."""
    location: str
    """The other store, as a URL without a password."""

    def explain(self, name: str) -> str:
        """Return why nobody may use the store of that name, and what to do."""
        if self.is_source:
            return f"{name} was moved to {self.location}; set PLANWARDEN_STORE to that"
        return (
            f"a move from {self.location} to {name} is under way or interrupted; run `planwarden --store URL move --to "
            "URL` with these two again"
        )
