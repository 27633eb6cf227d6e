"""The `mcpServers` block: everything that hosts write is accepted, and unusable values are named."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.settings.configuration import load_settings
from planwarden.tools.downstream.config import ServerConfig, ServerList, ServerSettings
from planwarden.tools.downstream.config_file import MAX_SERVERS, read_servers
from tests.requirements import requirement


def read_entries(
    folder: Path, servers: JsonValue, environment: dict[str, str] | None = None, **settings: ServerSettings
) -> ServerList:
    path = folder / "planwarden.json"
    path.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    return read_servers(path, environment or {}, settings, must_exist=True)


def read_entry(folder: Path, entry: JsonValue, environment: dict[str, str] | None = None) -> ServerConfig:
    [config] = read_entries(folder, {"x": entry}, environment).configs
    return config


@requirement("downstream:config")
def test_a_block_of_a_host_is_accepted_unchanged(tmp_path: Path) -> None:
    entry: JsonValue = {
        "command": "npx",
        "args": ["-y", "server", "${ROOT}/docs", "${PORT:-80}", "${env:ROOT}", "$ROOT"],
        "env": {"TOKEN": "${TOKEN}"},
        "cwd": "work",
        "type": "stdio",
    }
    found = read_entry(tmp_path, entry, {"ROOT": "/r", "TOKEN": "secret"})
    assert (found.command, found.args) == ("npx", ("-y", "server", "/r/docs", "80", "/r", "$ROOT"))
    assert found.env == {"TOKEN": "secret"} and found.cwd == tmp_path / "work" and found.problem is None
    assert "secret" not in repr(found)


@requirement("downstream:config")
def test_an_address_has_headers_and_no_secrets_in_representations(tmp_path: Path) -> None:
    entry: JsonValue = {"type": "http", "url": "https://host/mcp?k=${K}", "headers": {"Authorization": "Bearer ${K}"}}
    found = read_entry(tmp_path, entry, {"K": "secret"})
    assert found.url == "https://host/mcp?k=secret" and found.headers == {"Authorization": "Bearer secret"}
    assert not found.is_local and "secret" not in repr(found)


@requirement("downstream:config")
def test_an_unset_variable_stops_its_own_server_and_names_itself(tmp_path: Path) -> None:
    found = read_entries(tmp_path, {"a": {"command": "x", "env": {"T": "${NOT_SET}"}}, "b": {"command": "y"}})
    assert [config.problem for config in found.configs] == [
        "mcpServers.a.env.T: the environment variable 'NOT_SET' is not set",
        None,
    ]
    other = read_entry(tmp_path, {"command": "x", "args": ["${input:key}"]}).problem
    assert other is not None and "args.0: '${input:key}' cannot be filled in" in other
    odd = read_entries(tmp_path, {"a": {"command": "x", "alwaysAllow": ["t"], "timeout": 5, "icon": "i"}})
    notes = " ".join(odd.notes)
    assert "mcpServers.a.icon is not read" in notes and "approval is the operator's" in notes and "timeout_s" in notes


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        ([], "expected {"),
        ({"a": {}}, "either a 'command' or a 'url'"),
        ({"a": {"command": "x", "url": "http://h"}}, "either a 'command' or a 'url'"),
        ({"a": {"command": 3}}, r"mcpServers\.a\.command"),
        ({"a": {"command": "x", "args": "y"}}, r"mcpServers\.a\.args"),
        ({"a": {"command": "x", "env": {"K": 1}}}, r"mcpServers\.a\.env\.K"),
        ({"a": {"url": "file:///etc"}}, "does not begin with http"),
        ({"a": {"url": "http://h", "type": "sse"}}, "HTTP\\+SSE transport of 2024"),
        ({"a": {"url": "http://h", "type": "stdio"}}, "type is 'stdio'"),
        ({"x y": {"command": "x"}, "x_y": {"command": "x"}}, "the same names"),
        ({"builtin": {"command": "x"}}, "rename the server"),
        ({"": {"command": "x"}}, "1 to 48 characters"),
        ({f"s{n}": {"command": "x"} for n in range(MAX_SERVERS + 1)}, "the limit is"),
    ],
)
def test_an_invalid_entry_is_refused_with_its_key(tmp_path: Path, servers: JsonValue, why: str) -> None:
    with pytest.raises(InvalidArguments, match=why) as refused:
        read_entries(tmp_path, servers)
    assert "planwarden.json" in refused.value.message


@requirement("downstream:config")
def test_planwarden_in_the_pasted_block_does_not_start_itself(tmp_path: Path) -> None:
    off = read_entries(tmp_path, {"a": {"command": "x", "disabled": True}, "b": {"command": "x", "enabled": False}})
    assert [config.is_disabled for config in off.configs] == [True, True]
    same = read_entry(tmp_path, {"command": "uvx", "args": ["planwarden"]})
    assert same.is_disabled and same.problem is not None and "planwarden itself and is left out" in same.problem
    apart: JsonValue = {"command": "uvx", "args": ["planwarden"], "env": {"PLANWARDEN_HOME": "/other"}}
    assert read_entry(tmp_path, apart).problem is None


def test_the_operators_settings_come_from_the_operators_file(tmp_path: Path) -> None:
    (tmp_path / "planwarden.json").write_text('{"mcpServers": {"a": {"command": "x", "trusted": true}}}')
    (tmp_path / "planwarden.toml").write_text("[servers.gone]\ntrusted = true\n")
    settings = load_settings(home=tmp_path, environment={})
    assert not settings.servers.configs[0].settings.trusted
    assert any("'gone' that is not configured" in note for note in settings.servers.notes)
    before = settings.policy.policy_digest
    (tmp_path / "planwarden.toml").write_text("[servers.a]\ntrusted = true\n")
    settings = load_settings(home=tmp_path, environment={})
    assert settings.servers.configs[0].settings.trusted and settings.policy.policy_digest != before
    with pytest.raises(InvalidArguments, match="there is no file"):
        load_settings(home=tmp_path, environment={}, mcp_config=tmp_path / "other.json")
    (tmp_path / "other.json").write_text('{"mcpServers": {"o": {"command": "x"}}}')
    other = load_settings(home=tmp_path, environment={}, mcp_config=tmp_path / "other.json")
    assert [config.name for config in other.servers.configs] == ["o"]


def test_a_cached_listing_belongs_to_how_the_server_is_reached_and_not_to_its_secrets(tmp_path: Path) -> None:
    first = read_entry(tmp_path, {"command": "x", "env": {"K": "1"}}).fingerprint
    assert read_entry(tmp_path, {"command": "x", "env": {"K": "2"}}).fingerprint == first
    assert read_entry(tmp_path, {"command": "x", "args": ["--other"], "env": {"K": "1"}}).fingerprint != first
