"""Entry points of packages that bring tools are found wherever `importlib.metadata` finds them."""

import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

import pytest

from planwarden.server.settings.entry_points import GROUP, find_entry_points

OURS = f"[{GROUP}]\nshop = shop.tools\n"
OTHERS = "[console_scripts]\nshop = shop:main\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of `sys.path`."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(place: Path, folder: str, text: str) -> None:
    """Makes what a package leaves of itself."""
    (place / folder).mkdir(parents=True)
    (place / folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n", encoding="utf-8")
    (place / folder / "entry_points.txt").write_text(text, encoding="utf-8")


def names() -> list[tuple[str, str]]:
    return [(entry.name, entry.value) for entry in find_entry_points()]


@pytest.mark.parametrize("folder", ["shop-1.dist-info", "shop-1.egg-info", "Shop-1.DIST-INFO"])
def test_an_entry_point_of_our_group_is_found(place: Path, folder: str) -> None:
    install(place, "other-1.dist-info", OTHERS)
    install(place, folder, OTHERS + OURS)
    assert names() == [("shop", "shop.tools")]


def test_an_entry_point_in_an_egg_of_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    egg = tmp_path / "shop-1.egg"
    install(egg, "EGG-INFO", OURS)
    monkeypatch.setattr(sys, "path", [str(egg)])
    assert names() == [("shop", "shop.tools")]


def test_an_entry_point_in_an_archive_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "shop-1.dist-info", OURS)
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("METADATA", "entry_points.txt"):
            file.write(tmp_path / "shop-1.dist-info" / name, f"shop-1.dist-info/{name}")
    monkeypatch.setattr(sys, "path", [str(archive)])
    assert names() == [("shop", "shop.tools")]


def test_an_entry_point_that_only_another_finder_knows_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(place / "elsewhere", "shop-1.dist-info", OURS)

    class Finder(DistributionFinder):
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
            return [Distribution.at(place / "elsewhere" / "shop-1.dist-info")]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert names() == [("shop", "shop.tools")]


def test_places_without_our_group_have_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(place, "other-1.dist-info", OTHERS)
    (place / "bare-1.dist-info").mkdir()
    (place / "file-1.egg-info").write_text("Metadata-Version: 2.1\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(place / "missing"), ""])
    monkeypatch.chdir(place)
    assert names() == []
