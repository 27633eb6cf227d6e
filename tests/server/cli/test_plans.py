"""`planwarden plans`, `plans show|check|keep`, `run NAME` with inputs, and what doctor and the audit say of plans."""

import io
import json
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.agent.core.plan import Plan, ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.server.cli.commands.plans import choose_inputs
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.plans.keeping import ProposedInput, propose_inputs
from tests.requirements import requirement
from tests.server.cli.support import ERASE, Cli, step
from tests.server.cli.test_doctor import statuses_of

FIND = """
title: Find ids
description: Looks them up.
inputs:
  properties:
    topic: {type: string, description: What to look for}
    limit: {type: integer, default: 3}
  required: [topic]
todoList:
  - id: look
    description: Look it up
    toolCalls:
      - toolName: find
        arguments: {topic: {$from: inputs, pointer: /topic}}
"""


def save(cli: Cli, name: str, text: str = FIND, folder: str = "plans") -> Path:
    path = cli.home / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_plans_are_listed_and_shown_with_what_they_take_and_what_cannot_be_used(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No saved plans" in cli.main("plans").out
    path, broken = save(cli, "find-ids.yaml"), save(cli, "broken.yaml", "title: [")
    save(cli, "of-repository.yaml", folder="repository/.planwarden/plans")
    with (cli.home / "planwarden.toml").open("a") as file:
        file.write('\n[plans]\nfolders = [".planwarden/plans"]\n')
    document = cli.main("plans", "--json").json
    [plan] = document["plans"]
    assert (plan["name"], plan["source"], len(plan["version"])) == ("find-ids", "home", 64)
    assert [entry["file"] for entry in document["unusable"]] == [str(broken)] and document["hidden"] == []
    monkeypatch.chdir(cli.home / "repository")
    listed = cli.main("plans").out
    assert "find-ids       Find ids" in listed and "takes topic: string, limit: integer = 3" in listed
    assert f"{broken}: not valid YAML: line " in listed and "of-repository  Find ids  from .planwarden/plans" in listed
    shown = cli.main("plans", "show", "find-ids").out
    for expected in ("find-ids  Find ids", "Looks them up.", "topic: string", "What to look for", "look  Look it up"):
        assert expected in shown
    assert str(path) in shown and f"--home {cli.home} run find-ids" in shown
    document = cli.main("plans", "show", "find-ids", "--json").json
    assert document["plan"]["todoList"][0]["id"] == "look" and document["version"][:12] in shown
    for words, said in (
        (("plans", "show", "find_id"), "did you mean 'find-ids'?"),
        (("run", "broken"), "plans/broken.yaml': not valid YAML"),
        (("run", "nothing"), "there is no saved plan 'nothing'"),
    ):
        refused = cli.main(*words)
        assert refused.code == 2 and said in refused.err


@requirement("plans:version")
def test_a_saved_plan_runs_by_name_and_show_and_audit_say_which_version(cli: Cli) -> None:
    save(cli, "find-ids.yaml")
    ran = cli.main("run", "find-ids", "--input", "topic=007", "--json")
    assert (ran.code, cli.ledger) == (0, ["find 007"])
    version = cli.main("plans", "show", "find-ids", "--json").json["version"]
    assert ran.json["savedPlan"] == {"name": "find-ids", "version": version}
    shown = cli.main("show", ran.json["threadId"])
    assert f"Saved plan: find-ids, version {version[:12]}" in shown.out
    audit = cli.main("audit", "show")
    assert "plan run" in audit.out and "plan=find-ids" in audit.out and f"version={version[:16]}" in audit.out
    assert cli.main("audit", "verify").code == 0


def test_inputs_come_from_a_file_and_from_the_command_line(cli: Cli) -> None:
    save(cli, "find-ids.yaml")
    given = cli.home / "inputs.yaml"
    given.write_text("topic: from the file\nlimit: 5\n")
    assert cli.main("run", "find-ids", "--inputs", str(given)).code == 0
    assert cli.main("run", "find-ids", "--inputs", str(given), "--input", "topic=typed").code == 0
    assert cli.ledger == ["find from the file", "find typed"]
    for words, said in (
        ((), '"topic" is a required property'),
        (("--input", "topic=x", "--input", "limit=many"), "limit"),
        (("--input", "topic=x", "--input", "other=1"), "other"),
        (("--input", "topic"), "--input 'topic' is not NAME=VALUE"),
        (("--inputs", str(cli.home / "gone.json")), "cannot read the inputs"),
        (("--inputs", cli.write("list.json", [])), "are not an object"),
    ):
        refused = cli.main("run", "find-ids", *words)
        assert refused.code == 2 and said in refused.err
    assert len(cli.ledger) == 2


def test_a_name_is_a_saved_plan_first_and_any_file_of_a_plan_runs_too(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cli.home)
    (cli.home / "both").write_text(json.dumps({"todoList": [step("find", "find", {"topic": "file"})]}))
    assert cli.main("run", "both").code == 0
    refused = cli.main("run", "both", "--input", "topic=x")
    assert refused.code == 2 and "takes no inputs" in refused.err
    ran = cli.main("run", str(save(cli, "both.yaml", folder="other")), "--input", "topic=other", "--json")
    assert (ran.code, ran.json["goal"]) == (0, "Find ids") and "savedPlan" not in ran.json
    save(cli, "both.yaml")
    assert cli.main("run", "both", "--input", "topic=saved").code == 0
    assert cli.ledger == ["find file", "find other", "find saved"]


def test_check_says_whether_a_plan_can_run_here(cli: Cli) -> None:
    save(cli, "find-ids.yaml")
    good = cli.main("plans", "check", "find-ids")
    assert good.code == 0 and "look" in good.out and "flowchart" in good.out
    for words in (("find-ids",), ("find-ids", "--input", "topic=x"), ("find-ids", "--json"), ("none",)):
        one, other = cli.main("plans", "check", *words), cli.main("check", *words)
        assert one == other and one.code == (2 if words == ("none",) else 0)
    graph = cli.main("plans", "graph", "find-ids")
    assert graph.code == 0 and graph.out.startswith("flowchart") and graph.out.strip() in good.out
    assert cli.main("plans", "graph", "find-ids", "--json").json["graph"].strip() == graph.out.strip()
    assert cli.main("plans", "check", "find-ids", "--input", "limit=3").code == 2
    bad = cli.main("plans", "check", str(save(cli, "odd.yaml", FIND.replace("toolName: find", "toolName: fnd"))))
    assert bad.code == 2 and "unknown tools: 'fnd'" in bad.err
    assert cli.ledger == []


def test_doctor_names_every_file_that_is_no_plan_and_every_taken_name(cli: Cli) -> None:
    assert statuses_of(cli.main("doctor", "--json").json)["plans"] == "off"
    save(cli, "find-ids.yaml")
    assert statuses_of(cli.main("doctor", "--json").json)["plans"] == "ok"
    save(cli, "broken.json", "{")
    save(cli, "run_goal.yaml")
    save(cli, "plan_and_run.yaml")
    save(cli, "find-ids.yaml", folder="more")
    with (cli.home / "planwarden.toml").open("a") as file:
        file.write(f'\n[plans]\nas_tools = true\nfolders = ["{cli.home}/more"]\n')
    report = cli.main("doctor")
    assert report.code == 0 and "plans" in report.out
    for expected in (
        "broken.json: not valid JSON",
        f"more/find-ids.yaml: not used: {cli.home}/plans/find-ids.yaml has its name",
        "run_goal.yaml: `planwarden run` runs it, but it is not a tool of its own: planwarden has a tool of this name",
        "plan_and_run.yaml: `planwarden run` runs it, but hosts do not offer it as a prompt",
    ):
        assert expected in report.out.replace("\n", "")
    assert statuses_of(cli.main("doctor", "--json").json)["plans"] == "warning"


def test_a_finished_run_becomes_a_plan_whose_goal_values_are_inputs(cli: Cli) -> None:
    script = cli.write(
        "script.json",
        {
            "replies": [
                {
                    "when": {"purpose": "plan"},
                    "reply": {"plan": {"todoList": [step("look", "find", {"topic": "old letters"})]}},
                },
                {"when": {"purpose": "synthesize"}, "reply": {"content": "Three."}},
            ]
        },
    )
    ran = cli.main("run-goal", "Find the ids of old letters", "--model", f"scripted:{script}", "--json")
    thread = str(ran.json["threadId"])
    kept = cli.main("plans", "keep", thread[:12], "letters")
    path = cli.home / "plans" / "letters.yaml"
    assert kept.code == 0 and f"{path}: written; it takes topic" in kept.out
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == (
        f"# Kept by `planwarden plans keep` from thread {thread}.\n"
        "title: Find the ids of old letters\n"
        "inputs:\n  type: object\n  properties:\n    topic:\n      type: string\n      default: old letters\n"
        "todoList:\n- id: look\n  description: use find\n  toolCalls:\n  - toolName: find\n    arguments:\n"
        "      topic:\n        $from: inputs\n        pointer: /topic\n"
    )
    assert cli.main("run", "letters").code == 0
    assert cli.main("run", "letters", "--input", "topic=new ones").code == 0
    assert cli.ledger == ["find old letters", "find old letters", "find new ones"]
    run_again = cli.main("run", "letters", "--input", "topic=mine", "--json").json["threadId"]
    assert cli.main("plans", "keep", run_again, "mine", "--json").json["inputs"] == ["topic"]
    assert cli.main("run", "mine").code == 0 and cli.ledger[3:] == ["find mine"] * 2


def test_what_cannot_be_kept_is_refused_and_nothing_is_written(cli: Cli) -> None:
    waiting = cli.main("run", cli.write("plan.json", {"todoList": [ERASE]}), "--json").json["threadId"]
    done = cli.main("run", cli.write("plan.json", {"todoList": [step("find", "find", {"topic": "x"})]}), "--json").json[
        "threadId"
    ]
    save(cli, "taken.json", "{")
    before = sorted((cli.home / "plans").iterdir())
    for words, said in (
        ((waiting, "new"), "has no finished run"),
        (("nothing", "new"), "there is no thread 'nothing'"),
        ((done, "a b"), "is no name of a plan"),
        ((done, "../up"), "is no name of a plan"),
        ((done, "taken"), "there is a plan 'taken' already"),
    ):
        refused = cli.main("plans", "keep", *words)
        assert refused.code == 2 and said in refused.err
    assert sorted((cli.home / "plans").iterdir()) == before


class Typed(io.StringIO):
    """A keyboard, or a screen, that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_at_a_terminal_each_value_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    proposed = [ProposedInput("to", "Ada", "send"), ProposedInput("copies", 3, "send")]
    screen = Typed()
    assert choose_inputs(Terminal(screen, Typed("\nno\n")), proposed) == proposed[:1]
    assert "Make to of step send, now Ada, an input?" in screen.getvalue()
    assert choose_inputs(Terminal(io.StringIO(), io.StringIO()), proposed) == proposed


def test_values_are_proposed_once_as_words_of_their_own_and_under_free_names() -> None:
    plan = _parse(
        step("a", "find", {"topic": "Ada", "sub": {"list": ["Ada", "Eve", 3, 3.5, True, "3"]}}),
        step("b", "find", {"topic": "Eve", "other": {"$from": "a", "pointer": "/Ada"}, "x": "d"}),
        step("c", "find", {"topic": {"$text": "Ada {x}", "with": {"x": {"$from": "a"}}}, "n": 30}),
    )
    goal = "Send Ada and Eve d 3 letters for 3.5 EUR, not 300"
    found = propose_inputs(plan, goal)
    assert [(entry.name, entry.value) for entry in found] == [
        ("topic", "Ada"),
        ("list", "Eve"),
        ("list_2", 3),
        ("list_3", 3.5),
    ]
    assert propose_inputs(plan, None) == ()
    assert propose_inputs(_parse(step("inputs", "find", {"topic": "Ada"})), goal) == ()


def _parse(*steps: JsonValue) -> Plan:
    return parse_plan({"todoList": list(steps)}, author="caller", tools={"find": ToolFacts(is_blocking=False)})[0]
