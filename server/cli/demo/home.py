"""The home of the demo: settings, two tools, a plan, a scripted model and some old files."""

import json
import os
import shutil
import time
from pathlib import Path

from pydantic import JsonValue

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli.demo import tools as demo_tools

YEAR_S = 365 * 86_400
REPORTS = {
    "2021-q4.txt": (18_432, 5),
    "2022-q1.txt": (20_480, 4),
    "2022-q2.txt": (22_528, 4),
    "2026-q3.txt": (4_096, 0),
}
"""Size in bytes and age in years of each report."""
OLD_SIZES = [size for size, years in REPORTS.values() if years]

PLAN: dict[str, JsonValue] = {
    "todoList": [
        {
            "id": "find",
            "description": "Find reports older than a year",
            "toolCalls": [{"toolName": "findReports", "arguments": {"older_than_days": 365}}],
        },
        {
            "id": "total",
            "description": "Add up their sizes",
            "requiredTools": ["calculator"],
            "expectedOutcome": "bytes that deleting them sets free",
        },
        {
            "id": "ask",
            "description": "Ask before anything is deleted",
            "toolCalls": [
                {
                    "toolName": "displayConfirmation",
                    "arguments": {
                        "action": "Delete the reports that are older than a year",
                        "details": {"sets_free_bytes": {"$from": "total", "pointer": "/result"}},
                    },
                }
            ],
            "confirms": ["delete"],
        },
        {
            "id": "delete",
            "description": "Delete them",
            "toolCalls": [
                {"toolName": "deleteReports", "arguments": {"names": {"$from": "find", "pointer": "/names"}}}
            ],
        },
        {
            "id": "check",
            "description": "Look again: nothing old is left",
            "toolCalls": [{"toolName": "findReports", "arguments": {"older_than_days": 365}}],
        },
    ]
}

MODEL: dict[str, JsonValue] = {
    "replies": [
        {
            "when": {"purpose": "step", "stepId": "total"},
            "reply": {"content": "I used the calculator: together they take about 60 KB."},
        },
        {
            "when": {"purpose": "step", "stepId": "total"},
            "reply": {
                "toolCalls": [{"toolName": "calculator", "arguments": {"expression": " + ".join(map(str, OLD_SIZES))}}]
            },
        },
    ]
}
"""First the model only describes the call, as real models do. It makes the call when planwarden insists."""


def fill_home(home: Path, *, is_attended: bool) -> str:
    """Write all files into an empty folder, and return the name of the model.

    Where nobody can be asked, the settings lower the risk of the deletion, because --yes does not suffice otherwise.

    Raises:
        UsageError: the folder is not empty.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise UsageError(f"{str(home)!r} is not empty; the demo writes its own files, so give it an empty folder")
    shutil.copyfile(demo_tools.__file__, home / "tools.py")
    (home / "plan.json").write_text(json.dumps(PLAN, indent=2), encoding="utf-8")
    (home / "model.json").write_text(json.dumps(MODEL, indent=2), encoding="utf-8")
    model = f"scripted:{home / 'model.json'}"
    settings = f'model = {json.dumps(model)}\n\n[tools]\npython = ["tools.py"]\n'
    if not is_attended:
        settings += '\n[tools.deleteReports]\nrisk = "confirm"\n'
    (home / "planwarden.toml").write_text(settings, encoding="utf-8")
    reports = home / "reports"
    reports.mkdir()
    now = time.time()
    for name, (size, years) in REPORTS.items():
        (reports / name).write_bytes(b"." * size)
        os.utime(reports / name, (now, now - years * YEAR_S))
    return model
