"""A newer planwarden: a copy of this one whose schema has one more version, and whose logs have one more event."""

import shutil
from pathlib import Path

from tests.support.paths import ROOT

PACKAGE = ROOT / "src" / "planwarden"
MIGRATION = "CREATE TABLE footnotes (text text NOT NULL);\nALTER TABLE executions ADD COLUMN footnote text;\n"
EVENT = 'class Footnote(StoredStruct, tag="FN"):\n    text: str = ""\n\n\n'
CREATED = """\
    has_goal = any(isinstance(event, ev.ExecutionCreated) and event.goal for event in events)
    batch = EventBatch((*events, ev.Footnote()) if has_goal else events, start=start, artifacts=artifacts)
"""
EDITS = {
    "agent/core/events.py": [
        (
            "class CancelRequested(",
            'class Footnote(StoredStruct, tag="FN"):\n    text: str = ""\n\n\nclass CancelRequested(',
        ),
        ("    | StepSkipped\n", "    | StepSkipped\n    | Footnote\n"),
    ],
    "agent/core/state.py": [("    ev.StepSkipped,\n", "    ev.StepSkipped,\n    ev.Footnote,\n")],
    # It notes something whenever an execution is cancelled, and at the start of those with a goal.
    "agent/runtime/commands.py": [
        ("(ev.CancelRequested(reason=reason),)", "(ev.CancelRequested(reason=reason), ev.Footnote())"),
        ("    batch = EventBatch(events, start=start, artifacts=artifacts)\n", CREATED),
    ],
}


def build_newer(folder: Path) -> None:
    """Writes the package `planwarden` into the folder, which belongs in front of `PYTHONPATH`."""
    target = folder / "planwarden"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    migrations = target / "storage" / "postgres" / "migrations"
    (migrations / f"{len(list(migrations.glob('*.sql'))) + 1:04}_footnotes.sql").write_text(MIGRATION)
    for name, edits in EDITS.items():
        path = target / name
        text = path.read_text(encoding="utf-8")
        for old, new in edits:
            assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
