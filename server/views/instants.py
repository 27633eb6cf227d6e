"""Moments as people and programs read them: in UTC, in ISO 8601."""

from datetime import UTC, datetime
from typing import Literal

_LAST_S = 253_402_300_799.0
"""The end of the year 9999."""


def to_utc(seconds: float) -> datetime:
    """Return Unix seconds as an aware moment in UTC; the nearest one for a number beyond the calendar.

    A damaged row may hold any number, and must not stop the page or the list that shows it.
    """
    return datetime.fromtimestamp(min(max(seconds, 0.0), _LAST_S), UTC)


def format_instant(moment: datetime, timespec: Literal["minutes", "seconds", "milliseconds"] = "seconds") -> str:
    """Return the text of a moment in UTC, such as `2026-11-24T05:00:00Z`."""
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def format_age(seconds: float) -> str:
    """Return how long ago something happened, in the largest unit that fits."""
    for size_s, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size_s:
            number = int(seconds // size_s)
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "less than a minute ago"
