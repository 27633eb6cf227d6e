"""Entry points of packages that bring tools are found wherever `importlib.metadata` finds them."""

import shutil
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

import pytest

from planwarden.server.settings.entry_points import GROUP, find_entry_points

OURS = f"[{GROUP}]\nshop = shop.tools\n"
OTHERS = "[console_scripts]\nshop = shop:main\n"


def install(folder: Path, text: str) -> Path:
    """Makes what a package leaves of itself."""
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(text, encoding="utf-8")
    return folder


def find_in(monkeypatch: pytest.MonkeyPatch, *places: Path | str) -> list[tuple[str, str]]:
    monkeypatch.setattr(sys, "path", [str(place) for place in places])
    return [(entry.name, entry.value) for entry in find_entry_points()]


def test_an_entry_point_of_our_group_is_found_in_folders_eggs_and_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("shop-1.dist-info", "shop-1.egg-info", "Shop-1.DIST-INFO"):
        install(tmp_path / "other-1.dist-info", OTHERS)
        install(tmp_path / folder, OTHERS + OURS)
        assert find_in(monkeypatch, tmp_path) == [("shop", "shop.tools")]
        shutil.rmtree(tmp_path / folder)
        shutil.rmtree(tmp_path / "other-1.dist-info")
    egg = install(tmp_path / "shop-1.egg" / "EGG-INFO", OURS)
    assert find_in(monkeypatch, egg.parent) == [("shop", "shop.tools")]
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in egg.iterdir():
            file.write(path, f"shop-1.dist-info/{path.name}")
    assert find_in(monkeypatch, archive) == [("shop", "shop.tools")]


def test_an_entry_point_that_only_another_finder_knows_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(tmp_path / "elsewhere" / "shop-1.dist-info", OURS)

    class Finder(DistributionFinder):
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
            return [Distribution.at(folder)]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert find_in(monkeypatch, tmp_path) == [("shop", "shop.tools")]


def test_places_without_our_group_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "other-1.dist-info", OTHERS)
    (tmp_path / "bare-1.dist-info").mkdir()
    (tmp_path / "file-1.egg-info").write_text("Metadata-Version: 2.1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert find_in(monkeypatch, tmp_path, tmp_path / "missing", "") == []
