"""The results of all parts that ran here: one JSON object a line, for a round or a batch; and what they come to."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.campaign.batches import BATCHES
from tests.campaign.plants import PLANTS, SHARED_PLANTS

Line = dict[str, Any]
SUMS = ("executions", "effects", "decisions", "reconciles")


def append_results(path: Path, lines: list[Line]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{json.dumps(line)}\n" for line in lines))


def read_results(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summarize(lines: list[Line]) -> str:
    """Rounds, batches and planted bugs, each added up."""
    rounds = [line for line in lines if line.get("plant") is None and "batch" not in line]
    parts = [describe_rounds([line for line in rounds if not line.get("is_shared")])]
    parts.append(f"on PostgreSQL: {describe_rounds([line for line in rounds if line.get('is_shared')])}")
    for name in BATCHES:
        batches = [line for line in lines if line.get("batch") == name]
        broken = sum(len(line["breaches"]) for line in batches)
        parts.append(f"{name}: {sum(line['rounds'] for line in batches)}, {broken} breaches")
    parts += [describe_plant(name, lines) for name in sorted({**PLANTS, **SHARED_PLANTS})]
    return "\n".join(parts)


def describe_rounds(lines: list[Line]) -> str:
    """One paragraph about these rounds."""
    mishaps = Counter(name for line in lines for name in line["mishaps"])
    breaches = Counter(breach.partition(":")[0] for line in lines for breach in line["breaches"])
    counts = " ".join(f"{name}={sum(line[name] for line in lines)}" for name in SUMS)
    return (
        f"rounds={len(lines)} {counts} seconds={sum(line['seconds'] for line in lines):.0f}\n"
        f"  mishaps: {dict(mishaps.most_common())}\n"
        f"  breaches: {dict(breaches.most_common())}"
    )


def describe_plant(name: str, lines: list[Line]) -> str:
    """After how many rounds each search for the planted bug found it."""
    taken, needed = 0, list[int]()
    for line in lines:
        if line.get("plant") == name:
            taken += 1
            if line["breaches"]:
                needed.append(taken)
                taken = 0
    rest = f", and not in {taken} more" if taken else ""
    return f"planted {name}: found {len(needed)} times, after {needed} rounds{rest}"
