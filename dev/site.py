"""The documentation as a site: `docs/` and the few pages beside it, staged in `build/docs` and built from there.

`python -m dev.site` (a part of `make docs`) builds into `dist/docs`, and fails on a broken link or anchor.
The pages are written for GitHub; staging changes what the site's Markdown reads differently.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from tests.support.paths import ROOT

STAGE = ROOT / "build" / "docs"
BUILT = ROOT / "dist" / "docs"
BESIDE: Mapping[str, str] = {
    "benchmarks/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}
"""Maps a page outside of `docs/` to its place on the site. The README is the front page."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_FETCHED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?https?:[^>]*>|<link\b[^>]*\bhref=\"?https?:[^>]*>")
_CODE = re.compile(r"`[^`\n]+`")


class BrokenLink(Exception):
    """A page links to a file that is not there."""


def sources() -> dict[str, Path]:
    """Returns every page of the site by its place on it."""
    docs = ROOT / "docs"
    found = {page.relative_to(docs).as_posix(): page for page in sorted(docs.rglob("*.md"))}
    found.update({place: ROOT / page for page, place in BESIDE.items()})
    return found


def stage_page(text: str, source: Path, place: str) -> str:
    """Returns the page for the site's Markdown, with its links between files as they are on the site.

    Raises:
        BrokenLink: a file that is linked to does not exist.
    """
    parts = _FENCE.split(text)
    return "".join(part if index % 2 else _prose(part, source, place) for index, part in enumerate(parts))


def _prose(text: str, source: Path, place: str) -> str:
    # A bar in code within a table is escaped on GitHub, and must not be here.
    text = _CODE.sub(lambda found: found[0].replace("\\|", "|"), text)
    return LINK.sub(lambda found: _link(found[1], found[2], found[3], source, place), text)


def _link(mark: str, label: str, target: str, source: Path, place: str) -> str:
    label = LINK.sub(lambda inner: _link(inner[1], inner[2], inner[3], source, place), label)
    path, hash_sign, anchor = target.partition("#")
    if "://" in target or not path:
        return f"{mark}[{label}]({target})"
    file = (source.parent / path).resolve()
    if not file.exists():
        raise BrokenLink(f"{source.relative_to(ROOT)} links to {target!r}, which does not exist")
    inside = file.relative_to(ROOT).as_posix()
    where = inside.removeprefix("docs/") if inside.startswith("docs/") else BESIDE.get(inside)
    if where is None:
        # A file of the repository that is not a page of the site: keep its name, drop the link.
        return label
    return f"{mark}[{label}]({_from(place, where)}{hash_sign}{anchor})"


def _from(place: str, where: str) -> str:
    return PurePosixPath(*[".."] * place.count("/"), where).as_posix()


def stage(folder: Path = STAGE) -> None:
    """Fills the folder with everything that the site is built from."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for place, source in sources().items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(stage_page(source.read_text(encoding="utf-8"), source, place), encoding="utf-8")


def find_remote_fetches(folder: Path = BUILT) -> list[str]:
    """Returns what a browser would fetch from elsewhere to show the pages; it should be nothing."""
    found: list[str] = []
    for page in sorted(folder.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        found.extend(f"{page.relative_to(folder)}: {tag}" for tag in _FETCHED.findall(text))
    return found


def main() -> int:
    try:
        stage()
    except BrokenLink as error:
        print(error, file=sys.stderr)
        return 1
    shutil.rmtree(BUILT, ignore_errors=True)
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--clean", "--strict"]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == 0 and (elsewhere := find_remote_fetches()):
        print("pages would fetch from elsewhere:", *elsewhere, sep="\n", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
