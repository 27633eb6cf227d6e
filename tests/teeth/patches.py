"""The patches, and whether they fit the tree."""

import re
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.paths import ROOT

FOLDER = Path(__file__).parent / "patches"
ROOTS = ("agent", "tools", "storage", "server")
_HEAD = re.compile(r"Law: (?P<law>[A-Z].*\.)\nTests: (?P<tests>.+)\n\n(?P<diff>diff --git .*)", re.DOTALL)
_FILE = re.compile(r"^diff --git a/(?P<path>\S+) b/(?P=path)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Patch:
    """One planted bug."""

    path: Path
    law: str
    """The law that it breaks, in a sentence."""
    tests: tuple[str, ...]
    """Files and node ids of tests that have to find it, the quickest first."""
    diff: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it changes, from the root of the tree."""
        return tuple(match["path"] for match in _FILE.finditer(self.diff))


def read_patches(names: Collection[str] = ()) -> list[Patch]:
    """Return the patches with these names, or all, in the order of their names.

    Raises:
        ValueError: one has no such head, or there is none of that name.
    """
    patches = [_read(path) for path in sorted(FOLDER.glob("*.patch"))]
    if unknown := set(names) - {patch.name for patch in patches}:
        raise ValueError(f"there is no patch {', '.join(sorted(unknown))}")
    return [patch for patch in patches if not names or patch.name in names]


def _read(path: Path) -> Patch:
    match = _HEAD.fullmatch(path.read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f"{path.name} does not begin with Law: and Tests:, an empty line, and a diff")
    return Patch(path, match["law"], tuple(match["tests"].split()), match["diff"])


def apply(patch: Patch, tree: Path, *options: str) -> str:
    """Apply the patch in the tree; return what git says against it, nothing when it fits."""
    command = ["git", "apply", *options, "-"]
    ran = subprocess.run(command, input=patch.diff, cwd=tree, capture_output=True, text=True, check=False)
    return ran.stderr.strip()


def find_missing_tests(patch: Patch) -> Iterator[str]:
    """Yield the tests of the patch that are not in the tree."""
    for test in patch.tests:
        name, *parts = test.partition("[")[0].split("::")
        path = ROOT / name
        if not path.exists() or (parts and f"def {parts[-1]}(" not in path.read_text(encoding="utf-8")):
            yield test


def mend(patch: Patch, tree: Path) -> Patch | None:
    """Name in the patch the only files that have the lines which it changes; None where there are none, or several."""
    diff = patch.diff
    for path, part in zip(patch.files, _FILE.split(patch.diff)[2::2], strict=True):
        places = list(_find_files(tree, _list_changed(part)))
        if len(places) != 1:
            return None
        diff = diff.replace(f"a/{path}", f"a/{places[0]}").replace(f"b/{path}", f"b/{places[0]}")
    mended = replace(patch, diff=diff)
    patch.path.write_text(patch.path.read_text(encoding="utf-8").replace(patch.diff, diff), encoding="utf-8")
    return None if apply(mended, tree, "--check") else mended


def _list_changed(part: str) -> list[str]:
    """Return the lines that each hunk of a file wants to find, as one text."""
    hunks = re.split(r"^@@.*\n", part, flags=re.MULTILINE)[1:]
    return ["".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[:1] in (" ", "-")) for hunk in hunks]


def _find_files(tree: Path, texts: Sequence[str]) -> Iterator[str]:
    for path in (path for root in ROOTS for path in sorted((tree / root).rglob("*.*"))):
        content = path.read_text(encoding="utf-8") if path.suffix in (".py", ".sql") else ""
        if all(text in content for text in texts):
            yield str(path.relative_to(tree))
