"""The scripts that complete commands and options in a shell."""

import shutil
import subprocess

import pytest

from planwarden.server.cli.completion import SCRIPTS, collect_words
from planwarden.server.cli.parser import build_parser
from tests.server.cli.support import Cli

ASK = """
source /dev/stdin <<< "$SCRIPT"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _planwarden; echo "${COMPREPLY[@]}"
"""


def complete(cli: Cli, *words: str) -> list[str]:
    """Returns what bash offers for the last word."""
    bash = shutil.which("bash")
    assert bash is not None
    script = cli.main("completion", "bash").out
    command = [bash, "--norc", "-c", ASK, "bash", "planwarden", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={"SCRIPT": script}).stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("a", "approve audit"),
        ("grant ", "list add revoke --help"),
        ("--home grant can", "cancel"),
        ("grant list --op", "--open"),
        ("config print c", "claude-desktop claude-code cursor codex"),
        ("token add x --role ", "caller approver"),
        ("list --limit ", ""),
        ("run ", ""),
        ("run --k", "--key"),
        ("completion ", "bash zsh fish --help --home --store --model"),
    ],
)
def test_bash_offers_what_may_follow(cli: Cli, line: str, offered: str) -> None:
    assert set(complete(cli, *line.split(" "))) == set(offered.split())


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_command_and_option_is_in_the_script_of_every_shell(cli: Cli, shell: str) -> None:
    script = cli.main("completion", shell).out
    for entry in collect_words(build_parser()):
        for word in (*entry.path, *entry.choices, *(flag.removeprefix("--") for flag in entry.options)):
            assert word in script
