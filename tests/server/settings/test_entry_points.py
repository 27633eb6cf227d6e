"""Installed packages bring tools."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from planwarden.server.settings.catalogue import build_registry
from planwarden.server.settings.configuration import Settings

TOOLS = """
import planwarden

@planwarden.tool(risk="read")
def price(item: str) -> int:
    return 5
"""


def test_the_tools_of_an_installed_package_are_in_the_catalogue_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text("[planwarden.tools]\nshop = shop_tools\n", encoding="utf-8")
    (tmp_path / "shop_tools.py").write_text(TOOLS, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    # Tests share what was found before.
    monkeypatch.setattr("planwarden.server.settings.catalogue.entry_points", entry_points)
    definition = build_registry(Settings(home=tmp_path)).get("price")
    assert definition is not None and definition.source == "shop"
