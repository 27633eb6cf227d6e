"""The package as people install it: one top-level package, every module and data file in it, light to import."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import pytest
from dev.manifest import generate_parts, read_manifest
from mcp.client.stdio import StdioServerParameters
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planwarden.server.cli.hosts import find_launch_command
from planwarden.server.mcp.tools.listing import TOOLS
from planwarden.server.settings.configuration import find_home, load_settings
from tests.kit import Client, requirement
from tests.server.mcp.support import approving
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


def test_a_login_to_a_server_imports_no_engine() -> None:
    code = "import sys, planwarden.server.cli.commands.login; print('planwarden.agent.runtime.engine' in sys.modules)"
    assert _python(code) == "False"


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


MCPB = "@anthropic-ai/mcpb@2.1.2"
WITHOUT_NETWORK = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|notarget|E404|[Ff]ailed to fetch")
BUILD_S = 300.0
"""Seconds for a build; the first one fetches what the server needs."""


def _expanded(value: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$\{([^}]+)\}", lambda found: variables.get(found[1], found[0]), value)


def _launch(manifest: dict[str, Any], folder: Path, filled_in: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    defaults = {name: entry["default"] for name, entry in manifest["user_config"].items() if "default" in entry}
    variables = {"__dirname": str(folder)} | {f"user_config.{k}": v for k, v in (defaults | filled_in).items()}
    config = manifest["server"]["mcp_config"]
    command = [_expanded(word, variables) for word in (config["command"], *config["args"])]
    return command, {name: _expanded(text, variables) for name, text in config["env"].items()}


@requirement("bundle:generated")
async def test_the_manifest_lists_what_the_server_offers() -> None:
    manifest, live = read_manifest(), await generate_parts()
    assert len(live["tools"]) == len(TOOLS)
    assert {key: manifest[key] for key in live} == live


def test_the_manifest_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    manifest = read_manifest()
    assert (manifest["name"], manifest["version"]) == (project["name"], project["version"])
    assert manifest["compatibility"]["runtimes"]["python"] == project["requires-python"]
    assert (ROOT / manifest["server"]["entry_point"]).is_file()


def test_a_bundle_with_nothing_filled_in_uses_the_home_and_model_of_every_other_host(tmp_path: Path) -> None:
    _, env = _launch(read_manifest(), tmp_path, {})
    assert not any("${" in text for text in env.values())
    assert load_settings(environment=env).model == "caller"
    assert find_home(None, env) == find_home(None, {})


def test_what_is_filled_in_arrives_and_the_key_is_kept_secret(tmp_path: Path) -> None:
    manifest = read_manifest()
    filled_in = {"home": str(tmp_path / "h"), "model": "anthropic:m", "key": "k"}
    _, env = _launch(manifest, tmp_path, filled_in)
    assert (env["PLANWARDEN_HOME"], env["PLANWARDEN_MODEL"]) == (filled_in["home"], "anthropic:m")
    assert {env["ANTHROPIC_API_KEY"], env["OPENAI_API_KEY"], env["GOOGLE_API_KEY"]} == {"k"}
    assert manifest["user_config"]["key"]["sensitive"] is True


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    npx = shutil.which("npx")
    if npx is None:
        pytest.skip("npx is not installed, so the bundle cannot be packed")
    bundle = tmp_path_factory.mktemp("bundle") / "planwarden.mcpb"
    done = subprocess.run(
        [npx, "-y", MCPB, "pack", str(ROOT), str(bundle)], capture_output=True, text=True, check=False, timeout=BUILD_S
    )
    if done.returncode != 0 and WITHOUT_NETWORK.search(done.stderr):
        pytest.skip("the packer could not be fetched: no package registry")
    assert done.returncode == 0, done.stdout + done.stderr
    return bundle


@pytest.mark.exhaustive
def test_only_what_belongs_to_the_server_is_packed(packed: Path) -> None:
    names = set(zipfile.ZipFile(packed).namelist())
    expected = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    package = {"src/planwarden/__init__.py", "src/planwarden/py.typed"}
    assert names == expected | package | {"manifest.json", "pyproject.toml", "uv.lock", "README.md", "LICENSE"}


@dataclass(frozen=True)
class Unpacked:
    """The bundle in a folder of its own, for a person whose home is empty."""

    folder: Path
    home: Path

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))

    def launch(self, filled_in: dict[str, str]) -> StdioServerParameters:
        [command, *args], env = _launch(self.manifest, self.folder, filled_in)
        return StdioServerParameters(command=command, args=args, env={**self.environment, **env}, cwd=self.home)

    @property
    def environment(self) -> dict[str, str]:
        """An empty home, `uv`, a Python, and what uv has fetched before, so that the test does not fetch it again."""
        places = [Path(_uv()).parent, Path(sys.base_prefix) / "bin"]
        path = os.pathsep.join([*map(str, places), os.environ["PATH"]])
        cache = subprocess.run([_uv(), "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
        passed = {name: text for name, text in os.environ.items() if name.startswith(("SYSTEM", "TEMP", "SSL_", "UV_"))}
        return {**passed, "HOME": str(self.home), "PATH": path, "UV_CACHE_DIR": cache}


@pytest.fixture
def unpacked(packed: Path, tmp_path: Path) -> Unpacked:
    """Unpacked by the tool that packed it, its environment made from the lock file."""
    npx = shutil.which("npx")
    assert npx is not None
    made = Unpacked(tmp_path / "unpacked", tmp_path / "somebody")
    made.home.mkdir()
    unpack = [npx, "-y", MCPB, "unpack", str(packed), str(made.folder)]
    subprocess.run(unpack, capture_output=True, check=True, timeout=BUILD_S)
    launch = made.launch({})
    build = [launch.command, *launch.args[: launch.args.index("planwarden")], "planwarden", "--version"]
    built = subprocess.run(build, capture_output=True, text=True, check=False, timeout=BUILD_S, env=launch.env)
    if built.returncode != 0 and WITHOUT_NETWORK.search(built.stderr):
        pytest.skip("what the server needs could not be fetched: no package index")
    assert built.returncode == 0, built.stderr
    assert built.stdout.split()[-1] == read_manifest()["version"]
    return made


def _uv() -> str:
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed, so the bundle cannot be started")
    return uv


PLAN = {
    "todoList": [
        {
            "id": "total",
            "description": "Add up",
            "requiredTools": ["calculator"],
            "toolCalls": [{"toolName": "calculator", "arguments": {"expression": "12 * 37"}}],
        },
        {
            "id": "ask",
            "description": "Ask",
            "requiredTools": ["displayConfirmation"],
            "toolCalls": [{"toolName": "displayConfirmation", "arguments": {"action": "Go on?"}}],
        },
    ]
}


@requirement("bundle:starts")
@pytest.mark.exhaustive
async def test_the_unpacked_bundle_starts_in_an_empty_home_and_runs_a_plan(unpacked: Unpacked, tmp_path: Path) -> None:
    filled_in = {"home": str(tmp_path / "data"), "model": "caller", "key": "k"}

    with anyio.fail_after(120):
        async with Client(unpacked.launch(filled_in), elicitation_callback=approving()) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
            assert listed == [tool["name"] for tool in unpacked.manifest["tools"]]
            asked = (await client.call_tool("execute_plan", {"plan": PLAN})).structured_content
            assert asked is not None and asked["status"] == "suspended"
            [question] = asked["suspensions"]
            place = {"threadId": asked["threadId"], "suspensionId": question["suspensionId"]}
            done = await client.call_tool("resume_execution", {**place, "decision": {"approved": True}})
    assert done.structured_content is not None and done.structured_content["status"] == "completed"
    assert (tmp_path / "data" / "planwarden.db").is_file()
    assert not (unpacked.home / ".local" / "share" / "planwarden").exists()


ENTRY = (ROOT / "server.json").read_text(encoding="utf-8")
SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"

Text = Annotated[str, Field(min_length=1, max_length=100)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+([-.]?(a|b|rc|alpha|beta)\.?\d+)?$", max_length=255)]
"""The registry refuses ranges and `latest`."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Transport(_Strict):
    type: Literal["stdio"]


class _Variable(_Strict):
    name: str
    description: str
    format: Literal["string", "number", "boolean", "filepath"]
    isRequired: bool


class _Package(_Strict):
    registryType: Literal["pypi"]
    registryBaseUrl: Literal["https://pypi.org"]
    identifier: str
    version: Version
    runtimeHint: Literal["uvx"]
    transport: _Transport
    environmentVariables: list[_Variable]


class _Entry(_Strict):
    """The part of the schema that an entry with one PyPI package uses."""

    schema_: str = Field(alias="$schema", pattern=f"^{re.escape(SCHEMA)}$")
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", min_length=3, max_length=200)]
    title: Text
    description: Text
    version: Version
    packages: Annotated[list[_Package], Field(min_length=1, max_length=1)]


@requirement("registry:entry")
def test_the_registry_entry_has_the_form_that_the_registry_takes() -> None:
    assert _Entry.model_validate_json(ENTRY).schema_ == SCHEMA
    document = json.loads(ENTRY)
    changes: list[dict[str, object]] = [
        {"description": "x" * 101},
        {"name": "planwarden"},
        {"version": "^0.1"},
        {"tools": []},
    ]
    for broken in changes:
        with pytest.raises(ValidationError):
            _Entry.model_validate_json(json.dumps({**document, **broken}))


@requirement("registry:entry")
def test_the_registry_entry_is_about_this_package() -> None:
    entry = _Entry.model_validate_json(ENTRY)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [package] = entry.packages
    assert (package.identifier, package.version, entry.version) == (
        project["name"],
        project["version"],
        project["version"],
    )
    readme = (ROOT / project["readme"]).read_text(encoding="utf-8")
    assert re.findall(r"mcp-name: (\S+)", readme) == [entry.name]


def test_what_the_registry_starts_is_the_command_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = _Entry.model_validate_json(ENTRY)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [package] = entry.packages
    assert package.identifier in project["scripts"]
    monkeypatch.setattr("sys.prefix", "/base")
    monkeypatch.setattr("sys.base_prefix", "/base")
    assert find_launch_command() == (package.runtimeHint, package.identifier)
