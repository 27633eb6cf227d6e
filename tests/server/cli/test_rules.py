"""`rules`, `rules check` and `rules replay`, and what `doctor` says of rules."""

import pytest

from tests.kit import Cli, requirement

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
    assert "  1  allow erase when ids/0 is at most 9, at most 1 calls per day (small ones)" in shown.out
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


@requirement("rules:commands")
def test_doctor_names_the_rule_that_is_broken(cli: Cli) -> None:
    write(cli, RULES.replace("domain", "domaine"))
    report = cli.main("doctor")
    says = "rule 2: when.'note' has the unknown key 'domaine' (did you mean 'domain'?)"
    assert report.code == 1 and says in " ".join(report.out.split())
    assert cli.main("rules").code == 2


@requirement("rules:commands")
@pytest.mark.parametrize(
    ("ids", "note", "decision", "because", "verdicts"),
    [
        ("[5]", "x", "allow", "rule 1 decides; it takes 1 of 1, and asks when that much is not left", ["yes"]),
        ("[50]", "http://example.com", "ask", "rule 2 decides", ["no", "yes"]),
        ("[50]", "http://x.example", "ask", "no rule decides; the risk of the tool is dangerous", ["no", "no", "no"]),
        ("[500]", "x", "ask", "rule 2 cannot be evaluated", ["no", "unknown"]),
        ("[500]", "a@b.c", "deny", "rule 3 of the operator denies it: those are kept", ["no", "no", "yes"]),
    ],
)
def test_the_check_says_which_rule_decides_and_why(
    cli: Cli, ids: str, note: str, decision: str, because: str, verdicts: list[str]
) -> None:
    write(cli, RULES)
    words = ("rules", "check", "erase", "--arg", f"ids={ids}", "--arg", f"note={note}")
    found = cli.main(*words, "--json").json
    assert (found["decision"], found["because"]) == (decision, because)
    assert [rule["verdict"] for rule in found["rules"]] == verdicts
    assert because in cli.main(*words).out and cli.ledger == []


@requirement("rules:commands")
def test_the_check_takes_a_tool_of_a_host_and_says_what_is_wrong_with_the_call(cli: Cli) -> None:
    write(cli, '[[rules]]\ntool="*/Bash"\nwhen={ command = { prefix = "ls " } }\nthen="allow"\n')
    found = cli.main("rules", "check", "claude-code/Bash", "--json-args", '{"command": "ls -l"}', "--json").json
    assert (found["decision"], found["problems"]) == ("allow", [])
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
    assert cli.main("rules", "replay", "--days", "0").code == 2


@requirement("rules:calls")
def test_the_call_command_goes_by_the_rules_too(cli: Cli) -> None:
    write(cli, RULES.replace('when = { note = { domain = "example.com" } }', 'when = { note = { prefix = "x" } }'))
    passed = cli.main("call", "erase", "--arg", "ids=[1]")
    denied = cli.main("call", "erase", "--arg", "ids=[100]")
    assert passed.code == 0 and "(allowed by rule 1)" in passed.err + passed.out
    assert denied.code == 1 and "rule 3 of the operator denies it: those are kept" in denied.err + denied.out
    assert cli.ledger == ["erase [1] none"]
