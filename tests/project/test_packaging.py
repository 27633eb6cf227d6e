"""The package as people install it: one top-level package, every module and data file in it, light to import."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FOLDERS = ("agent", "server", "storage", "tools")


def test_every_folder_is_linked_into_the_import_package() -> None:
    for name in FOLDERS:
        link = ROOT / "src" / "planwarden" / name
        assert link.is_symlink() and link.resolve() == ROOT / name


def test_nothing_is_imported_under_its_bare_name() -> None:
    code = (
        "import sys, planwarden.server.main, planwarden.storage.sqlite.store;"
        f"print([n for n in sys.modules if n.split('.')[0] in {FOLDERS!r}])"
    )
    assert _python(code) == "[]"


def test_importing_planwarden_imports_neither_mcp_nor_a_provider_nor_an_http_client() -> None:
    heavy = (
        "mcp",
        "httpx2",
        "httpx",
        "trafilatura",
        "rich",
        "anthropic",
        "openai",
        "google",
        "pydantic_ai",
        "starlette",
        "jinja2",
        "uvicorn",
    )
    code = f"import sys, planwarden; print(sorted(set({heavy!r}) & set(sys.modules)))"
    assert _python(code) == "[]"


@pytest.mark.slow
def test_the_wheel_has_one_package_with_every_module_and_data_file(tmp_path: Path) -> None:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed, so the wheel cannot be built")
    built = subprocess.run(
        [uv, "build", "-q", "--wheel", "--out-dir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0 and "hatchling" in built.stderr and "fetch" in built.stderr:
        pytest.skip("the build back end could not be fetched: no package index")
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"planwarden"}
    expected = {
        f"planwarden/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= set(names) and {"planwarden/__init__.py", "planwarden/py.typed"} <= set(names)


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()
