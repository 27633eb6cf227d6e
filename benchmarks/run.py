"""Everything in one run: `python -m benchmarks.run`, under four minutes on two cores.

The databases go to the user's cache folder, which is on the disk where planwarden keeps its data by default; another
disk is chosen with `--folder`. A temporary folder in memory would make every commit free and every ratio wrong.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from platformdirs import user_cache_path

from benchmarks import measure, report

HERE = Path(__file__).parent
ROUNDS = 7


def main() -> None:
    """Measure, print, and write `results/latest.json` and `README.md`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns that every side gets")
    parser.add_argument("--folder", type=Path, default=user_cache_path("planwarden"), help="where the databases go")
    parser.add_argument("--dry", action="store_true", help="only print; leave the results in the repository alone")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="bench-") as folder:
        summary = _measure(Path(folder), chosen.rounds)
    print(report.terminal(summary))
    if not chosen.dry:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "latest.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        (HERE / "README.md").write_text(report.readme(summary), encoding="utf-8")


def _measure(folder: Path, rounds: int) -> dict[str, object]:
    start = time.perf_counter()

    def say(what: str) -> None:
        print(f"[{time.perf_counter() - start:4.0f} s] {what}", file=sys.stderr)

    facts = report.about(folder)
    say("starting and warming up")
    with measure.children(folder) as started:
        say("counting commits")
        measure.count_commits(started)
        for turn in measure.throughput(started, rounds):
            say(f"round {turn} of {rounds}")
        say("measuring sizes")
        waiting = measure.sizes(started)
    say("resuming in fresh processes")
    cold = measure.cold_resume(folder / measure.PLANWARDEN.variant, waiting)
    say("first answers")
    answer = measure.first_answer(folder)
    say("commands")
    commands = measure.person_commands(folder)
    say("done")
    figures = {child.spec.name: child.figures for child in started}
    return report.summarise(facts, figures, cold, answer, commands)


if __name__ == "__main__":
    main()
