"""What is decided ahead of time: `rules`, `grant` for calls and steps of saved plans, and `once`."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import JsonValue

from tests.kit import requirement
from tests.server.cli.support import Cli, CommandResult, Open, at_terminal, step

TOOLS = '[tools]\npython = ["tools.py"]\n'
RULES = """
[[rules]]
tool = "erase"
when = { "ids/0" = { max = 9 } }
then = "allow"
budget = [{ count = 1, per = "day" }]
because = "small ones"
[[rules]]
tool = "erase"
when = { note = { domain = "example.com" } }
then = "ask"
[[rules]]
tool = "erase"
when = { "ids/0" = { min = 100 } }
then = "deny"
because = "those are kept"
"""


def write(cli: Cli, text: str) -> None:
    (cli.home / "planwarden.toml").write_text(TOOLS + text)


@requirement("rules:commands")
def test_the_list_shows_each_rule_in_words_and_what_may_be_a_slip(cli: Cli) -> None:
    more = (("eraze", "deny"), ("eras*", "deny"), ("erase", "ask"))
    write(cli, RULES + "".join(f"[[rules]]\ntool = '{tool}'\nthen = '{then}'\n" for tool, then in more))
    shown = cli.main("rules")
    assert shown.code == 0
    assert "  1  allow erase when ids/0 is at most 9, at most 1 call per day (small ones)" in shown.out
    found = cli.main("rules", "--json").json
    assert [rule["then"] for rule in found["rules"]] == ["allow", "ask", "deny", "deny", "deny", "ask"]
    assert found["notes"] == [
        "rule 1: ids/0 has no lower end, so negative numbers match too; bind both ends with min and max",
        "rule 4 names 'eraze', and there is no such tool (did you mean 'erase'?)",
        "rule 6 never decides: rule 5 matches every call of eras* first",
    ]
    check = next(check for check in cli.main("doctor", "--json").json["checks"] if check["name"] == "rules")
    assert (check["status"], check["facts"]["rules"], len(check["facts"]["notes"])) == ("warning", 6, 3)
    write(cli, '[[rules]]\ntool="wipe"\nthen="allow"\n[[rules]]\ntool="requestInput"\nthen="allow"')
    notes = " ".join(cli.main("rules", "--json").json["notes"])
    assert "its risk is critical" in notes and "rules do not answer for people" in notes
    write(cli, "")
    assert "no rules" in cli.main("rules").out
    write(cli, RULES.replace("domain", "domaine"))
    report = cli.main("doctor")
    says = "rule 2: when.'note' has the unknown key 'domaine' (did you mean 'domain'?)"
    assert report.code == 1 and says in " ".join(report.out.split())
    assert cli.main("rules").code == 2


@requirement("rules:commands")
def test_the_check_says_which_rule_decides_and_why_and_what_is_wrong_with_the_call(cli: Cli) -> None:
    write(cli, RULES)
    for ids, note, decision, because, verdicts in (
        ("[5]", "x", "allow", "rule 1 decides; it takes 1 of 1, and asks a person when less is left", ["yes"]),
        ("[50]", "http://example.com", "ask", "rule 2 decides", ["no", "yes"]),
        ("[50]", "http://x.example", "ask", "no rule decides; the risk of the tool is dangerous", ["no", "no", "no"]),
        ("[500]", "x", "ask", "rule 2 cannot be evaluated", ["no", "unknown"]),
        ("[500]", "a@b.c", "deny", "rule 3 of the operator denies it: those are kept", ["no", "no", "yes"]),
    ):
        words = ("rules", "check", "erase", "--arg", f"ids={ids}", "--arg", f"note={note}")
        found = cli.main(*words, "--json").json
        assert (found["decision"], found["because"]) == (decision, because)
        assert [rule["verdict"] for rule in found["rules"]] == verdicts
        assert because in cli.main(*words).out and cli.ledger == []
    write(cli, '[[rules]]\ntool="*/Bash"\nwhen={ command = { prefix = "ls " } }\nthen="allow"\n')
    found = cli.main("rules", "check", "claude-code/Bash", "--json-args", '{"command": "ls -l"}', "--json").json
    assert (found["decision"], found["problems"]) == ("allow", [])
    assert "no such tool (did you mean 'erase'?); its risk" in cli.main("rules", "check", "eraes").out
    wrong = cli.main("rules", "check", "erase", "--arg", "ids=7").out
    assert "the call would fail:" in wrong
    asks = cli.main("rules", "check", "requestInput", "--arg", "message=who?").out
    assert "rules do not answer for people" in asks
    assert cli.main("rules", "check", "erase", "--arg", "ids").code == 2


@requirement("rules:commands")
def test_the_replay_says_what_the_rules_would_have_done_with_the_calls_of_the_log(cli: Cli) -> None:
    write(cli, "")
    for ids in ("[1]", "[2]", "[200]"):
        assert cli.main("call", "erase", "--arg", f"ids={ids}").code == 3
    assert cli.main("call", "find", "--arg", "topic=x").code == 0
    write(cli, RULES.replace('then = "ask"', 'then = "deny"') + '[[rules]]\ntool="find"\nthen="ask"')
    found = cli.main("rules", "replay", "--json").json
    assert (found["executions"], found["calls"], found["isWhole"], found["unreadable"]) == (4, 4, True, 0)
    counts = {row["rule"]: (row["allow"], row["ask"], row["deny"], row["spent"]) for row in found["counts"]}
    # The note of every call is "none", which is no address: rule 2 cannot be evaluated.
    assert counts == {1: (1, 1, 0, 1), 2: (0, 1, 0, 0), 4: (0, 1, 0, 0)}
    assert (found["askedLess"], found["askedMore"], found["denied"]) == (1, 1, 0)
    assert {(change["was"], change["would"], change["rule"]) for change in found["changes"]} == {
        ("ran", "ask", 4),
        ("asked", "allow", 1),
    }
    shown = cli.main("rules", "replay", "--days", "1")
    assert shown.code == 0 and "rule 1: 1 would run without a question, 1 would be asked about (1 because" in shown.out
    # What rules and people decided then; a question to a person is not for rules, and this tool is not there any more.
    rejected = cli.main("list", "--json").json["suspensions"][0]["suspensionId"]
    assert cli.main("reject", rejected).code == 0 and cli.main("call", *ASKS).code == 3
    assert cli.main("call", "erase", "--arg", "ids=[5]").code == 0
    assert cli.main("call", "erase", "--arg", "ids=[500]", "--arg", "note=a@b.c").code == 1
    cli.set_risk("erase", "confirm")
    assert cli.main("call", "erase", "--arg", "ids=[50]", "--arg", "note=a@x.y", "--yes").code == 0
    write(
        cli,
        '[[rules]]\ntool="erase"\nwhen = { "ids/0" = { min = 100 } }\nthen="deny"\n[[rules]]\ntool="f*"\nthen="allow"',
    )
    tools = cli.home / "tools.py"
    tools.write_text(tools.read_text().replace("async def find(", "async def seek("))
    found = cli.main("rules", "replay", "--json").json
    assert (found["calls"], found["askedLess"], found["askedMore"], found["denied"]) == (7, 0, 1, 1)
    assert {(change["was"], change["would"], change.get("rule")) for change in found["changes"]} == {
        ("allowed", "ask", None),
        ("asked", "deny", 1),
    }


PAYING = """
import planwarden
@planwarden.tool(risk="dangerous")
def pay(amount: float, fails: bool = False) -> str:
    "Pay."
    if fails:
        raise planwarden.ToolError("nothing was paid", retryable=True)
    return "paid"
@planwarden.tool(risk="read")
def look(amount: int = 5000) -> str:
    "Look."
    return "seen"
"""
PAY_RULES = """
[[rules]]
tool = "pay"
then = "allow"
budget = [{ sum = "amount", limit = 0.3, per = "day" }]
[[rules]]
tool = "look"
when = { amount = { min = 1000 } }
then = "deny"
"""


@requirement("rules:commands")
def test_a_replay_with_unchanged_rules_changes_nothing(cli: Cli) -> None:
    (cli.home / "tools.py").write_text(PAYING)
    write(cli, PAY_RULES)
    for code, arguments in (
        (1, '{"amount": 0.3, "fails": true}'),
        (0, '{"amount": 0.1}'),
        (0, '{"amount": 0.2}'),
        (3, '{"amount": 0.01}'),
    ):
        assert cli.main("call", "pay", "--json-args", arguments).code == code, arguments
    assert cli.main("call", "look").code == 1
    found = cli.main("rules", "replay", "--json").json
    assert (found["calls"], found["changes"]) == (5, [])
    assert [(row["rule"], row["allow"], row["spent"], row["deny"]) for row in found["counts"]] == [
        (1, 3, 1, 0),
        (2, 0, 0, 1),
    ]


ASKS = ("displayConfirmation", "--arg", "action=go")
ALLOW = ("grant", "add", "erase", "--plan", "weekly", "--step", "purge", "--uses-per-day", "9", "--for", "90d")
FIND = step("find", "find", {"topic": "old"})
PURGE = step("purge", "erase", {"ids": {"$from": "find", "pointer": "/ids"}, "note": "weekly"})


@pytest.fixture(autouse=True)
def plans(cli: Cli) -> None:
    save(cli, FIND, PURGE)


def save(cli: Cli, *steps: dict[str, JsonValue], title: str = "Weekly") -> None:
    cli.write("plans/weekly.json", {"title": title, "todoList": [*steps]})


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
    assert check["status"] == "warning" and "the plan has changed since then, so new runs ask" in check["message"]
    save(cli, FIND, PURGE)
    assert cli.main("run", "weekly").code == 0 and cli.ledger[-1] == "erase [1, 2, 3] weekly"
    rows = [row["facts"] for row in cli.main("audit", "show", "--json").json["rows"] if row["kind"] == "grant_made"]
    assert [(row["plan"], row["step"], row["per"]) for row in rows] == [("weekly", "purge", "day")]
    assert cli.main("audit", "verify").code == 0
    assert cli.main("grant", "revoke", grant["grantId"]).code == 0
    assert cli.main("grant", "list", "--open", "--json").json["grants"] == []


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


@requirement("grants:step")
def test_options_that_do_not_go_together_and_programs_are_refused(cli: Cli) -> None:
    for words, said in (
        (("--plan", "weekly", "--uses-per-day", "1"), "--plan and --step go together"),
        (("--step", "purge", "--uses", "1"), "--plan and --step go together"),
        (("--plan", "weekly", "--step", "purge", "--uses", "1"), "has --uses-per-day, and not --uses"),
        (("--plan", "weekly", "--step", "purge"), "has --uses-per-day"),
        (("--uses-per-day", "1"), "a grant has --uses"),
        ((), "a grant has --uses"),
        (("--plan", "weekly", "--step", "purge", "--uses-per-day", "1"), "is made by a person in a terminal"),
    ):
        refused = cli.main("grant", "add", "erase", "--for", "1h", *words)
        assert refused.code != 0 and said in refused.err


@at_terminal
@requirement("rules:once")
def test_a_second_call_with_the_key_of_a_first_is_refused_until_a_person_at_a_terminal_frees_it(
    cli: Cli, terminal: Open, typing: Callable[..., CommandResult]
) -> None:
    cli.add_settings('[tools."erase"]\nrisk = "read"\nonce = ["/ids/0", "/note"]')

    def run(*ids: int) -> dict[str, Any]:
        steps: JsonValue = [step("purge", "erase", {"ids": list(ids), "note": "7"})]
        return cli.main("run", cli.write("plan.json", {"todoList": steps}), "--json").json

    first, refused = run(1), run(1, 2)
    assert refused["error"]["code"] == "duplicate_effect" and cli.ledger == ["erase [1] 7"]
    assert 'once per ids/0 = 1, note = "7"' in cli.main("show", first["threadId"]).out
    shown = cli.main("show", refused["threadId"]).out
    assert """planwarden once forget erase --key ids/0=1 --key 'note="7"'""" in shown
    [key] = cli.main("once", "list", "--json").json["keys"]
    assert (key["toolName"], key["values"], key["callId"]) == ("erase", {"/ids/0": 1, "/note": "7"}, "purge:1")
    assert 'note = "7"' in cli.main("once", "list", "--tool", "erase").out
    assert "No call has a key." in cli.main("once", "list", "--tool", "find").out

    forget = ("once", "forget", "erase", "--key", "note=7", "--key")
    piped = cli.spawn(*forget, "ids/0=1", stdin="y\n")
    assert piped.code == 2 and "at a terminal" in piped.err
    assert terminal(*forget, "ids/0=2").play("no call of 'erase' has that key") == 2
    facts = ("Tool: erase", 'note = "7"', "call purge:1 of execution", "Forget it? [")
    assert terminal(*forget, "ids/0=1.0").play(*facts, "> ", "Nothing was forgotten.") == 1
    assert terminal(*forget, "/ids/0=1").play("Forget it? [", "> y", "The next call with this key will happen.") == 0
    assert cli.main("retry", refused["threadId"]).code == 0 and cli.ledger == ["erase [1] 7", "erase [1, 2] 7"]
    assert typing(*forget, "ids/0=1", "--json", typed="y\n").json["values"] == {"/ids/0": 1, "/note": "7"}
    row, _ = [row for row in cli.main("audit", "show", "--json").json["rows"] if row["kind"] == "once_forgotten"]
    assert (row["facts"]["tool"], row["facts"]["assurance"]) == ("erase", "human")
    assert cli.main("audit", "verify").code == 0
