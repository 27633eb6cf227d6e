"""`server.json`, the entry in the MCP registry: it has the right form and is about this package.

Sources: https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json (ServerDetail, Package,
KeyValueInput) and https://modelcontextprotocol.io/registry/package-types (PyPI: the marker in the README).
"""

import json
import re
import tomllib
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planwarden.server.cli.hosts import find_launch_command
from tests.requirements import requirement
from tests.support.paths import ROOT

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
    found = find_launch_command({})
    assert (found.command, tuple(found.args)) == (package.runtimeHint, (package.identifier,))
