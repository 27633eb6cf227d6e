"""`grant` for a step of a saved plan and `once`: what a person allows ahead of time or frees, and who may not."""

import json
from typing import Any

import pytest
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.cli.support import Cli, Open, at_terminal, step

ALLOW = ("grant", "add", "erase", "--plan", "weekly", "--step", "purge", "--uses-per-day", "9", "--for", "90d")
FIND = step("find", "find", {"topic": "old"})
PURGE = step("purge", "erase", {"ids": {"$from": "find", "pointer": "/ids"}, "note": "weekly"})


@pytest.fixture(autouse=True)
def plans(cli: Cli) -> None:
    save(cli, FIND, PURGE)


def save(cli: Cli, *steps: dict[str, JsonValue], title: str = "Weekly") -> None:
    (cli.home / "plans").mkdir(exist_ok=True)
    (cli.home / "plans" / "weekly.json").write_text(json.dumps({"title": title, "todoList": steps}))


@at_terminal
@requirement("grants:step")
def test_a_person_allows_a_step_and_its_runs_do_not_ask_until_the_plan_changes(cli: Cli, terminal: Open) -> None:
    code = terminal(*ALLOW).play(
        "Step: purge of the saved plan weekly",
        'ids = {"$from": "find", "pointer": "/ids"}: any value of step find',
        'note = "weekly"',
        "At most 9 calls a day (UTC), for the next 90 days",
        *("Allow them? [", "> y", "9 of 9 left today (UTC)"),
    )
    assert code == 0
    [grant] = cli.main("grant", "list", "--open", "--json").json["grants"]
    assert (grant["step"]["plan"], grant["step"]["stepId"], grant["uses"]) == ("weekly", "purge", 9)

    foreseen = cli.main("check", "weekly")
    assert f"its risk is dangerous; grant {grant['grantId'][:8]} lets it through" in foreseen.out
    assert cli.main("check", "weekly", "--json").json["onlyTheRunKnows"][0]["grantId"] == grant["grantId"]

    ran = cli.main("run", "weekly")
    assert ran.code == 0 and f"(allowed by grant {grant['grantId'][:8]})" in ran.out
    assert cli.ledger == ["find old", "erase [1, 2, 3] weekly"]
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


@at_terminal
@requirement("approval:grants")
@pytest.mark.parametrize("words", [(), ("--any", "note"), ("--any-other",)])
def test_a_person_at_a_terminal_sees_which_arguments_calls_may_have_and_others_ask(
    cli: Cli, terminal: Open, words: tuple[str, ...]
) -> None:
    person = terminal("grant", "add", "erase", "--arg", "ids=[1]", *words, "--uses", "5", "--for", "1h")
    note = "note may be anything" if words else 'note = "none"'
    assert person.play("ids = [1]", note, "no other arguments", "Allow them? [", "> y") == 0, person.text
    [grant] = cli.main("grant", "list", "--json").json["grants"]
    assert grant["free"] == (["note"] if words else [])
    codes = [cli.main("call", "erase", "--arg", "ids=[1]", *more).code for more in ((), ("--arg", "note=x"))]
    assert codes == [0, 0 if words else 3]


@at_terminal
@requirement("grants:step")
def test_what_cannot_be_allowed_is_refused_with_a_sentence(cli: Cli, terminal: Open) -> None:
    for words, said in (
        (("--plan", "weakly"), "did you mean 'weekly'"),
        (("--step", "purg"), "(did you mean 'purge'?)"),
        (("--uses-per-day", "0"), "uses is 0; it must be between 1 and 1000"),
        (("--for", "91d"), "lasts at most 90 days"),
    ):
        person = terminal(*ALLOW, *words)
        assert person.play(said) == 2 and "Allow them?" not in person.text
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


@at_terminal
@requirement("rules:once")
def test_a_second_call_with_the_key_of_a_first_is_refused_until_a_person_at_a_terminal_frees_it(
    cli: Cli, terminal: Open
) -> None:
    with (cli.home / "planwarden.toml").open("a") as file:
        file.write('\n[tools."erase"]\nrisk = "read"\nonce = ["/ids/0", "/note"]\n')

    def run(*ids: int) -> dict[str, Any]:
        steps: JsonValue = [step("purge", "erase", {"ids": list(ids), "note": "7"})]
        return cli.main("run", cli.write("plan.json", {"todoList": steps}), "--json").json

    first, refused = run(1), run(1, 2)
    assert first["steps"][0]["actualToolCalls"][0]["once"] == {"/ids/0": 1, "/note": "7"}
    assert refused["error"]["code"] == "duplicate_effect" and cli.ledger == ["erase [1] 7"]
    assert 'once per ids/0 = 1, note = "7"' in cli.main("show", first["threadId"]).out
    shown = cli.main("show", refused["threadId"]).out
    assert "duplicate_effect" in shown and """planwarden once forget erase --key ids/0=1 --key 'note="7"'""" in shown
    [key] = cli.main("once", "list", "--json").json["keys"]
    assert (key["toolName"], key["values"], key["callId"]) == ("erase", {"/ids/0": 1, "/note": "7"}, "purge:1")
    assert key["executionId"] == first["executionId"]
    assert 'note = "7"' in cli.main("once", "list", "--tool", "erase").out
    assert "No call has a key." in cli.main("once", "list", "--tool", "find").out

    forget = ("once", "forget", "erase", "--key", "note=7", "--key")
    piped = cli.spawn(*forget, "ids/0=1", stdin="y\n")
    assert piped.code == 2 and "at a terminal" in piped.err
    assert terminal(*forget, "ids/0=2").play("no call of 'erase' has that key") == 2
    facts = ("Tool: erase", 'note = "7"', "call purge:1 of execution", "Forget it? [")
    assert terminal(*forget, "ids/0=1.0").play(*facts, "> ", "Nothing was forgotten.") == 1
    assert terminal(*forget, "/ids/0=1").play("Forget it? [", "> y", "The next call with this key happens.") == 0
    assert cli.main("retry", refused["threadId"]).code == 0 and cli.ledger == ["erase [1] 7", "erase [1, 2] 7"]
    rows = [row for row in cli.main("audit", "show", "--json").json["rows"] if "once" in row["kind"]]
    assert [row["kind"] for row in rows] == ["once_taken", "once_refused", "once_forgotten", "once_taken"]
    assert (rows[2]["facts"]["tool"], rows[2]["facts"]["assurance"]) == ("erase", "human")
    assert cli.main("audit", "verify").code == 0
