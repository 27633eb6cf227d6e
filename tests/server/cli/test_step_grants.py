"""`planwarden grant` for a step of a saved plan: at a terminal, in the lists, in `check` and in `doctor`."""

import json
import sys

import pytest
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.cli.support import Cli, Open, step
from tests.tools.downstream.support import DOUBLE

DAY_S = 86_400
ALLOW = ("grant", "add", "erase", "--plan", "weekly", "--step", "purge", "--uses-per-day", "9", "--for", "90d")
FIND = step("find", "find", {"topic": "old"})
PURGE = step("purge", "erase", {"ids": {"$from": "find", "pointer": "/ids"}, "note": "weekly"})
needs_terminal = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no pseudo-terminals in the standard library"
)


@pytest.fixture(autouse=True)
def plans(cli: Cli) -> None:
    save(cli, FIND, PURGE)


def save(cli: Cli, *steps: dict[str, JsonValue], title: str = "Weekly") -> None:
    (cli.home / "plans").mkdir(exist_ok=True)
    (cli.home / "plans" / "weekly.json").write_text(json.dumps({"title": title, "todoList": steps}))


@needs_terminal
@pytest.mark.slow
@requirement("grants:step")
def test_a_person_allows_a_step_and_its_runs_do_not_ask_until_the_plan_changes(cli: Cli, terminal: Open) -> None:
    person = terminal(*ALLOW)
    person.expect("Step: purge of the saved plan weekly")
    person.expect('ids = {"$from": "find", "pointer": "/ids"}: any value of step find')
    person.expect('note = "weekly"')
    person.expect("At most 9 calls a day (UTC), for the next 90 days")
    person.expect("Allow them? [")
    person.type("y")
    person.expect("9 of 9 left today (UTC)")
    assert person.finish() == 0
    [grant] = cli.main("grant", "list", "--open", "--json").json["grants"]
    assert (grant["step"]["plan"], grant["step"]["stepId"], grant["uses"]) == ("weekly", "purge", 9)

    foreseen = cli.main("check", "weekly")
    assert f"its risk is dangerous; grant {grant['grantId'][:8]} lets it through" in foreseen.out
    assert cli.main("check", "weekly", "--json").json["onlyTheRunKnows"][0]["grantId"] == grant["grantId"]

    assert cli.main("run", "weekly").code == 0
    assert (cli.home / "ledger").read_text().splitlines() == ["find old", "erase [1, 2, 3] weekly"]
    text = f"step purge of the saved plan weekly, version {grant['step']['version'][:12]}"
    assert text in cli.main("grant", "list").out

    save(cli, FIND, PURGE, title="Every week")
    changed = cli.main("run", "weekly", "--json")
    assert changed.code == 3 and "and this is version" in changed.json["suspensions"][0]["found"][0]
    assert "stale: the plan changed" in cli.main("grant", "list").out
    [check] = [found for found in cli.main("doctor", "--json").json["checks"] if found["name"] == "grants"]
    assert check["status"] == "warning" and "is another version now, so new runs ask" in check["message"]
    save(cli, FIND, PURGE)
    [check] = [found for found in cli.main("doctor", "--json").json["checks"] if found["name"] == "grants"]
    assert check["status"] == "ok" and "1 open, 1 of them for steps of saved plans" in check["message"]
    rows = [row["facts"] for row in cli.main("audit", "show", "--json").json["rows"] if row["kind"] == "grant_made"]
    assert [(row["plan"], row["step"], row["per"]) for row in rows] == [("weekly", "purge", "day")]
    assert cli.main("audit", "verify").code == 0
    assert cli.main("grant", "revoke", grant["grantId"]).code == 0
    assert not [found for found in cli.main("doctor", "--json").json["checks"] if found["name"] == "grants"]


@needs_terminal
@pytest.mark.slow
@requirement("approval:grants")
@pytest.mark.parametrize("words", [(), ("--any", "note"), ("--any-other",)])
def test_a_person_at_a_terminal_sees_which_arguments_calls_may_have_and_others_ask(
    cli: Cli, terminal: Open, words: tuple[str, ...]
) -> None:
    person = terminal("grant", "add", "erase", "--arg", "ids=[1]", *words, "--uses", "5", "--for", "1h")
    person.expect("ids = [1]")
    person.expect("note may be anything" if words else 'note = "none"')
    person.expect("no other arguments")
    person.expect("Allow them? [")
    person.type("y")
    assert person.finish() == 0, person.text
    [grant] = cli.main("grant", "list", "--json").json["grants"]
    assert grant["free"] == (["note"] if words else [])
    codes = [cli.main("call", "erase", "--arg", "ids=[1]", *more).code for more in ((), ("--arg", "note=x"))]
    assert codes == [0, 0 if words else 3]


@needs_terminal
@pytest.mark.slow
@requirement("grants:step")
def test_a_tool_of_a_downstream_server_is_allowed_in_a_step(cli: Cli, terminal: Open) -> None:
    server: JsonValue = {"command": sys.executable, "args": [str(DOUBLE), "good", str(cli.home)]}
    cli.write("planwarden.json", {"mcpServers": {"d": server}})
    save(cli, step("note", "d_note", {"text": "weekly"}))
    assert cli.main("run", "weekly").code == 3
    person = terminal(*("grant", "add", "d_note", "--plan", "weekly", "--step", "note"), *ALLOW[-4:])
    person.expect("Allow them? [")
    person.type("y")
    assert person.finish() == 0, person.text
    assert cli.main("run", "weekly").code == 0
    assert [line for line in cli.ledger if line.startswith("note")] == ["note weekly"]


@needs_terminal
@pytest.mark.slow
@requirement("grants:step")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--plan", "weakly"), "did you mean 'weekly'"),
        (("--step", "purg"), "(did you mean 'purge'?)"),
        (("--uses-per-day", "0"), "uses is 0; it must be between 1 and 1000"),
        (("--for", "91d"), "lasts at most 90 days"),
    ],
)
def test_what_cannot_be_allowed_is_refused_with_a_sentence(
    cli: Cli, terminal: Open, words: tuple[str, ...], said: str
) -> None:
    person = terminal(*ALLOW, *words)
    person.expect(said)
    assert person.finish() == 2 and "Allow them?" not in person.text
    assert cli.main("grant", "list", "--json").json["grants"] == []


@requirement("grants:step")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--plan", "weekly", "--uses-per-day", "1"), "--plan and --step go together"),
        (("--step", "purge", "--uses", "1"), "--plan and --step go together"),
        (("--plan", "weekly", "--step", "purge", "--uses", "1"), "has --uses-per-day, and not --uses"),
        (("--plan", "weekly", "--step", "purge"), "has --uses-per-day"),
        (("--uses-per-day", "1"), "a grant has --uses"),
        ((), "a grant has --uses"),
        (("--plan", "weekly", "--step", "purge", "--uses-per-day", "1"), "is made by a person in a terminal"),
    ],
)
def test_options_that_do_not_go_together_and_programs_are_refused(cli: Cli, words: tuple[str, ...], said: str) -> None:
    refused = cli.main("grant", "add", "erase", "--for", "1h", *words)
    assert refused.code != 0 and said in refused.err
