"""`planwarden service print`, and the files of `deploy/` that come from the same source."""

import json
import plistlib
import re
import shlex
from pathlib import Path

import pytest

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli.parser import build_parser
from planwarden.server.cli.services.files import (
    DEPLOYED,
    Installation,
    write_docker,
    write_launchd,
    write_systemd,
)
from tests.requirements import requirement
from tests.server.cli.support import Cli
from tests.support.paths import ROOT


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
def test_a_unit_of_another_home_may_write_there_and_see_its_program() -> None:
    unit = read_unit(write_systemd(Installation(Path("/home/ann/bin/planwarden"), Path("/home/ann/plan"), "ann")))
    assert unit["ExecStart"] == "/home/ann/bin/planwarden serve --http" and unit["User"] == "ann"
    assert (unit["ReadWritePaths"], unit["ProtectHome"]) == ("/home/ann/plan", "read-only")
    assert "StateDirectory" not in unit
    other = read_unit(write_systemd(Installation(DEPLOYED[0], Path('/srv/100% $my "plan"'), "ann")))
    assert other["ProtectHome"] == "yes"
    assert other["ReadWritePaths"] == '"/srv/100%% $my \\"plan\\""'
    with pytest.raises(UsageError, match="cannot stand in a unit"):
        write_systemd(Installation(DEPLOYED[0], Path("/srv/a\nExecStartPre=/bin/evil"), "ann"))


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


@requirement("service:print")
def test_a_home_with_markup_in_its_name_stays_one_value() -> None:
    home = Path("/srv/<&>'\"\n")
    assert plistlib.loads(write_launchd(Installation(DEPLOYED[0], home, "ann")).encode())["EnvironmentVariables"][
        "PLANWARDEN_HOME"
    ] == str(home)
