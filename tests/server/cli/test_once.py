"""`planwarden once`: which calls have a key, and a person who means a second one."""

import sys

import pytest

from tests.requirements import requirement
from tests.server.cli.support import Cli, Open, step

needs_terminal = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library"
)


@pytest.fixture(autouse=True)
def erase_once(cli: Cli) -> None:
    with (cli.home / "planwarden.toml").open("a") as file:
        file.write('\n[tools."erase"]\nrisk = "read"\nonce = ["/ids/0", "/note"]\n')


def plan(cli: Cli, *ids: int, note: str = "a") -> str:
    return cli.write("plan.json", {"todoList": [step("purge", "erase", {"ids": list(ids), "note": note})]})


@requirement("rules:once")
def test_a_second_run_is_refused_and_the_lists_name_the_first(cli: Cli) -> None:
    first = cli.main("run", plan(cli, 1), "--json").json
    assert first["status"] == "completed"
    assert first["steps"][0]["actualToolCalls"][0]["once"] == {"/ids/0": 1, "/note": "a"}
    refused = cli.main("run", plan(cli, 1, 2), "--json")
    assert refused.code == 1 and refused.json["error"]["code"] == "duplicate_effect"
    assert cli.ledger == ["erase [1] a"]
    assert 'once per ids/0 = 1, note = "a"' in cli.main("show", first["threadId"]).out
    shown = cli.main("show", refused.json["threadId"]).out
    assert "duplicate_effect" in shown and """planwarden once forget erase --key ids/0=1 --key 'note="a"'""" in shown
    [key] = cli.main("once", "list", "--json").json["keys"]
    assert (key["toolName"], key["values"], key["callId"]) == ("erase", {"/ids/0": 1, "/note": "a"}, "purge:1")
    assert key["executionId"] == first["executionId"]
    assert 'note = "a"' in cli.main("once", "list", "--tool", "erase").out
    assert "No call has a key." in cli.main("once", "list", "--tool", "find").out
    kinds = [row["kind"] for row in cli.main("audit", "show", "--json").json["rows"]]
    assert [kind for kind in kinds if "once" in kind] == ["once_taken", "once_refused"]
    assert cli.main("audit", "verify").code == 0


@requirement("rules:once")
def test_without_a_terminal_nothing_is_forgotten(cli: Cli) -> None:
    cli.main("run", plan(cli, 1))
    result = cli.spawn("once", "forget", "erase", "--key", "ids/0=1", "--key", "note=a", stdin="y\n")
    assert result.code == 2 and "at a terminal" in result.err
    assert len(cli.main("once", "list", "--json").json["keys"]) == 1


@needs_terminal
@pytest.mark.slow
@requirement("rules:once")
def test_a_person_frees_a_key_at_a_terminal_and_the_retry_passes(cli: Cli, terminal: Open) -> None:
    cli.main("run", plan(cli, 1, note="7"))
    refused = cli.main("run", plan(cli, 1, note="7"), "--json").json
    wrong = terminal("once", "forget", "erase", "--key", "ids/0=2", "--key", "note=7")
    wrong.expect("no call of 'erase' has that key")
    assert wrong.finish() == 2
    person = terminal("once", "forget", "erase", "--key", "ids/0=1.0", "--key", "note=7")
    person.expect("Tool: erase")
    person.expect('note = "7"')
    person.expect("call purge:1 of execution")
    person.expect("Forget it? [")
    person.type("")
    person.expect("Nothing was forgotten.")
    assert person.finish() == 1
    person = terminal("once", "forget", "erase", "--key", "/ids/0=1", "--key", "note=7")
    person.expect("Forget it? [")
    person.type("y")
    person.expect("The next call with this key happens.")
    assert person.finish() == 0
    assert cli.main("retry", refused["threadId"]).code == 0
    assert cli.ledger == ["erase [1] 7"] * 2
    rows = [row for row in cli.main("audit", "show", "--json").json["rows"] if row["kind"] == "once_forgotten"]
    assert [(row["facts"]["tool"], row["facts"]["assurance"]) for row in rows] == [("erase", "human")]
    assert cli.main("audit", "verify").code == 0
