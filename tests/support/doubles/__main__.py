"""`python -m tests.support.doubles WIRE MANNER [PLAN.json]` serves one double and prints variables that select it."""

import json
import sys
from pathlib import Path

import anyio

from tests.support.doubles.manners import MANNERS
from tests.support.doubles.server import WIRES, serve_double


async def main(wire: str, manner: str, plan: str | None) -> None:
    planned = json.loads(Path(plan).read_text(encoding="utf-8")) if plan else None  # noqa: ASYNC240
    async with serve_double(wire, MANNERS[manner], plan=planned) as double:
        for name, value in {"PLANWARDEN_MODEL": double.wire.setting, **double.environment}.items():
            print(f"export {name}={value}", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    given = sys.argv[1:]
    if not 2 <= len(given) <= 3 or given[0] not in WIRES or given[1] not in MANNERS:
        sys.exit(
            "usage: python -m tests.support.doubles WIRE MANNER [PLAN.json]\n"
            f"wires: {', '.join(WIRES)}\nmanners: {', '.join(MANNERS)}"
        )
    try:
        anyio.run(main, given[0], given[1], given[2] if len(given) == 3 else None)
    except KeyboardInterrupt:
        sys.exit(0)
