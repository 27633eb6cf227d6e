"""What planwarden prints for others: the block of each host, the files of services, and no secret in either."""

import base64
import json
import plistlib
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli import hosts
from planwarden.server.cli.parser import build_parser
from planwarden.server.cli.services.files import DEPLOYED, Installation, write_docker, write_launchd, write_systemd
from tests.requirements import requirement
from tests.server.cli.support import Cli, run_in_process
from tests.support.paths import ROOT

KEY = base64.b64encode(bytes(range(32))).decode()
TABLES = {
    "vscode": "servers",
    "zed": "context_servers",
    "codex": "mcp_servers",
    "goose": "extensions",
    "opencode": "mcp",
}
ENVIRONMENTS = {"goose": "envs", "opencode": "environment"}


@pytest.mark.parametrize("host", hosts.CLIENTS)
def test_every_hosts_configuration_parses_in_its_format(cli: Cli, host: str) -> None:
    result = cli.main("--model", "caller", "config", "print", host)
    assert result.code == 0 and result.err.startswith("into ")
    read: Any = {"codex": tomllib.loads, "goose": yaml.safe_load}.get(host, json.loads)
    server = read(result.out)[TABLES.get(host, "mcpServers")]["planwarden"]
    env = {"PLANWARDEN_HOME": str(cli.home), "PLANWARDEN_MODEL": "caller"}
    assert server[ENVIRONMENTS.get(host, "env")] == env
    assert server["cmd" if host == "goose" else "command"]


def test_an_installation_in_an_environment_is_named_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert hosts.find_launch_command({}) == hosts.LaunchCommand("uvx", ("planwarden",), {})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "uv" / "archive-v0" / "abc"))
    assert hosts.find_launch_command({}).command == "uvx"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert Path(hosts.find_launch_command({}).command).is_absolute()


def read_cursor(out: str) -> dict[str, str] | None:
    return json.loads(out)["mcpServers"]["planwarden"].get("env")


def test_config_writes_the_environment_that_the_host_would_not_have(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.capture is not None
    assert read_cursor(run_in_process(cli.capture, "config", "print", "cursor").out) is None
    monkeypatch.chdir(tmp_path)
    shown = {
        "PLANWARDEN_HOME": "elsewhere",
        "PLANWARDEN_MODEL": "openai:small",
        "PLANWARDEN_MODEL_URL": "http://localhost:1/v1",
        "PLANWARDEN_SEARCH": "brave",
    }
    hidden = {"PLANWARDEN_SEARCH_KEY": "secret one", "OPENAI_API_KEY": "secret two", "PLANWARDEN_MODEL_MODE": ""}
    for name, text in {**shown, **hidden}.items():
        monkeypatch.setenv(name, text)
    result = run_in_process(cli.capture, "config", "print", "cursor")
    assert read_cursor(result.out) == {**shown, "PLANWARDEN_HOME": str(tmp_path / "elsewhere")}
    assert "secrets: PLANWARDEN_SEARCH_KEY, OPENAI_API_KEY" in result.err and "secret one" not in result.err
    # An argument wins over the environment, as everywhere.
    named = read_cursor(cli.main("--model", "caller", "config", "print", "cursor").out)
    assert named is not None and named["PLANWARDEN_MODEL"] == "caller" and named["PLANWARDEN_HOME"] == str(cli.home)


def test_the_block_for_a_host_names_the_store_and_its_secrets_and_holds_none(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def print_for(host: str, store: str | None = None) -> tuple[str, str]:
        printed = cli.main(*(("--store", store) if store else ()), "config", "print", host)
        assert "hidden" not in printed.out + printed.err and KEY not in printed.out + printed.err
        return printed.out, printed.err

    assert "PLANWARDEN_SECRET_KEY" not in print_for("codex")[1]
    assert "PLANWARDEN_SECRET_KEY" in print_for("codex", "postgresql://ann@db/plans")[1]
    monkeypatch.setenv("PLANWARDEN_SECRET_KEY", KEY)
    out, err = print_for("claude-code", "postgresql://ann@db/plans")
    assert "postgresql://ann@db/plans" in out and "PLANWARDEN_SECRET_KEY" in err
    assert "PLANWARDEN_STORE" in print_for("claude-code", "postgresql://ann:hidden@db/plans")[1]


@requirement("service:print")
def test_what_is_deployed_is_what_is_printed_for_that_installation() -> None:
    installation = Installation(*DEPLOYED)
    assert (ROOT / "deploy" / "planwarden.service").read_text() == write_systemd(installation)
    assert (ROOT / "deploy" / "compose.yaml").read_text() == write_docker(installation)


def read_unit(text: str) -> dict[str, str]:
    lines = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key: value for key, _, value in lines if key != "Environment"} | {
        f"Environment {value.split('=')[0]}": value for key, _, value in lines if key == "Environment"
    }


@requirement("service:print")
def test_a_unit_of_another_home_may_write_there_and_see_its_program_and_odd_names_stay_one_value() -> None:
    unit = read_unit(write_systemd(Installation(Path("/home/ann/bin/planwarden"), Path("/home/ann/plan"), "ann")))
    assert unit["ExecStart"] == "/home/ann/bin/planwarden serve --http" and unit["User"] == "ann"
    assert (unit["ReadWritePaths"], unit["ProtectHome"]) == ("/home/ann/plan", "read-only")
    assert "StateDirectory" not in unit
    other = read_unit(write_systemd(Installation(DEPLOYED[0], Path('/srv/100% $my "plan"'), "ann")))
    assert other["ProtectHome"] == "yes"
    assert other["ReadWritePaths"] == '"/srv/100%% $my \\"plan\\""'
    with pytest.raises(UsageError, match="cannot stand in a unit"):
        write_systemd(Installation(DEPLOYED[0], Path("/srv/a\nExecStartPre=/bin/evil"), "ann"))
    home = Path("/srv/<&>'\"\n")
    document = plistlib.loads(write_launchd(Installation(DEPLOYED[0], home, "ann")).encode())
    assert document["EnvironmentVariables"]["PLANWARDEN_HOME"] == str(home)


@requirement("service:print")
@pytest.mark.parametrize("kind", ["systemd", "launchd", "docker"])
def test_what_is_printed_starts_a_server_of_this_home(cli: Cli, kind: str) -> None:
    result = cli.main("service", "print", kind, "--store", "sqlite:////srv/a b$c.db")
    assert result.code == 0 and result.err == ""
    if kind == "launchd":
        document = plistlib.loads(result.out.encode())
        words, environment = document["ProgramArguments"], document["EnvironmentVariables"]
        assert environment["PLANWARDEN_HOME"] == str(cli.home) and document["RunAtLoad"]
    elif kind == "systemd":
        unit = read_unit(result.out)
        words = shlex.split(unit["ExecStart"].replace("$$", "$"))
        assert unit["Environment PLANWARDEN_HOME"] == f"PLANWARDEN_HOME={cli.home}"
    else:
        assert "restart: unless-stopped" in result.out
        [line] = re.findall(r"^    command: (\[.+\])$", result.out, re.MULTILINE)
        words = ["/usr/bin/planwarden", *json.loads(line)]
    assert Path(words[0]).is_absolute()
    arguments = build_parser().parse_args(words[1:])
    assert arguments.http and arguments.store == "sqlite:////srv/a b$c.db"
