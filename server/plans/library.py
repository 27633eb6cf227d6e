"""The saved plans of a process: what the folders hold, and which plan each name means.

The home's folder comes first, then `[plans] folders` in their order. If several folders have a plan of the same name,
the first folder's plan is used; the others are listed as hidden. Even an unusable file hides plans of the same name in
later folders: after a slip in the operator's own plan, a repository's plan must not run instead.

A list of the plans may be up to `FRESH_S` seconds old; a single plan is always looked up anew. Files are read on
another thread, so a slow disk or a large file never holds up the event loop.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

import anyio.to_thread
import msgspec

from planwarden.agent.common.errors import PlanwardenError, UnknownPlan
from planwarden.agent.common.struct import copy_fields
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.server.plans.plan_file import (
    MAX_FILE_BYTES,
    MAX_NAME_CHARS,
    SUFFIXES,
    FileStamp,
    PlanFault,
    SavedPlan,
    describe_os_error,
    is_plan_name,
    read_plan_file,
    stamp_of,
)
from planwarden.server.views.listing import SavedPlanLine

HOME = "home"
"""The source of the operator's own plans."""
MAX_FILES = 200
"""The most plans that one folder may hold."""
MAX_ENTRIES = 2_000
"""The most entries of any kind that one folder may hold."""
MAX_TOTAL_BYTES = 8 * 1024 * 1024
"""The most bytes of all plan files together, because the plans stay in memory."""
MAX_LISTED = 50
"""The most names in one message."""
FRESH_S = 2.0
"""The age, in seconds, that a list of plans may reach. A plan is always looked up anew before it runs."""

_FileContents = dict[Path, tuple[FileStamp, SavedPlan | PlanFault]]
"""What each file held when it was last read; an unchanged file is not read again."""


class HiddenPlan(msgspec.Struct, frozen=True):
    """A plan that is not used, because an earlier folder has a plan of that name."""

    name: str
    path: Path
    by: Path
    """The file that is used instead."""


class PlanCatalogue(msgspec.Struct, frozen=True):
    """What the folders held at one moment."""

    plans: tuple[SavedPlan, ...] = ()
    """The usable plans, sorted by name."""
    faults: tuple[PlanFault, ...] = ()
    """The files and folders that cannot be used, sorted by path."""
    hidden: tuple[HiddenPlan, ...] = ()

    @property
    def names(self) -> list[str]:
        return [plan.name for plan in self.plans]

    def get(self, name: str) -> SavedPlan | None:
        return next((plan for plan in self.plans if plan.name == name), None)

    def get_fault(self, name: str) -> PlanFault | None:
        """Return why the file of this name cannot be used; None if it can, or if the file does not exist."""
        return next((fault for fault in self.faults if fault.name == name), None)

    def find(self, name: str) -> SavedPlan:
        """Return the plan of this name.

        Raises:
            UnknownPlan: there is no such plan, or its file cannot be used; the details list up to `MAX_LISTED` plans.
        """
        entry = self.get(name)
        if entry is not None:
            return entry
        raise UnknownPlan(self._describe_missing(name), details={"plans": [*self.names[:MAX_LISTED]]})

    def _describe_missing(self, name: str) -> str:
        quoted = repr(name[:MAX_NAME_CHARS])
        if self.get_fault(name) is not None:
            return f"the file of the saved plan {quoted} cannot be used; `planwarden doctor` says why"
        if not self.plans:
            return f"there is no saved plan {quoted}: none is saved; `planwarden plans` says where they belong"
        hint = did_you_mean(name, self.names)
        more = f" and {len(self.plans) - MAX_LISTED} more" if len(self.plans) > MAX_LISTED else ""
        return f"there is no saved plan {quoted}{hint}; the plans are {', '.join(self.names[:MAX_LISTED])}{more}"


class PlanLibrary:
    """The folders of one home and what they held at the last look."""

    def __init__(self, folders: Mapping[Path, str]) -> None:
        """`folders` are in the order in which names are looked up, each with its source."""
        self.folders = dict(folders)
        self._contents: _FileContents = {}
        self._lock = threading.Lock()
        self._last_look: tuple[float, PlanCatalogue] | None = None

    async def list(self) -> PlanCatalogue:
        """Return what the folders hold, or held at most `FRESH_S` ago."""
        if self._last_look is not None and time.monotonic() - self._last_look[0] < FRESH_S:
            return self._last_look[1]
        return await self.look()

    async def look(self) -> PlanCatalogue:
        """Return what the folders hold now."""
        return await anyio.to_thread.run_sync(self.look_now)

    def look_now(self) -> PlanCatalogue:
        """Return what the folders hold now; needs no event loop. Callers that wait at the same time share one look."""
        asked_at = time.monotonic()
        with self._lock:
            if self._last_look is None or self._last_look[0] <= asked_at:
                began, search = time.monotonic(), _Search(self._contents)
                for folder, source in self.folders.items():
                    search.look_into(folder, source)
                self._contents = search.contents
                self._last_look = began, search.build_catalogue()
            return self._last_look[1]

    async def find(self, name: str) -> SavedPlan:
        """Return the plan as its file is now. Raises `UnknownPlan`."""
        return (await self.look()).find(name)

    async def list_lines(self) -> tuple[SavedPlanLine, ...]:
        """Return the usable plans that the folders hold now, sorted by name."""
        return tuple(copy_fields(SavedPlanLine, plan, version=plan.digest) for plan in (await self.look()).plans)


def build_library(home_folder: Path, folders: Sequence[tuple[str, Path]]) -> PlanLibrary:
    """Return the library of the home's folder and of `folders`, each given as the operator wrote it and as a path."""
    sources = {home_folder: HOME}
    for name, path in folders:
        sources.setdefault(path, name)
    return PlanLibrary(sources)


class _Search:
    def __init__(self, before: _FileContents) -> None:
        self.contents: _FileContents = {}
        self._before = before
        self._plans: list[SavedPlan] = []
        self._faults: list[PlanFault] = []
        self._hidden: list[HiddenPlan] = []
        self._owners: dict[str, Path] = {}
        """By plan name: the first file for the name."""
        self._bytes_left = MAX_TOTAL_BYTES

    def build_catalogue(self) -> PlanCatalogue:
        return PlanCatalogue(
            tuple(sorted(self._plans, key=lambda plan: plan.name)),
            tuple(sorted(self._faults, key=lambda fault: str(fault.path))),
            tuple(self._hidden),
        )

    def look_into(self, folder: Path, source: str) -> None:
        files, faults = _list_files(folder)
        self._faults += faults
        for name, paths in files.items():
            owner = self._owners.setdefault(name, paths[0])
            if owner is not paths[0]:
                self._hidden += [HiddenPlan(name, path, owner) for path in paths]
                continue
            entry = self._read(name, paths, source)
            if isinstance(entry, SavedPlan):
                self._plans.append(entry)
            else:
                self._faults.append(entry)

    def _read(self, name: str, paths: Sequence[Path], source: str) -> SavedPlan | PlanFault:
        path = paths[0]
        if len(paths) > 1:
            return PlanFault(name, path, f"{path.name} and {paths[1].name} have one name; keep one of them")
        try:
            stamp = stamp_of(path.stat())
        except OSError:
            # `read_plan_file`, below, fails too and says what is wrong.
            stamp = None
        self._bytes_left -= 0 if stamp is None else min(stamp[2], MAX_FILE_BYTES)
        if self._bytes_left < 0:
            return PlanFault(name, path, f"all plans together have more than {MAX_TOTAL_BYTES} bytes")
        before = self._before.get(path)
        if before is not None and before[0] == stamp:
            self.contents[path] = before
            return before[1]
        try:
            plan, stamp = read_plan_file(path, source)
        except PlanwardenError as error:
            plan = PlanFault(name, path, error.message)
        if stamp is not None:
            self.contents[path] = (stamp, plan)
        return plan


def _list_files(folder: Path) -> tuple[dict[str, list[Path]], list[PlanFault]]:
    """Return the files of a folder, sorted and grouped by plan name, and the entries that cannot be plans."""
    files: dict[str, list[Path]] = {}
    faults: list[PlanFault] = []
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, MAX_ENTRIES + 1))
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(folder):
            faults.append(PlanFault("", folder, "it is not a folder"))
        return files, faults
    except OSError as error:
        return files, [PlanFault("", folder, describe_os_error(error))]
    if len(names) > MAX_ENTRIES:
        return files, [PlanFault("", folder, f"it holds more than {MAX_ENTRIES} files; keep only plans in it")]
    for entry in names:
        if entry.startswith("."):
            continue
        path = folder / entry
        if path.suffix in SUFFIXES:
            _add_file(files, faults, path)
        elif path.suffix == ".yml":
            faults.append(PlanFault(path.stem, path, f"plans are called {path.stem}.yaml or {path.stem}.json"))
        elif os.path.isdir(path):
            # Unlike `path.is_dir()`, `os.path.isdir` returns False for an entry that cannot be examined.
            faults.append(PlanFault("", path, "it is a folder in a folder of plans, which is not searched"))
    return files, faults


def _add_file(files: dict[str, list[Path]], faults: list[PlanFault], path: Path) -> None:
    if not is_plan_name(path.stem):
        reason = f"a plan's name has at most {MAX_NAME_CHARS} characters: letters, digits, - and _"
        faults.append(PlanFault(path.stem, path, reason))
    elif path.stem not in files and len(files) >= MAX_FILES:
        faults.append(PlanFault(path.stem, path, f"the folder has {MAX_FILES} plans already, which is the limit"))
    else:
        files.setdefault(path.stem, []).append(path)
