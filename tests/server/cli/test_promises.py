"""Promises of a folder count as a person read them at a terminal."""

from pathlib import Path

import pytest

from tests.kit import requirement
from tests.server.cli.support import Cli, Open, needs_terminal

PROMISE = '[[promises]]\nname = "tests"\nwhen = {tool = "Edit"}\nrequires = {tool = "Bash"}\n'


@needs_terminal
@requirement("done:trusted")
def test_a_folder_counts_as_it_was_trusted_and_a_change_is_said_until_a_person_trusts_it_again(
    cli: Cli, terminal: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop/.planwarden/promises.toml"
    file.parent.mkdir(parents=True)
    file.write_text(PROMISE)
    monkeypatch.chdir(tmp_path / "shop")
    refused = cli.main("guard", "trust-folder")
    assert refused.code == 2 and "only a person at a terminal" in refused.err
    assert "not trusted]" in cli.main("promises").out
    assert terminal("guard", "trust-folder").play("tests (strict)", "Hold hosts in", "> y") == 0
    assert "/shop: trusted]" in cli.main("promises").out
    file.write_text("promises = []")
    assert "tests (strict)" in (said := cli.main("promises").out)
    assert "trusted; the file has changed, but what was trusted counts]" in said
    assert terminal("guard", "trust-folder").play("Hold hosts in", "> y") == 0
    assert cli.main("promises").out.startswith("no promises")
