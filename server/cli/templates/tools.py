"""Tools of your own. Plans call them by name; the schema of the arguments comes from the signature.

`planwarden tools` lists them. A running program sees changes to this file only after a restart.
"""

import shutil
from pathlib import Path

import planwarden

FOLDER = Path(__file__).parent


@planwarden.tool(risk="read", effect="read")
def free_space() -> dict[str, object]:
    """Say how much space is free on the disk that holds planwarden's folder."""
    usage = shutil.disk_usage(FOLDER)
    free_gb = round(usage.free / 1e9, 1)
    return {"free_gb": free_gb, "summary": f"{free_gb} GB of {round(usage.total / 1e9, 1)} GB are free"}


# Without `risk` a tool is dangerous: a person decides each call in the inbox or at a terminal.
@planwarden.tool(risk="confirm")
def write_note(text: str) -> dict[str, object]:
    """Add a line to notes.txt in planwarden's folder."""
    path = FOLDER / "notes.txt"
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return {"file": str(path)}
