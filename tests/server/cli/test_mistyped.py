"""A mistyped command, option, tool or key of the settings: the message names what was meant."""

import pytest

from tests.server.cli.support import Cli


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("lsit", "list"),
        ("run-gaol x", "run-goal"),
        ("grant ad", "add"),
        ("config print cursr", "cursor"),
        ("list --limt 3", "--limit"),
        ("--homee x list", "--home"),
        ("serve --prot=3", "--port"),
        ("token add --rle caller", "--role"),
        ("token add ann --role approvr", "approver"),
        ("call ersae", "erase"),
    ],
)
def test_the_message_names_what_was_meant(cli: Cli, words: str, meant: str) -> None:
    result = cli.main(*words.split())
    assert result.code == 2 and f"did you mean {meant!r}?" in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ("[aprovals]\n", "approvals"),
        ("[approvals]\ntrust_calller = true\n", "trust_caller"),
        ("[tools.erase]\nriks = 'read'\n", "risk"),
        ("[tools.ersae]\nrisk = 'read'\n[tools]\npython = ['tools.py']\n", "erase"),
        ("[servers.x.login]\nclientid = 'x'\n", "client_id"),
        ("[[notify]]\nkidn = 'ntfy'\n", "kind"),
        ("[tools]\npyhton = ['tools.py']\n", "python"),
    ],
)
def test_a_mistyped_key_of_the_settings_is_named(cli: Cli, settings: str, meant: str) -> None:
    (cli.home / "planwarden.toml").write_text(settings)
    result = cli.main("tools")
    assert result.code == 2 and f"did you mean {meant!r}?" in result.err


def test_a_word_that_is_like_nothing_gets_the_whole_list(cli: Cli) -> None:
    said = cli.main("zzzzzzzz").err
    assert "there is no command 'zzzzzzzz'; choose from serve, " in said and "did you mean" not in said
