"""Which processes a stage of the campaign has: at the beginning, after a mishap, and when everything has to settle."""

import random
import signal

from tests.harness.process import Patience
from tests.harness.stage import PAGES, Cast, Kind, Stage

PATIENCE_OF_PLANTS: dict[str, Patience] = {
    "no-fence": "hasty",
    "shared-no-fence": "hasty",
    "shared-no-death": "product",
}
"""With which patience a planted bug shows."""
MAX_PROCESSES = 4


def draw_cast(chance: random.Random, plant: str | None, *, is_shared: bool) -> Cast:
    """Return two to four processes; on a shared database one or two servers, and two or three workers."""
    drawn = chance.random()
    patience: Patience = "hasty" if drawn < 0.5 else "usual"
    if is_shared and drawn < 0.3:
        patience = "product"
    if plant is not None:
        patience = PATIENCE_OF_PLANTS.get(plant, "usual")
    if is_shared:
        return Cast((chance.choice(PAGES), "worker", "worker", chance.choice((*PAGES, "worker"))), patience)
    others: tuple[Kind, ...] = ("stdio", "program", "http")
    return Cast(("http", *chance.sample(others, chance.randrange(1, 4))), patience, has_own_disk=True)


def choose_kind(chance: random.Random, victim: Kind, *, is_shared: bool) -> Kind:
    """Return what starts instead of a process of the kind `victim`."""
    if not is_shared:
        return chance.choice(("http", "stdio", "program"))
    return "worker" if victim == "worker" else chance.choice(PAGES)


def list_missing(stage: Stage, chance: random.Random) -> list[Kind]:
    """Return what has to start so that everything can be decided and carried out."""
    if stage.database is not None:
        has_page, has_worker = stage.living("http", "front"), stage.living("worker")
        return [*([] if has_page else [chance.choice(PAGES)]), *([] if has_worker else ["worker"])]
    if not stage.living("http"):
        return ["http"]
    return [] if len(stage.living()) >= 2 else [chance.choice(("stdio", "program"))]


def end_some(stage: Stage) -> None:
    """End so many that no more than `MAX_PROCESSES` are left, of each kind that is needed at least one."""
    ordered = sorted(stage.living(), key=lambda server: server.kind != "http")
    if stage.database is not None:
        pages, workers = stage.living("http", "front"), stage.living("worker")
        ordered = [*pages[:1], *workers[:2], *pages[1:], *workers[2:]]
    for server in ordered[MAX_PROCESSES:]:
        server.process.end(signal.SIGTERM)
