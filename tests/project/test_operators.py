"""The pages for operators are true: their commands parse, and the files in `deploy/` name what is there."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from dev.reference.settings import variables

from planwarden.server.cli.commands.serve import handle_worker
from planwarden.server.cli.program import build_parser
from planwarden.server.settings.configuration import load_settings
from tests.support.paths import ROOT

PAGES = sorted((ROOT / "docs" / "operators").glob("*.md"))
DEPLOY = ROOT / "deploy"
MAX_WORDS = 250
OURS = re.compile(r"(?:.*/)?planwarden")


def own_arguments(line: str) -> list[str] | None:
    """Returns what follows the last `planwarden` of a command line; None where there is none, or it is a service."""
    words = shlex.split(line)
    places = [place for place, word in enumerate(words) if OURS.fullmatch(word)]
    return None if not places or "systemctl" in words or "useradd" in words else words[places[-1] + 1 :]


def deployed_commands() -> Iterator[tuple[str, list[str]]]:
    [start] = re.findall(r"^ExecStart=(\S+) (.+)$", (DEPLOY / "planwarden.service").read_text(), re.MULTILINE)
    assert start[0] == "/opt/planwarden/bin/planwarden"
    yield "planwarden.service", start[1].split()
    [image] = re.findall(r"^CMD (\[.+\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    yield "Dockerfile", json.loads(image)
    [service] = re.findall(r"^    command: (\[.+\])$", (DEPLOY / "compose.yaml").read_text(), re.MULTILINE)
    yield "compose.yaml", json.loads(service)
    front, worker = re.findall(r"^    command: (\[.+\])$", (DEPLOY / "compose.scale.yaml").read_text(), re.MULTILINE)
    assert build_parser().parse_args(json.loads(worker)).handler is handle_worker
    yield "compose.scale.yaml", json.loads(front)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one_that_planwarden_takes(page: Path) -> None:
    lines = re.findall(r"^ *\$ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    found = [words for line in lines if (words := own_arguments(line)) is not None]
    assert len(found) >= 2
    for words in found:
        if words != ["--version"]:
            build_parser().parse_args(words)


@pytest.mark.parametrize(("name", "words"), [*deployed_commands()], ids=lambda value: str(value))
def test_what_is_deployed_starts_a_server_over_http(name: str, words: list[str]) -> None:
    arguments = build_parser().parse_args(words)
    assert arguments.http and arguments.port in (None, 8765)
    assert (arguments.host is None) is (name == "planwarden.service")


def test_the_files_in_deploy_agree_about_the_port_and_name_our_variables() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in DEPLOY.iterdir()}
    assert all(
        "8765" in texts[name]
        for name in ("Dockerfile", "compose.yaml", "compose.scale.yaml", "nginx.conf", "nginx.scale.conf")
    )
    named = {name for text in texts.values() for name in re.findall(r"PLANWARDEN_\w+", text)}
    assert named - variables().keys() == {"PLANWARDEN_DATA"}
    assert {"PLANWARDEN_HOME", "PLANWARDEN_MODEL", "PLANWARDEN_LOG_FORMAT"} <= named


def test_the_image_has_every_folder_of_the_package() -> None:
    listed = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    packed = re.findall(r'"([^"]+)" = "planwarden', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {name for name in packed if not name.startswith("src/")} <= listed
    assert all((ROOT / name).exists() for name in listed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short_and_its_settings_are_ones_that_planwarden_takes(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= MAX_WORDS
    for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        (tmp_path / "planwarden.toml").write_text(block, encoding="utf-8")
        assert load_settings(home=tmp_path, environment={}).http.model_fields_set
    assert all((ROOT / name).exists() for name in re.findall(r"(?<![\w/])deploy/[\w.]+", text))


def test_there_is_a_page_for_each_thing_that_an_operator_does() -> None:
    assert [page.stem for page in PAGES] == ["docker", "proxy", "restore", "several", "systemd", "uninstall", "upgrade"]
