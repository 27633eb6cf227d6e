"""How long ago something was, as the terminal says it."""

from datetime import UTC, datetime


def format_age(then: float, now: float) -> str:
    """Returns how long ago `then` was, in the largest unit that fits, or its date when that is long ago."""
    seconds = max(0, int(now - then))
    for size_s, unit, limit in ((1, "s", 60), (60, "min", 60), (3600, "h", 48), (86_400, "d", 60)):
        if seconds < size_s * limit:
            return f"{seconds // size_s} {unit} ago"
    return f"on {datetime.fromtimestamp(then, UTC):%Y-%m-%d}"
