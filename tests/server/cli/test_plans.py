"""`plans`, `run NAME`, `schedule`, and what doctor and the audit say of saved plans, schedules and hooks."""

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.core.plan.plan import ToolFacts
from planwarden.agent.core.plan.plan_parser import parse_plan
from planwarden.server.cli.commands.plans import choose_inputs
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.plans.plan_writer import ProposedInput, propose_inputs
from planwarden.server.views.listing import NOT_ATTENDED
from tests.requirements import requirement
from tests.server.cli.support import Cli, CommandResult, TypedTerminal, step
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


def test_plans_are_listed_and_shown_with_inputs_and_broken_ones_are_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No saved plans" in cli.main("plans").out
    path, broken = save(cli, "find-ids.yaml"), save(cli, "broken.yaml", "title: [")
    save(cli, "of-repository.yaml", folder="repository/.planwarden/plans")
    cli.add_settings('[plans]\nfolders = [".planwarden/plans"]')
    document = cli.main("plans", "--json").json
    [plan] = document["plans"]
    assert (plan["name"], plan["source"], len(plan["version"])) == ("find-ids", "home", 64)
    assert [entry["file"] for entry in document["unusable"]] == [str(broken)] and document["hidden"] == []
    monkeypatch.chdir(cli.home / "repository")
    listed = cli.main("plans").out
    assert "find-ids       Find ids" in listed and "takes topic: string, limit: integer = 3" in listed
    assert f"{broken}: not valid YAML: line " in listed and "of-repository  Find ids  from .planwarden/plans" in listed
    shown = cli.main("plans", "show", "find-ids").out
    for expected in (
        "find-ids  Find ids",
        "\n    Looks them up.\n",
        "topic: string",
        "What to look for",
        "look  Look it up",
    ):
        assert expected in shown
    assert str(path) in shown and f"--home {cli.home} run find-ids" in shown
    document = cli.main("plans", "show", "find-ids", "--json").json
    assert document["plan"]["todoList"][0]["id"] == "look" and document["version"][:12] in shown
    for words, said in (
        (("plans", "show", "find_id"), "did you mean 'find-ids'?"),
        (("run", "broken"), "plans/broken.yaml': not valid YAML"),
    ):
        refused = cli.main(*words)
        assert refused.code == 2 and said in refused.err


@requirement("plans:version")
def test_a_saved_plan_runs_by_name_with_its_inputs_and_show_and_audit_say_which_version(cli: Cli) -> None:
    save(cli, "find-ids.yaml")
    refused = cli.main("run", "find-ids")
    assert refused.code == 2 and '"topic" is a required property' in refused.err
    confused = cli.main("run", "find-ids", "--inputs", "topic=x")
    assert confused.code == 2 and "'topic=x': No such file or directory; --input takes NAME=VALUE" in confused.err
    inputs = cli.home / "inputs.yaml"
    inputs.write_text("topic: from the file\nlimit: 5\n")
    ran = cli.main("run", "find-ids", "--inputs", str(inputs), "--input", "topic=007", "--json")
    assert (ran.code, cli.ledger) == (0, ["find 007"])
    version = cli.main("plans", "show", "find-ids", "--json").json["version"]
    assert ran.json["savedPlan"] == {"name": "find-ids", "version": version}
    shown = cli.main("show", ran.json["threadId"])
    assert f"Saved plan: find-ids, version {version[:12]}" in shown.out
    audit = cli.main("audit", "show")
    assert "plan run" in audit.out and "plan=find-ids" in audit.out and f"version={version[:16]}" in audit.out


@requirement("key:once", "key:conflict")
def test_a_key_goes_on_with_its_run_whatever_became_of_the_plans_file(cli: Cli) -> None:
    path = save(cli, "find-ids.yaml")
    words = ("run", "find-ids", "--input", "topic=007", "--key", "k")
    first = cli.main(*words)
    for text in (FIND.replace("topic: {type: string", "topic: {type: integer"), FIND.replace("todoList", "todo"), None):
        path.unlink() if text is None else path.write_text(text)
        again = cli.main(*words)
        assert again.out == f"Key 'k' has started this before; nothing new was started.\n{first.out}", again
    for others in ((*words, "--input", "topic=008"), ("run", "other", *words[2:])):
        refused = cli.main(*others)
        assert refused.code == 2 and "key 'k' started execution" in refused.err and "nothing new" not in refused.out
    unknown = cli.main(*words[:-1], "new")
    assert unknown.code == 2 and "there is no saved plan 'find-ids'" in unknown.err
    assert cli.ledger == ["find 007"]
    file = save(cli, "other.yaml", folder="elsewhere")
    words = ("run", str(file), "--input", "topic=9", "--key", "file")
    first = cli.main(*words)
    file.unlink()
    assert cli.main(*words).out == f"Key 'file' has started this before; nothing new was started.\n{first.out}"
    for others in ((*words, "--input", "topic=8"), (*words[:-1], "new"), words[:-2]):
        refused = cli.main(*others)
        assert refused.code == 2 and f"cannot read the plan {str(file)!r}" in refused.err
    assert cli.ledger == ["find 007", "find 9"]


@requirement("key:conflict")
def test_one_and_true_are_different_inputs_of_a_key_whatever_became_of_the_plans_file(cli: Cli) -> None:
    path = save(cli, "find-ids.yaml", FIND.replace("topic: {type: string", "topic: {type: [integer, boolean]"))
    words = ("run", "find-ids", "--key", "k", "--input")
    first = cli.main(*words, "topic=1", "--json").json["executionId"]
    for text in (path.read_text(), FIND.replace("todoList", "todo"), None):
        path.unlink() if text is None else path.write_text(text)
        assert cli.main(*words, "topic=1", "--json").json["executionId"] == first
        refused = cli.main(*words, "topic=true")
        assert refused.code == 2 and "key 'k' started execution" in refused.err


def test_a_name_is_a_saved_plan_first_and_any_file_with_a_plan_runs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for words in (("find-ids", "--json"), ("none",)):
        one, other = cli.main("plans", "check", *words), cli.main("check", *words)
        assert one == other and one.code == (2 if words == ("none",) else 0)
    graph = cli.main("plans", "graph", "find-ids")
    assert graph.code == 0 and graph.out.startswith("flowchart") and graph.out.strip() in good.out
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
    save(cli, "find-ids.yaml", folder="more")
    cli.add_settings(f'[plans]\nas_tools = true\nfolders = ["{cli.home}/more"]')
    report = cli.main("doctor")
    assert report.code == 0 and "plans" in report.out
    for expected in (
        "broken.json: not valid JSON",
        f"more/find-ids.yaml: not used: {cli.home}/plans/find-ids.yaml has its name",
        "run_goal.yaml: `planwarden run` runs it, but it is not a tool of its own: planwarden has a tool of this name",
    ):
        assert expected in report.out.replace("\n", "")
    assert statuses_of(cli.main("doctor", "--json").json)["plans"] == "warning"


def test_a_finished_run_becomes_a_plan_whose_goal_values_are_inputs(cli: Cli) -> None:
    plan: JsonValue = {"todoList": [step("look", "find", {"topic": "old letters"})]}
    replies: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": plan}},
        {"when": {"purpose": "synthesize"}, "reply": {"content": "Three."}},
    ]
    script = cli.write("script.json", {"replies": replies})
    ran = cli.main("run-goal", "Find the ids of old letters", "--model", f"scripted:{script}", "--json")
    thread = str(ran.json["threadId"])
    kept = cli.main("plans", "keep", thread[:12], "letters")
    path = cli.home / "plans" / "letters.yaml"
    assert kept.code == 0 and f"{path}: written; it takes topic" in kept.out
    assert path.stat().st_mode & 0o777 == 0o600
    head, _, text = path.read_text().partition("\n")
    assert thread in head and "topic:\n      type: string\n      default: old letters\n" in text
    refused = cli.main("plans", "keep", thread, "letters")
    assert refused.code == 2 and "there is a plan 'letters' already" in refused.err
    assert "is not a name of a plan" in cli.main("plans", "keep", thread, "../up").err
    assert cli.main("run", "letters").code == 0
    run_again = cli.main("run", "letters", "--input", "topic=mine", "--json").json["threadId"]
    assert cli.main("plans", "keep", run_again, "mine", "--json").json["inputs"] == ["topic"]
    assert cli.main("run", "mine").code == 0
    assert cli.ledger == ["find old letters", "find old letters", "find mine", "find mine"]


def test_a_kept_plan_says_which_calls_a_model_chooses_in_each_run(cli: Cli) -> None:
    open_step: JsonValue = {"id": "look", "description": "Find letters", "requiredTools": ["find"]}
    call: JsonValue = {"toolName": "find", "arguments": {"topic": "letters"}}
    plan: JsonValue = {"todoList": [open_step, step("then", "find", {"topic": "x"})]}
    replies: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": plan}},
        {"when": {"purpose": "step"}, "reply": {"toolCalls": [call]}},
        {"when": {"purpose": "synthesize"}, "reply": {"content": "Three."}},
    ]
    script = cli.write("script.json", {"replies": replies})
    ran = cli.main("run-goal", "Find them", "--model", f"scripted:{script}", "--json")
    kept = cli.main("plans", "keep", str(ran.json["threadId"]), "open")
    said = "A model chooses the calls of look in each run, as in this one; write toolCalls into the file to fix them."
    assert kept.code == 0 and said in kept.out.replace("\n", " ")
    assert said in (cli.home / "plans" / "open.yaml").read_text().partition("\n")[0]


def test_at_a_terminal_each_value_is_offered_and_each_proposed_once_as_a_word_of_its_own_under_a_free_name() -> None:
    proposed = [ProposedInput("to", "Ada", "send"), ProposedInput("copies", 3, "send")]
    terminal = TypedTerminal("", "no")
    assert choose_inputs(terminal, proposed) == proposed[:1]
    assert "Make to of step send, now Ada, an input?" in terminal.shown
    assert choose_inputs(Terminal(io.StringIO(), io.StringIO()), proposed) == proposed
    steps: list[JsonValue] = [
        step("a", "find", {"topic": "Ada", "sub": {"list": ["Ada", "Eve", 3, 3.5, True, "3"]}}),
        step("b", "find", {"topic": "Eve", "other": {"$from": "a", "pointer": "/Ada"}, "x": "d"}),
        step("c", "find", {"topic": {"$text": "Ada {x}", "with": {"x": {"$from": "a"}}}, "n": 30}),
    ]
    plan, *_ = parse_plan({"todoList": steps}, author="caller", tools={"find": ToolFacts(is_blocking=False)})
    found = propose_inputs(plan, "Send Ada and Eve d 3 letters for 3.5 EUR, not 300")
    assert [(entry.name, entry.value) for entry in found] == [
        *(("topic", "Ada"), ("list", "Eve")),
        *(("list_2", 3), ("list_3", 3.5)),
    ]
    assert propose_inputs(plan, None) == ()


PLAN: dict[str, JsonValue] = {
    "inputs": {
        "type": "object",
        "properties": {"topic": {"type": "string"}, "many": {"type": "integer", "default": 3}},
        "required": ["topic"],
    },
    "todoList": [step("a", "find", {"topic": {"$from": "inputs", "pointer": "/topic"}})],
}
ADD = ("schedule", "add", "remind", "--cron", "0 9 * * 1", "--timezone", "Europe/Berlin", "--input", "topic=7")


def add(cli: Cli, *words: str) -> CommandResult:
    cli.write("plans/remind.json", PLAN)
    return cli.main(*ADD, *words)


@requirement("schedule:commands")
def test_a_schedule_is_added_listed_paused_resumed_and_removed(cli: Cli) -> None:
    added = add(cli)
    assert added.code == 0 and "remind  0 9 * * 1  Europe/Berlin  active" in added.out
    assert "next: Mon 20" in added.out and "09:00 CE" in added.out and 'topic = "7"' in added.out
    doctor = cli.main("doctor").out
    assert "1, 0 of them paused; the next tick is at 20" in doctor and "plan 'remind'" in doctor
    [row] = cli.main("schedule", "list", "--json").json["schedules"]
    schedule_id = row["scheduleId"]
    assert (row["plan"], row["inputs"], row["overlap"], row["missed"]) == ("remind", {"topic": "7"}, "skip", "latest")
    assert len(row["nextTicks"]) == 3 and all("T09:00:00" in tick for tick in row["nextTicks"])
    paused = cli.main("schedule", "pause", schedule_id[:6], "--json").json
    assert paused["scheduleId"] == schedule_id and paused["pausedAt"] is not None and paused["nextTicks"] == []
    assert "paused" in cli.main("schedule", "list").out
    assert cli.main("schedule", "resume", schedule_id[:6], "--json").json["nextTicks"] == row["nextTicks"]
    assert cli.main("schedule", "remove", schedule_id[:6], "--json").json["removed"] is True
    assert "No schedules." in cli.main("schedule", "list").out
    kinds = [line.split()[2:4] for line in cli.main("audit", "show").out.splitlines()]
    assert [["schedule", kind] for kind in ("added", "paused", "resumed", "removed")] == kinds[1:]


@requirement("schedule:commands", "schedule:refusals")
def test_what_cannot_be_scheduled_is_refused_in_a_sentence_and_not_stored(cli: Cli) -> None:
    for words, said in (
        (("--cron", "0 0 30 2 *"), "'0 0 30 2 *' never ticks"),
        (("--timezone", "Europe/Berln"), "there is no time zone 'Europe/Berln' (did you mean 'Europe/Berlin'?)"),
        (("--input", "many=x"), "inputs"),
        (("--input", "topic=8"), "--input names 'topic' twice"),
        (("--owner", " "), "'owner' must have 1 to 200 characters"),
        (("--owner", "a\x01"), "'owner' has a control character"),
    ):
        result = add(cli, *words)
        assert result.code == 2 and len(result.err.strip().splitlines()) == 1 and said in result.err
    assert "there is no saved plan 'remid' (did you mean 'remind'?)" in cli.main(*ADD[:2], "remid", *ADD[3:]).err
    for word in ("pause", "resume", "remove", "run-now"):
        result = cli.main("schedule", word, "abc")
        assert result.code == 2 and "there is no schedule 'abc'; `planwarden schedule list`" in result.err
    assert cli.main("schedule", "list", "--json").json == {"schedules": []}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"overlap": "x"}, "is damaged: Invalid enum value 'x' - at `$.overlap`; remove it and add it again"),
        ({"next_at": 10**15}, "<= 100000000000 - at `$.next_at`; remove it and add it again"),
        ({"queued": [-(10**15)]}, "- at `$.queued[0]`; remove it and add it again"),
        ({"recent": [{"tick_at": 10**15, "outcome": "missed"}]}, "`$.recent[0].tick_at`; remove it and add it again"),
        ({"timezone": "Gone/Zone"}, "cannot be used: there is no time zone 'Gone/Zone'"),
    ],
)
def test_a_schedule_that_cannot_be_used_is_named_and_can_be_removed(
    cli: Cli, damage: dict[str, JsonValue], said: str
) -> None:
    schedule_id = add(cli, "--json").json["scheduleId"]
    with closing(sqlite3.connect(cli.home / "planwarden.db")) as file, file:
        file.execute("UPDATE records SET body = json_patch(body, ?) WHERE id = ?", (json.dumps(damage), schedule_id))
    listed = cli.main("schedule", "list")
    assert listed.code != 0 and f"schedule '{schedule_id[:8]}' " in listed.err and said in listed.err
    pausing = cli.main("schedule", "pause", schedule_id)
    assert (
        pausing.code != 0 and said in pausing.err and "schedule_paused" not in cli.main("audit", "show", "--json").out
    )
    assert len(listed.err.splitlines()) == 1 and cli.main("schedule", "remove", schedule_id[:8]).code == 0
    assert "No schedules." in cli.main("schedule", "list").out


@requirement("schedule:commands")
def test_run_now_runs_the_plan_with_its_inputs_or_says_why_it_cannot(cli: Cli) -> None:
    schedule_id = add(cli, "--json").json["scheduleId"]
    done = cli.main("schedule", "run-now", schedule_id[:8], "--json")
    assert done.code == 0 and done.json["scheduleId"] == schedule_id and done.json["status"] == "completed"
    assert cli.ledger == ["find 7"]
    [row] = cli.main("schedule", "list", "--json").json["schedules"]
    [tick] = row["recent"]
    assert tick["outcome"] == "started" and tick["threadId"] == row["lastThreadId"] == done.json["threadId"]
    assert f"started: thread {done.json['threadId'][:8]}" in cli.main("schedule", "list").out
    cli.write("plans/gone.json", PLAN)
    schedule_id = cli.main(*ADD[:2], "gone", *ADD[3:], "--json").json["scheduleId"]
    (cli.home / "plans" / "gone.json").unlink()
    result, doctor = cli.main("schedule", "run-now", schedule_id), cli.main("doctor", "--json")
    assert result.code == 1 and "Nothing was started: unknown_plan: " in result.out + result.err
    [check] = [check for check in doctor.json["checks"] if check["name"] == "schedules"]
    assert doctor.code == 1 and check["status"] == "broken"
    assert f"schedule {schedule_id[:8]} starts the plan 'gone', which is not there" in check["message"]


def test_add_list_and_doctor_say_when_no_server_runs_that_would_start_it(cli: Cli) -> None:
    added = add(cli)
    command = f"planwarden --home {cli.home} serve --http"
    for said in (added, cli.main("schedule", "list"), cli.main("doctor")):
        assert said.code == 0 and NOT_ATTENDED in said.out and command in said.out

    async def look_while_a_server_runs() -> None:
        async with planwarden.Warden(home=cli.home):
            while NOT_ATTENDED in (await anyio.to_thread.run_sync(cli.spawn, "schedule", "list")).out:
                pass
            assert "warning" not in (await anyio.to_thread.run_sync(cli.spawn, "doctor", "--json")).out

    anyio.run(look_while_a_server_runs)
    assert NOT_ATTENDED in cli.main("schedule", "list").out
    assert NOT_ATTENDED not in cli.main("schedule", "pause", added.out.split()[7]).out


@requirement("hook:doctor")
def test_doctor_names_a_hook_whose_plan_or_secret_is_missing_or_whose_plan_no_message_starts(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.write("plans/topic.json", PLAN)
    cli.write("plans/nothing.json", {"todoList": PLAN["todoList"]})
    taking: dict[str, JsonValue] = {
        "remind": {"properties": {"event": {}}},
        "free": {"additionalProperties": True},
        "needing": {"properties": {"event": {}, "a": {"default": 1}, "b": {}}, "required": ["event", "a", "b"]},
    }
    for name, inputs in taking.items():
        cli.write(f"plans/{name}.json", {"inputs": inputs, "todoList": [step("a", "wipe")]})
    settings = cli.home / "planwarden.toml"
    tools = settings.read_text()
    for plan, secret, status, said in (
        ("remind", "whsec_" + "A" * 44, "ok", "/hooks/orders starts 'remind'"),
        ("free", "whsec_" + "A" * 44, "ok", "/hooks/orders starts 'free'"),
        ("topic", "", "broken", "hook 'orders' starts the plan 'topic', which takes no input 'event'"),
        ("nothing", "", "broken", "hook 'orders' starts the plan 'nothing', which takes no input 'event'"),
        ("needing", "", "broken", "the plan 'needing', which needs 'b', while a hook gives only 'event'"),
        ("remind", "", "warning", "hook 'orders': the environment variable ORDERS_SECRET is not set"),
        ("remind", "short", "warning", "ORDERS_SECRET is not whsec_ and 24 to 64 bytes in base64"),
        ("gone", "", "broken", "hook 'orders' starts the plan 'gone', which is not there; hook 'orders': the env"),
    ):
        monkeypatch.setenv("ORDERS_SECRET", secret)
        settings.write_text(f'{tools}\n[hooks.orders]\nplan = "{plan}"\nsecret_env = "ORDERS_SECRET"\n')
        [check] = [check for check in cli.main("doctor", "--json").json["checks"] if check["name"] == "hooks"]
        assert check["status"] == status and said in check["message"]
