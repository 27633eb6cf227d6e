"""`trust` lets tools run without asking that, as their server says, only read. It never lowers what has an effect."""

import sys
import tomllib
from pathlib import Path

import pytest

from planwarden.agent.common.errors import UsageError
from planwarden.server.settings.additions import add_to_text, replace_text
from tests.server.cli.support import Cli, start_on_terminal
from tests.server.cli.test_downstream import server, servers

MINE = """\
# My settings. Keep this line.
[tools]
python = ["tools.py"]   # beside this file

[approvals]   # who may do what
trust_caller = false
"""
READS = {"risk": "read", "effect": "read"}


@pytest.fixture
def cli(cli: Cli) -> Cli:
    (cli.home / "planwarden.toml").write_text(MINE)
    cli.write("planwarden.json", servers(d=server(cli, "liar"), good=server(cli, "good")))
    return cli


def settings(cli: Cli) -> str:
    return (cli.home / "planwarden.toml").read_text()


def test_what_only_reads_runs_without_asking_afterwards_and_comments_stay(cli: Cli) -> None:
    asked = cli.main("call", "good_echo", "--arg", "text=x")
    assert asked.code == 3
    result = cli.main("trust", "good", "--yes", "--json")
    assert result.code == 0 and {"good_echo", "good_meta"} < set(result.json["allowed"])
    assert not {"good_note", "good_die"} & set(result.json["allowed"])
    assert settings(cli).startswith(MINE)
    assert tomllib.loads(settings(cli))["tools"]["good_echo"] == READS
    assert cli.main("call", "good_echo", "--arg", "text=x").code == 0
    assert cli.main("call", "good_note", "--arg", "text=x").code == 3


def test_only_the_named_tools_are_trusted_by_either_name(cli: Cli) -> None:
    result = cli.main("trust", "good", "echo", "good_meta", "--yes", "--json")
    assert result.json["allowed"] == ["good_echo", "good_meta"]
    assert set(tomllib.loads(settings(cli))["tools"]) == {"python", "good_echo", "good_meta"}


@pytest.mark.parametrize("name", ["d_both", "both", "tame", "plain"])
def test_an_effect_is_never_lowered_also_when_it_is_named(cli: Cli, name: str) -> None:
    result = cli.main("trust", "d", "wipe", name, "--yes")
    assert result.code == 2 and "does not say that it only reads" in result.err and "nothing was written" in result.err
    assert settings(cli) == MINE
    assert cli.main("trust", "d", "--yes", "--json").json["allowed"] == ["d_wipe"]


def test_a_risk_that_the_operator_wrote_stays(cli: Cli) -> None:
    own = MINE + '\n[tools."good_echo"]\nrisk = "critical"\n'
    (cli.home / "planwarden.toml").write_text(own)
    named = cli.main("trust", "good", "echo", "--yes")
    assert named.code == 2 and 'has risk = "critical" in planwarden.toml' in named.err and settings(cli) == own
    assert cli.main("trust", "good", "--yes").code == 0
    assert tomllib.loads(settings(cli))["tools"]["good_echo"] == {"risk": "critical"}


def test_a_second_time_there_is_nothing_to_do(cli: Cli) -> None:
    cli.main("trust", "good", "--yes")
    before = settings(cli)
    again = cli.main("trust", "good", "--yes")
    assert again.code == 0 and "nothing was written" in again.out and settings(cli) == before


def test_without_a_terminal_nothing_is_written_unless_yes_was_given(cli: Cli) -> None:
    result = cli.main("trust", "good")
    assert result.code == 2 and "nobody can be asked here" in result.err and settings(cli) == MINE
    assert '[tools."good_echo"]' in result.out


def test_an_unknown_server_or_tool_is_refused_with_what_was_meant(cli: Cli) -> None:
    wrong_server, wrong_tool = cli.main("trust", "goood", "--yes"), cli.main("trust", "good", "good_ecko", "--yes")
    assert wrong_server.code == wrong_tool.code == 2
    assert "did you mean 'good'?" in wrong_server.err and "did you mean 'good_echo'?" in wrong_tool.err


def test_a_server_that_does_not_start_is_named_with_its_reason(cli: Cli) -> None:
    cli.write(
        "planwarden.json", servers(d={"command": "/nowhere/at/all"}, off={**server(cli, "good"), "disabled": True})
    )
    down, disabled = cli.main("trust", "d", "--yes"), cli.main("trust", "off", "--yes")
    assert down.code == 1 and "'d'" in down.err
    assert disabled.code == 2 and "is disabled" in disabled.err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library")
def test_a_person_confirms_what_is_written(cli: Cli) -> None:
    for typed, code in (("", 1), ("y", 0)):
        person = start_on_terminal(cli, "trust", "good", "echo")
        try:
            person.expect("says that these tools only read")
            person.expect('[tools."good_echo"]')
            person.expect("Let plans call them without asking anybody?")
            person.type(typed)
            assert person.finish() == code
        finally:
            person.close()
        assert (settings(cli) == MINE) is (typed == "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment",
        MINE,
        MINE.replace("\n", "\r\n"),
        '[tools."x"]   # mine\nremind_after_s = [60]\n\n[approvals]\ncritical = "second"\n',
        "[tools.x]\ncapabilities = ['a']\n",
        "[ tools . 'x' ]\n",
        "tools.python = ['tools.py']\n[tools.y]\nrisk = 'read'\n",
        "[tools]\ny = {risk = 'read'}\n[approvals]\n",
    ],
)
def test_the_text_says_afterwards_what_it_said_and_the_addition(text: str) -> None:
    after = add_to_text(text, {"x": READS}, "why")
    expected = tomllib.loads(text)
    expected.setdefault("tools", {}).setdefault("x", {}).update(READS)
    assert tomllib.loads(after) == expected
    assert [line for line in text.splitlines() if line not in after.splitlines()] == []
    assert after.count("\r\n") == (after.count("\n") if "\r\n" in text else 0)


@pytest.mark.parametrize(
    "text",
    [
        "tools = {python = ['tools.py']}\n",
        "[tools]\nx = {capabilities = ['a']}\n",
        "[tools]\nx.capabilities = ['a']\n",
        "[approvals]\napprovers = ['''\n[tools.x]\n''']\n[tools]\nx.capabilities = []\n",
    ],
)
def test_what_lines_cannot_be_added_to_is_left_to_the_person_with_the_lines(text: str) -> None:
    with pytest.raises(UsageError, match=r'nothing was changed. Write there:\n\[tools."x"\]\nrisk = "read"'):
        add_to_text(text, {"x": READS}, "why")


def test_a_file_that_somebody_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path, link = tmp_path / "real.toml", tmp_path / "planwarden.toml"
    path.write_text("a = 1\n")
    path.chmod(0o640)
    link.symlink_to(path)
    with pytest.raises(UsageError, match="was changed meanwhile"):
        replace_text(link, "", "b = 2\n")
    replace_text(link, "a = 1\n", "b = 2\n")
    assert path.read_text() == "b = 2\n" and link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640 or sys.platform == "win32"
    assert [found.name for found in tmp_path.iterdir() if found.name.startswith(".")] == []
