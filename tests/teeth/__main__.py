"""`make teeth`: plant one bug after another in a copy of the tree, and say which tests find it."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from tests.support.paths import ROOT
from tests.teeth.witness import JOURNAL

FOLDER = Path(__file__).parent / "patches"
ROOTS = ("agent", "tools", "storage", "server")
_HEAD = re.compile(r"Law: (?P<law>[A-Z].*\.)\nTests: (?P<tests>.+)\n\n(?P<diff>diff --git .*)", re.DOTALL)
_FILE = re.compile(r"^diff --git a/(?P<path>\S+) b/(?P=path)\n", re.MULTILINE)
HANG_S = 120
"""For one test. One that hangs with a bug has found it."""
LIMIT_S, WIDE_LIMIT_S = 400.0, 3_600.0
"""For one run, of the tests that are named and of whole folders."""
MAX_NAMED = 3
PYTHON = Path(".venv", "bin", "python")
State = Literal["found", "NOT FOUND", "does not apply", "breaks the tests"]


@dataclass(frozen=True, slots=True)
class Patch:
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
    hunks = re.split(r"^@@.*\n", part, flags=re.MULTILINE)[1:]
    return ["".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[:1] in (" ", "-")) for hunk in hunks]


def _find_files(tree: Path, texts: Sequence[str]) -> Iterator[str]:
    for path in (path for root in ROOTS for path in sorted((tree / root).rglob("*.*"))):
        content = path.read_text(encoding="utf-8") if path.suffix in (".py", ".sql") else ""
        if all(text in content for text in texts):
            yield str(path.relative_to(tree))


class Run(NamedTuple):
    failed: list[str]
    has_begun: bool
    output: str


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant bugs in a copy of the tree, and see that tests find them.")
    parser.add_argument("names", nargs="*", help="names of patches; all without it")
    parser.add_argument("--part", default="1/1", help="such as 1/4: the first of four parts")
    parser.add_argument("--all", action="store_true", help="run the whole folders of the tests that are named")
    parser.add_argument("--mend", action="store_true", help="name the new file in patches whose code moved")
    given = parser.parse_args()
    try:
        patches = read_patches(given.names)
    except ValueError as error:
        parser.error(str(error))
    if given.mend:
        return _mend(patches)
    number, count = map(int, given.part.split("/"))
    with tempfile.TemporaryDirectory(prefix="planwarden-teeth-") as folder:
        tree = Path(folder) / "tree"
        _copy_tree(tree)
        _make_python(tree)
        finders = {patch.name: _try(patch, tree, is_wide=given.all) for patch in patches[number - 1 :: count]}
        # A test that fails without the bugs has found none of them.
        found = sorted({test for tests in finders.values() for test in tests})
        red = _run(tree, found, is_stopped=False).failed if found else []
    missed = [name for name, tests in finders.items() if not set(tests) - set(red)]
    print(f"{len(finders) - len(missed)} of {len(finders)} planted bugs are found")
    print(*(f"fails without a bug: {test}" for test in red), *(f"NOT FOUND: {name}" for name in missed), sep="\n")
    return int(bool(missed or red))


def _mend(patches: Sequence[Patch]) -> int:
    loose = [patch for patch in patches if apply(patch, ROOT, "--check")]
    left = [patch.name for patch in loose if not mend(patch, ROOT)]
    print(f"mended {len(loose) - len(left)} of {len(loose)} patches; to be planted anew: {', '.join(left) or 'none'}")
    return int(bool(left))


def _copy_tree(tree: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if os.path.lexists(ROOT / name):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)


def _make_python(tree: Path) -> None:
    """Make a Python that imports the copy, in whatever programs the tests start, and else what this Python has."""
    venv.create(tree / PYTHON.parents[1], symlinks=True)
    [own] = (tree / PYTHON.parents[1]).glob("lib/python*/site-packages")
    sites = (path for path in sys.path if Path(path).name == "site-packages")
    lines = [str(tree / "src"), *(f"import site; site.addsitedir({site!r})" for site in sites)]
    (own / "copy.pth").write_text("\n".join(lines) + "\n")


def _try(patch: Patch, tree: Path, *, is_wide: bool) -> Sequence[str]:
    began = time.monotonic()
    state, tests = _plant(patch, tree, is_wide=is_wide)
    named = ", ".join(tests[:MAX_NAMED]) + (f" and {more} more" if (more := len(tests) - MAX_NAMED) > 0 else "")
    print(f"{state:<16}{patch.name:<28}{time.monotonic() - began:>4.0f} s  {patch.law}  [{named}]", flush=True)
    return tests if state == "found" else ()


def _plant(patch: Patch, tree: Path, *, is_wide: bool) -> tuple[State, Sequence[str]]:
    tests: Collection[str] = patch.tests
    if is_wide:
        tests = dict.fromkeys(str(Path(test.partition("::")[0]).parent) for test in patch.tests)
    if fault := _change(patch, tree):
        return "does not apply", [fault]
    try:
        run = _run(tree, tests, is_stopped=not is_wide)
    finally:
        _change(patch, tree, "--reverse")
    if run.failed:
        return "found", run.failed
    # Without a test that began, the bug keeps pytest from collecting them, which proves nothing.
    return ("NOT FOUND", patch.tests) if run.has_begun else ("breaks the tests", [run.output])


def _change(patch: Patch, tree: Path, *options: str) -> str:
    fault = apply(patch, tree, *options)
    for name in patch.files:
        # A patch that keeps a file's size, applied in the second in which it was compiled, would go unnoticed.
        for compiled in (tree / name).parent.glob(f"__pycache__/{Path(name).stem}.*.pyc"):
            compiled.unlink()
    return fault


def _run(tree: Path, tests: Collection[str], *, is_stopped: bool) -> Run:
    journal = tree.parent / "journal"
    journal.write_text("")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(tree / PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.teeth.witness"]
    command += ["-o", f"faulthandler_timeout={HANG_S}"]
    command += ["-x", "-n", "0"] if is_stopped else ["-n", "auto", "--dist", "worksteal"]
    command += ["-m", "not browser", *tests]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env={**environment, JOURNAL: str(journal)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output = b""
    try:
        output, _ = process.communicate(timeout=LIMIT_S if is_stopped else WIDE_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = journal.read_text(encoding="utf-8").splitlines()
    began, failed, ended = (
        [line.removeprefix(word) for line in lines if line.startswith(word)] for word in ("began ", "failed ", "ended ")
    )
    # A test that hangs did not pass.
    failed += [test for test in began if test not in ended]
    return Run(list(dict.fromkeys(failed)), bool(began), output.decode(errors="replace"))


if __name__ == "__main__":
    sys.exit(main())
