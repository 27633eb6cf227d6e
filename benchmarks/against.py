"""This tree against another commit of planwarden: `python -m benchmarks.against TREE`, a checkout with its own `.venv`.

Each tree runs its own `benchmarks.child`, in a process and with a database of its own, and they take turns.
"""

import argparse
import statistics
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import HERE, Child, make_folder

ROUNDS = 9
MODES = {"sequential": 100, "concurrent": 500}


def main() -> None:
    """Print the median time of an execution in each tree, and the ratio of this one's to the other's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", type=Path, help="the other checkout, with `make .venv/.ready` done in it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns that each tree gets")
    options = parser.parse_args()
    trees = (options.tree.resolve(), HERE.parent)
    seconds: list[dict[str, list[float]]] = [{mode: [] for mode in MODES} for _ in trees]
    with make_folder() as folder, ExitStack() as stack:
        children: list[Child] = []
        for number, tree in enumerate(trees):
            (folder / str(number)).mkdir()
            child = Child("planwarden_side", "planwarden", folder / str(number), tree=tree)
            children.append(stack.enter_context(child))
            for mode in MODES:
                child.call(mode, count=100)
        for turn in range(options.rounds):
            for number in sorted(range(len(trees)), reverse=bool(turn % 2)):
                for mode, count in MODES.items():
                    seconds[number][mode].append(children[number].call(mode, count=count)["seconds"] / count)
    other, here = seconds
    for mode in MODES:
        before, now = statistics.median(other[mode]), statistics.median(here[mode])
        least = min(here[mode]) / min(other[mode])
        print(f"{mode}: {before * 1000:.2f} -> {now * 1000:.2f} ms, {now / before:.2f} x (fastest {least:.2f} x)")


if __name__ == "__main__":
    main()
