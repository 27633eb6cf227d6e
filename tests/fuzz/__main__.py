"""`python -m tests.fuzz`: runs parts until the inputs are sent or the time is over, and prints what they came to.

    python -m tests.fuzz [--inputs N] [--seed S] [--seconds T] [--entrance NAME]...

Exit code 1: something is wrong, and was printed.
"""

import argparse
import sys
from functools import partial
from time import monotonic, time

import anyio

from tests.fuzz.part import ENTRANCES, Part, run_part

SECONDS = 540.0
"""A part ends within 10 minutes."""


def main() -> int:
    given = _read_arguments()
    names: list[str] = given.entrance or list(ENTRANCES)
    seed = given.seed if given.seed is not None else int(time())
    began, wrong = monotonic(), 0
    for place, name in enumerate(names):
        left_s = began + given.seconds - monotonic()
        until = monotonic() + left_s / (len(names) - place)
        inputs = given.inputs // len(names) + (place < given.inputs % len(names))
        part = anyio.run(partial(run_part, name, inputs=inputs, seed=seed, until=until))
        wrong += part.findings.total() + part.stalls
        _report(part)
    return 1 if wrong else 0


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=10_000, help="in this part, over all entrances; default 10000")
    parser.add_argument("--seed", type=int, help="default: the time")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after which the part ends; default 540")
    parser.add_argument("--entrance", action="append", choices=list(ENTRANCES), help="only this one; may be repeated")
    return parser.parse_args()


def _report(part: Part) -> None:
    for example in part.examples:
        print(example.encode(errors="backslashreplace").decode())
    if part.stalls:
        print(f"{part.entrance}: the longest stall with", part.slowest.encode("ascii", "replace").decode())
    kinds = " ".join(f"{kind}={count}" for kind, count in part.outcomes.most_common())
    print(
        f"{part.entrance}: seed={part.seed} inputs={part.inputs} findings={part.findings.total()} "
        f"stalls={part.stalls} longest={part.longest_stall_s * 1000:.0f} ms seconds={part.seconds:.0f}: {kinds}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
