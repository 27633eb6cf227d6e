"""The two tools of the demo. The demo copies this file into its home, where `[tools] python` names it."""

import os
import time
from pathlib import Path

import planwarden

REPORTS = Path(__file__).parent / "reports"
DAY_S = 86_400


@planwarden.tool(name="findReports", risk="read", effect="read", capabilities=["files"])
def find_reports(older_than_days: int) -> dict[str, object]:
    """Find reports that have not changed for this many days."""
    limit = time.time() - older_than_days * DAY_S
    reports = sorted(path for path in REPORTS.glob("*.txt") if path.stat().st_mtime < limit)
    return {"names": [path.name for path in reports], "sizes": [path.stat().st_size for path in reports]}


@planwarden.tool(name="deleteReports", risk="dangerous", effect="effect", capabilities=["files"])
def delete_reports(names: list[str]) -> dict[str, object]:
    """Delete reports by name."""
    for name in names:
        if Path(name).name != name:
            raise planwarden.ToolError(f"{name!r} is not the name of a report")
        os.remove(REPORTS / name)
    return {"deleted": len(names)}
