"""Looks into the folders of saved plans, and says which plan each name means.

The home's folder comes first, then `[plans] folders` in their order; the first that has a name keeps it, and what it
hides is said. A file that cannot be used keeps its name too: a slip in the operator's own plan must not let the plan of
a repository run in its place.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from planwarden.agent.common.errors import PlanwardenError, UnknownPlan
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

HOME = "home"
"""The source of the operator's own plans."""
MAX_FILES = 200
"""Plans of one folder."""
MAX_ENTRIES = 2_000
"""Files of any kind that are looked at in one folder."""
MAX_TOTAL_BYTES = 8 * 1024 * 1024
"""Of all plans together: they stay in memory."""
MAX_LISTED = 50
"""Names in a message."""


_Kept = dict[Path, tuple[FileStamp, SavedPlan | PlanFault]]
"""What each file held when it was read last."""


class PlanFolder(msgspec.Struct, frozen=True):
    """One folder of plans."""

    path: Path
    source: str
    """`home`, or the folder as the operator wrote it."""


class HiddenPlan(msgspec.Struct, frozen=True):
    """A plan whose name an earlier folder has."""

    name: str
    path: Path
    by: Path
    """The file that is used instead."""


class PlanCatalogue(msgspec.Struct, frozen=True):
    """What the folders held at one moment."""

    plans: tuple[SavedPlan, ...] = ()
    """By name."""
    faults: tuple[PlanFault, ...] = ()
    """What cannot be used, by path."""
    hidden: tuple[HiddenPlan, ...] = ()

    @property
    def names(self) -> list[str]:
        return [plan.name for plan in self.plans]

    def get(self, name: str) -> SavedPlan | None:
        return next((plan for plan in self.plans if plan.name == name), None)

    def get_fault(self, name: str) -> PlanFault | None:
        """Return why the name has no plan, if a file of that name cannot be used."""
        return next((fault for fault in self.faults if fault.name == name), None)

    def find(self, name: str) -> SavedPlan:
        """Return the plan.

        Raises:
            UnknownPlan: there is none, or its file cannot be used; the details list the plans that there are.
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
            return f"there is no saved plan {quoted}: no folder of plans has one"
        hint = did_you_mean(name, self.names)
        more = f" and {len(self.plans) - MAX_LISTED} more" if len(self.plans) > MAX_LISTED else ""
        return f"there is no saved plan {quoted}{hint}; the plans are {', '.join(self.names[:MAX_LISTED])}{more}"


class PlanReader:
    """Reads folders again and again; a file that did not change is not read again. Blocks while it reads."""

    def __init__(self, folders: Sequence[PlanFolder]) -> None:
        self._folders = tuple(folders)
        self._kept: _Kept = {}

    def read(self) -> PlanCatalogue:
        """Return what the folders hold now. Raises nothing for what is in them."""
        search = _Search(self._kept)
        for folder in self._folders:
            search.look_into(folder)
        self._kept = search.kept
        return PlanCatalogue(
            tuple(sorted(search.plans, key=lambda plan: plan.name)),
            tuple(sorted(search.faults, key=lambda fault: str(fault.path))),
            tuple(search.hidden),
        )


class _Search:
    """One look into all folders."""

    def __init__(self, before: _Kept) -> None:
        self.kept: _Kept = {}
        self.plans: list[SavedPlan] = []
        self.faults: list[PlanFault] = []
        self.hidden: list[HiddenPlan] = []
        self._before = before
        self._owners: dict[str, Path] = {}
        """By name, the file that has it."""
        self._room = MAX_TOTAL_BYTES

    def look_into(self, folder: PlanFolder) -> None:
        files, wrong = _list_files(folder)
        self.faults += wrong
        for name, paths in files.items():
            owner = self._owners.setdefault(name, paths[0])
            if owner is not paths[0]:
                self.hidden += [HiddenPlan(name, path, owner) for path in paths]
                continue
            entry = self._read(name, paths, folder.source)
            if isinstance(entry, SavedPlan):
                self.plans.append(entry)
            else:
                self.faults.append(entry)

    def _read(self, name: str, paths: Sequence[Path], source: str) -> SavedPlan | PlanFault:
        path = paths[0]
        if len(paths) > 1:
            return PlanFault(name, path, f"{path.name} and {paths[1].name} have one name; keep one of them")
        try:
            stamp = stamp_of(path.stat())
        except OSError:
            # Reading it says what is wrong.
            stamp = None
        self._room -= 0 if stamp is None else min(stamp[2], MAX_FILE_BYTES)
        if self._room < 0:
            return PlanFault(name, path, f"all plans together have more than {MAX_TOTAL_BYTES} bytes")
        before = self._before.get(path)
        if before is not None and before[0] == stamp:
            self.kept[path] = before
            return before[1]
        try:
            plan, stamp = read_plan_file(path, source)
        except PlanwardenError as error:
            plan = PlanFault(name, path, error.message)
        if stamp is not None:
            self.kept[path] = (stamp, plan)
        return plan


def _list_files(folder: PlanFolder) -> tuple[dict[str, list[Path]], list[PlanFault]]:
    """Return the files of a folder by the name of their plan, in order, and what cannot be one."""
    files: dict[str, list[Path]] = {}
    faults: list[PlanFault] = []
    try:
        names = sorted(_take_entries(folder.path))
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(folder.path):
            faults.append(PlanFault("", folder.path, "it is not a folder"))
        return files, faults
    except OSError as error:
        return files, [PlanFault("", folder.path, describe_os_error(error))]
    if len(names) > MAX_ENTRIES:
        return files, [PlanFault("", folder.path, f"it holds more than {MAX_ENTRIES} files; keep only plans in it")]
    for entry in names:
        path = folder.path / entry
        if path.suffix in SUFFIXES:
            _add_file(files, faults, path)
        elif path.suffix == ".yml":
            faults.append(PlanFault(path.stem, path, f"plans are called {path.stem}.yaml or {path.stem}.json"))
        elif path.is_dir():
            faults.append(PlanFault("", path, "it is a folder in a folder of plans, which is not searched"))
    return files, faults


def _add_file(files: dict[str, list[Path]], faults: list[PlanFault], path: Path) -> None:
    if not is_plan_name(path.stem):
        reason = f"a plan is called by letters, digits, - and _, at most {MAX_NAME_CHARS} of them"
        faults.append(PlanFault(path.stem, path, reason))
    elif path.stem not in files and len(files) >= MAX_FILES:
        faults.append(PlanFault(path.stem, path, f"the folder has {MAX_FILES} plans already, which is the limit"))
    else:
        files.setdefault(path.stem, []).append(path)


def _take_entries(path: Path) -> Iterator[str]:
    """Yield names in the folder without hidden ones, at most one more than `MAX_ENTRIES`."""
    with os.scandir(path) as entries:
        for number, entry in enumerate(entries):
            if number > MAX_ENTRIES:
                return
            if not entry.name.startswith("."):
                yield entry.name
