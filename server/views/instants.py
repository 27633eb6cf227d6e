"""Formats moments for people and programs: in UTC, as ISO 8601 or as an age."""

from datetime import UTC, datetime
from typing import Literal

from planwarden.agent.common.errors import count_of

_LAST_S = 253_402_300_799.0
"""The end of the year 9999."""


def to_utc(seconds: float) -> datetime:
    """Return Unix seconds as an aware moment in UTC; numbers outside the years 1970 to 9999 become the nearest moment.

    A damaged row may have any number, and the page or list that shows the row must still work.
    """
    return datetime.fromtimestamp(min(max(0.0, seconds), _LAST_S), UTC)


def format_instant(moment: datetime, timespec: Literal["minutes", "seconds", "milliseconds"] = "seconds") -> str:
    """Return the text of a moment in UTC, such as `2026-11-24T05:00:00Z`."""
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def format_age(seconds: float) -> str:
    """Return how long ago something happened, in the largest unit that fits."""
    for size_s, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size_s:
            number = int(seconds // size_s)
            return f"{count_of(number, unit)} ago"
    return "less than a minute ago"
