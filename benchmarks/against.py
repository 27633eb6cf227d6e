"""This tree against another commit of planwarden: `python -m benchmarks.against TREE`, a checkout with its own `.venv`.

Each tree runs its own `benchmarks.child`, in a process and with a database of its own, and they take turns.
"""

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from platformdirs import user_cache_path

from benchmarks.measure import PLANWARDEN, QUICK, SEQUENTIAL, Child
from benchmarks.side import IN_FLIGHT

HERE = Path(__file__).parent.parent
ROUNDS = 9
MODES = {"sequential": SEQUENTIAL * QUICK // 2, "concurrent": IN_FLIGHT * QUICK}


def main() -> None:
    """Print the median time of an execution in each tree, and the ratio of this one's to the other's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", type=Path, help="the other checkout, with `make .venv/.ready` done in it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns that each tree gets")
    chosen = parser.parse_args()
    cache = user_cache_path("planwarden")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="bench-") as folder:
        other, here = _alternate((chosen.tree.resolve(), HERE), Path(folder), chosen.rounds)
    for mode in MODES:
        before, now = statistics.median(other[mode]), statistics.median(here[mode])
        least = min(here[mode]) / min(other[mode])
        print(f"{mode}: {before * 1000:.2f} -> {now * 1000:.2f} ms, {now / before:.2f} x (fastest {least:.2f} x)")


def _alternate(trees: tuple[Path, ...], folder: Path, rounds: int) -> list[dict[str, list[float]]]:
    """Returns the seconds per execution of each tree, by mode."""
    found: list[dict[str, list[float]]] = [{mode: [] for mode in MODES} for _ in trees]
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(PLANWARDEN, folder / str(number), tree)) for number, tree in enumerate(trees)
        ]
        for child in children:
            for mode in MODES:
                child.ask(mode, IN_FLIGHT)
        for turn in range(rounds):
            for number in sorted(range(len(trees)), reverse=bool(turn % 2)):
                for mode, count in MODES.items():
                    found[number][mode].append(children[number].ask(mode, count)["seconds"] / count)
    return found


if __name__ == "__main__":
    main()
