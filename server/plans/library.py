"""The saved plans of a process: what the folders hold, looked at again when somebody asks and some time has passed.

Files are read on another thread, so a slow disk or a large file never holds the event loop.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio.to_thread

from planwarden.agent.common.struct import copy_fields
from planwarden.server.plans.folders import HOME, PlanCatalogue, PlanFolder, PlanReader
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.views.listing import SavedPlanLine

FRESH_S = 2.0
"""How long a list of plans may be old. What runs is always looked at again."""


class PlanLibrary:
    """The folders of one home and what they held at the last look."""

    def __init__(self, folders: Sequence[PlanFolder], clock: Callable[[], float] = time.monotonic) -> None:
        self.folders = tuple(folders)
        self._reader = PlanReader(self.folders)
        self._clock = clock
        self._lock = threading.Lock()
        self._known: tuple[float, PlanCatalogue] | None = None

    async def list(self) -> PlanCatalogue:
        """Return what the folders hold, or held at most `FRESH_S` ago."""
        if self._known is not None and self._clock() - self._known[0] < FRESH_S:
            return self._known[1]
        return await self.look()

    async def look(self) -> PlanCatalogue:
        """Return what the folders hold now."""
        return await anyio.to_thread.run_sync(self.look_now)

    def look_now(self) -> PlanCatalogue:
        """As `look`, for programs without an event loop. Who comes while another one looks takes what that one sees."""
        asked_at = self._clock()
        with self._lock:
            if self._known is None or self._known[0] <= asked_at:
                began = self._clock()
                self._known = (began, self._reader.read())
            return self._known[1]


class SavedPlans:
    """The saved plans of one service; none without a library."""

    def __init__(self, library: PlanLibrary | None) -> None:
        self._library = library

    async def find(self, name: str) -> SavedPlan:
        """Return the plan as its file is now. Raises `UnknownPlan`."""
        return (await self.look()).find(name)

    async def read_versions(self) -> dict[str, str] | None:
        """Return the versions of the usable plans by name; None without a library, as nothing is known then."""
        return None if self._library is None else {plan.name: plan.digest for plan in (await self.look()).plans}

    async def list(self) -> tuple[SavedPlanLine, ...]:
        """Return the usable plans by name."""
        plans = (await self.look()).plans
        return tuple(copy_fields(SavedPlanLine, plan, version=plan.digest) for plan in plans)

    async def look(self) -> PlanCatalogue:
        """Return what the folders hold now."""
        return PlanCatalogue() if self._library is None else await self._library.look()


def build_library(home_folder: Path, folders: Sequence[tuple[str, Path]]) -> PlanLibrary:
    """Return the library of the home's folder and of further ones, each as the operator wrote it and where it is."""
    folder_sources = {home_folder: HOME}
    for name, path in folders:
        folder_sources.setdefault(path, name)
    return PlanLibrary([PlanFolder(path, source) for path, source in folder_sources.items()])
