"""`list`, `show`, `tools`, `check` and rehearsals: what waits, ran, will run and is there, by page, as it was."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.cli.support import ASK_FORM, ERASE, Cli, CommandResult, run_in_process, step
from tests.support.scene import call_through_gate

FIND = step("find", "find", {"topic": "x"})


def test_list_shows_open_questions_and_is_the_wires_page_as_json(cli: Cli) -> None:
    first, second = cli.run_to_question(ERASE), cli.run_to_question(ASK_FORM)

    result, listed = cli.main("list"), cli.main("list", "--json")
    assert (result.code, listed.code) == (0, 0)
    assert listed.json == cli.ask(lambda warden: warden.list_suspensions())
    assert result.out.index(first[:8]) < result.out.index(second[:8])
    assert "2 waiting for an answer" in result.out and "approval · a person · dangerous" in result.out
    only = cli.main("list", "--limit", "1", "--json").json
    rest = cli.main("list", "--limit", "1", "--cursor", only["nextCursor"], "--json").json
    assert [asked["suspensionId"] for asked in only["suspensions"] + rest["suspensions"]] == [first, second]
    assert f"--cursor {only['nextCursor']}" in cli.main("list", "--limit", "1").out
    loop = step("wipe", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2, 3, 4, 5])
    asked = cli.run_to_question(FIND, loop)
    thread_id = cli.newest_thread
    shown = cli.main("list").out
    assert 'erase(ids=[1], note="none")' in shown and "and 2 more calls" in shown
    assert f"Step 2 of 2 · thread {thread_id[:8]}" in shown
    assert asked not in shown and thread_id not in shown


@requirement("engine:one-bad-row")
def test_a_damaged_execution_hides_no_question_of_others(cli: Cli) -> None:
    damaged, whole = cli.run_to_question(ERASE), cli.run_to_question(ASK_FORM)
    with closing(sqlite3.connect(cli.home / "planwarden.db", isolation_level=None)) as connection:
        connection.execute("UPDATE events SET body = 'x' WHERE execution = (SELECT min(number) FROM executions)")
    listed = cli.main("list", "--json")
    assert [asked["suspensionId"] for asked in listed.json["suspensions"]] == [whole]
    refused = cli.main("cancel")
    assert refused.code == 2 and cli.newest_thread[:8] in refused.out and "name the one to cancel" in refused.err
    assert damaged not in listed.out


@requirement("terminal:executions")
def test_executions_are_listed_with_state_progress_and_title_and_the_next_page_is_a_command(cli: Cli) -> None:
    waiting = cli.run_to_question(ERASE)
    done = cli.main("run", cli.write("plan.json", {"todoList": [FIND]}), "--json").json["threadId"]
    listed = cli.main("list", "--executions", "--json").json["executions"]
    assert [(row["state"], row["stepsDone"], row["stepCount"]) for row in listed] == [
        ("completed", 1, 1),
        ("waiting", 0, 1),
    ]
    assert listed[0]["threadId"] == done and listed[1]["suspensionId"] == waiting
    shown, recent = cli.main("list", "--executions").out, cli.main("list").out
    assert "waits for a person" in shown and "0 of 1 step" in shown
    assert "newest executions" in recent and "waits for a person" in recent
    for words, count in (
        (("--search", "x"), 0),
        (("--state", "waiting"), 1),
        (("--tool", "erase"), 1),
        (("--tool", "erase", "--state", "completed"), 0),
        (("--host", "Claude"), 0),
        (("--plan", "monthly"), 0),
    ):
        assert len(cli.main("list", *words, "--json").json["executions"]) == count
        assert ("No execution fits." in cli.main("list", *words).out) == (count == 0)
    page = cli.main("list", "--executions", "--limit", "1", "--json").json
    rest = cli.main("list", "--executions", "--limit", "1", "--cursor", page["nextCursor"], "--json").json
    assert rest["nextCursor"] is None and rest["executions"] == listed[1:]


@requirement("gate:people")
def test_calls_through_a_gate_are_listed_alone_with_arguments_and_results(cli: Cli) -> None:
    cli.run_to_question(ERASE)
    cli.ask(lambda warden: call_through_gate(warden.service, {"path": "/data/\u202ea", "old": None}))
    for words in ((), ("--host", "Claude Code", "--tool", "files_write_file", "--state", "waiting")):
        [row] = cli.main("list", "--calls", "--json", *words).json["executions"]
        assert row["calls"][0]["arguments"] == {"path": "/data/\u202ea", "old": None} and row["host"] == "Claude Code"
    shown = cli.main("list", "--calls").out
    assert 'files_write_file(path="/data/\\u202ea", old=null) → waits for a person' in shown and "erase" not in shown


def test_reading_a_home_without_a_database_creates_none(cli: Cli) -> None:
    assert "Nothing waits" in cli.main("list").out
    assert cli.main("list", "--json").json == {"suspensions": [], "total": 0, "nextCursor": None}
    assert " run PLAN.json`" in cli.main("show").err
    assert "token add" in cli.main("token", "list").out and cli.main("token", "revoke", "ann").code == 2
    assert cli.main("doctor").code == cli.main("prune").code == 0
    assert not (cli.home / "planwarden.db").exists()


def test_a_named_home_that_is_not_there_is_said_and_not_made(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.capture is not None
    place = tmp_path / "typo"
    sentence = f"there is no folder {place}; `planwarden --home {place} init` makes it"
    commands = (
        *(("list",), ("show",), ("tools",), ("plans",), ("schedule", "list"), ("approve", "x"), ("inbox",)),
        *(("run", "remind"), ("check", "plan.json"), ("call", "now"), ("token", "add", "ci"), ("worker",)),
    )
    for words in commands:
        refused = Cli(place, cli.capture).main(*words)
        assert (refused.code, refused.out) == (2, "") and sentence in refused.err and not place.exists(), words
        stored = cli.main(*words, "--store", f"sqlite://{place}/x")
        assert (stored.code, stored.out) == (2, "") and f"so no store {place / 'x'};" in stored.err, words
        assert not place.exists(), words
    monkeypatch.setenv("PLANWARDEN_HOME", str(place))
    assert sentence in run_in_process(cli.capture, "list").err
    place.write_text("")
    assert f"{place} is not a folder" in run_in_process(cli.capture, "list").err


def test_show_is_the_wires_execution_as_json_and_the_steps_in_words(cli: Cli) -> None:
    suspension_id = cli.run_to_question(FIND, ERASE)
    thread_id = cli.newest_thread

    assert cli.main("show", thread_id[:8], "--json").json == cli.ask(lambda warden: warden.get_execution(thread_id))
    observed = cli.ask(lambda warden: warden.get_execution(thread_id, observations_after=2))
    assert cli.main("show", thread_id, "--observations", "2", "--json").json == observed
    assert "observations" not in cli.main("show", thread_id, "--observations", str(10**20), "--json").json
    shown = cli.main("show", thread_id, "--observations", "0").out
    for expected in ("✓ find", "? erase", "Tool: erase", "ids = [1, 2]", "Risk: dangerous", suspension_id):
        assert expected in shown
    assert "TOOL_RETURNED" in shown
    for word, wrong_id, kind in (("show", suspension_id, "a question"), ("reject", thread_id, "a thread")):
        result = cli.main(word, wrong_id)
        assert result.code == 2 and f"is the id of {kind}" in result.err
        assert f"`planwarden --home {cli.home} show {thread_id[:8]}`" in result.err
    cli.run_to_question(ERASE)
    assert cli.newest_thread != thread_id


@requirement("show:at")
def test_show_at_is_the_execution_as_it_was_after_that_event(cli: Cli) -> None:
    suspension_id = cli.run_to_question(FIND, ERASE)
    assert cli.main("reject", suspension_id).code == 0
    now = cli.main("show", "--json", "--observations", "0").json
    count = cli.main("show", "--at", "1", "--json").json["at"]["events"]
    shown = [cli.main("show", "--at", f"{n + 1}", "--json", "--observations", "0").json for n in range(count)]
    for number, then in enumerate(shown, 1):
        assert all(entry["sequence"] <= number for entry in then.get("observations", ()))
        assert "This is the past" in then["nextAction"] and "approve" not in str(then["suspensions"])
    assert {key for key, value in shown[-1].items() if now.get(key) != value} == {"at", "nextAction"}
    place = [then["status"] for then in shown].index("suspended") + 1
    result = cli.main("show", "--at", f"{place}")
    assert f"as it was after event {place} of {count}" in result.out and "? erase" in result.out
    assert "Tool: erase" in result.out and "planwarden" not in result.out.split("Tool: erase")[1]
    for wrong in ("0", "-1", f"{count + 1}", "99999999999999999999"):
        result = cli.main("show", "--at", wrong)
        assert result.code == 2 and f"has no event {wrong}; it has events 1 to {count}" in result.err
    assert cli.main("show", "--at", "1", "--artifact", "x").code == 2


def test_tools_lists_the_catalogue_with_reasons_for_what_is_not_available(cli: Cli) -> None:
    assert cli.main("tools", "--json").json == cli.ask(lambda warden: warden.search_tools(None, limit=100))
    fitting = cli.ask(lambda warden: warden.search_tools("delete records", limit=100))
    assert cli.main("tools", "delete", "records", "--json").json == fitting
    shown = cli.main("tools").out
    assert re.search(r"erase +dangerous", shown) and "not available: it has no search service" in shown
    assert "No tool fits." in cli.main("tools", "zzzz").out


def test_the_name_of_a_tool_shows_all_that_a_call_of_it_takes(cli: Cli) -> None:
    shown = cli.main("tools", "erase").out
    assert "erase  a person is asked before it runs, unless a rule" in shown
    assert "has an effect: after a crash it is not called again unasked" in shown
    assert "ids  array, needed" in shown and 'note  string, optional, default "none"' in shown
    schema = json.loads(shown.partition("schema of its arguments")[2].partition("schema of its result")[0])
    assert schema == cli.main("tools", "erase", "--json").json["definition"]["inputSchema"]
    assert "definition" not in cli.main("tools", "delete", "--json").json


CLOSE = step("ask", "displayConfirmation", {"action": "Close the shop"})
SAYS = "tools.py' could not be loaded: RuntimeError: half written"


def break_tools(cli: Cli, text: str = "raise RuntimeError('half written')\n") -> None:
    (cli.home / "tools.py").write_text(text, encoding="utf-8")


def look(cli: Cli, words: str) -> CommandResult:
    """What the command prints, whatever the time is."""
    result = cli.main(*words.split())
    return CommandResult(result.code, re.sub(r"\d+ s ago", "N s ago", result.out), result.err)


@pytest.mark.parametrize("exception", ["RuntimeError", "SystemExit"])
def test_what_waits_is_shown_while_the_tools_are_broken_and_a_command_that_needs_them_says_so(
    cli: Cli, exception: str
) -> None:
    suspension_id, path = cli.run_to_question(CLOSE), cli.write("other.json", {"todoList": [CLOSE]})
    shown = ("list", "list --json", "list --executions", "show", "show --json", "show --graph")
    before = [look(cli, words) for words in shown]
    break_tools(cli, f"raise {exception}('half written')\n")
    says = SAYS.replace("RuntimeError", exception)
    assert [look(cli, words) for words in shown] == before and {result.code for result in before} == {0}
    for words in (("run", path), ("check", path), ("approve", suspension_id), ("reject", suspension_id)):
        result = cli.main(*words)
        assert result.code and says in result.out + result.err
    for word in ("tools", "doctor", "rules"):
        assert says in cli.main(word).out + cli.main(word).err


def test_what_waits_is_shown_without_a_usable_model_and_without_what_a_broken_tool_says(cli: Cli) -> None:
    cli.run_to_question(ERASE)
    thread_id, settings = cli.newest_thread, cli.home / "planwarden.toml"
    assert 'says of it: "Delete records."' in cli.main("show").out
    cli.run_to_question(CLOSE)
    usable = settings.read_text()
    settings.write_text('model = "gpt-9"\n' + usable)
    assert cli.main("list").code == cli.main("show").code == 0
    assert "unknown model 'gpt-9'" in cli.main("tools").err
    settings.write_text(usable)
    break_tools(cli)
    refused = cli.main("show", thread_id)
    assert (refused.code, SAYS in refused.err, refused.out) == (2, True, "") and cli.main("list").code == 0


NEVER: JsonValue = {"value": {"$from": "inputs", "pointer": "/go"}, "matches": {"const": True}}
INPUTS: JsonValue = {"type": "object", "properties": {"go": {"default": False}, "sum": {"default": 3}}}
FAILS: JsonValue = {"$from": "item", "pointer": "/n"}


@pytest.fixture
def rules(cli: Cli) -> None:
    """A rule lets `erase` run without a question, and the calculator asks."""
    rule = '[[rules]]\ntool = "erase"\nwhen = { "ids/0" = { min = 0, max = 99 } }\nthen = "allow"\n'
    text = f'[tools]\npython = ["tools.py"]\n[tools.calculator]\nrisk = "dangerous"\n{rule}'
    (cli.home / "planwarden.toml").write_text(text)


def run_plan(cli: Cli, *steps: JsonValue, words: tuple[str, ...] = ()) -> CommandResult:
    return cli.main("run", cli.write("plan.json", {"inputs": INPUTS, "todoList": list(steps)}), *words)


@requirement("plan:forecast", "rules:forecast")
@pytest.mark.usefixtures("rules")
def test_a_check_says_what_a_rule_lets_through_what_fails_what_is_skipped_and_who_writes_it(cli: Cli) -> None:
    unready = step("sum", "calculator", {"expression": {"$from": "inputs", "pointer": "/sum"}})
    think: JsonValue = {"id": "think", "description": "think", "dependencies": ["erase"]}
    maybe: JsonValue = {**step("maybe", "wipe"), "when": {"value": {"$from": "think"}, "matches": {"const": "yes"}}}
    denied, by_hand = (step(name, "erase", {"ids": [number]}) for name, number in (("taxed", 500), ("by-hand", 100)))
    steps: JsonValue = [ERASE, {**FIND, "when": NEVER}, unready, denied, by_hand, think, maybe]
    cli.add_settings('[[rules]]\ntool = "erase"\nwhen = { "ids/0" = { min = 500 } }\nthen = "deny"\nbecause = "taxes"')
    cli.add_settings('[[rules]]\ntool = "*"\nthen = "ask"\nbecause = "by hand"')
    shown = cli.main("check", cli.write("plan.json", {"inputs": INPUTS, "todoList": steps}))
    assert (shown.code, cli.ledger) == (1, [])
    for said in (
        *("erase will not ask: rule 1 lets it through", 'would fail: calculator: /expression: 3 is not of type "str'),
        *("will be skipped: its condition does not hold", "a model writes its calls or its text"),
        *("rule 2 of the operator denies it: taxes", "or at a terminal: rule 3 applies: ask * (by hand)"),
        "runs only if its condition holds",
    ):
        assert said in shown.out, said


@requirement("rehearsal:nothing-done", "rules:forecast")
@pytest.mark.usefixtures("rules")
def test_a_rehearsal_says_of_each_call_whom_it_would_ask_and_why_it_was_not_done(cli: Cli) -> None:
    cli.add_settings('[[rules]]\ntool = "hang"\nthen = "ask"')
    ask = step("ask", "displayConfirmation", {"action": "Sum?"}, confirms=["sum"])
    late, after = step("late", "hang"), step("after", "find", {"topic": {"$from": "all"}})
    rehearsed = run_plan(
        *(cli, FIND, ERASE, ask, step("sum", "calculator", {"expression": "1"}), step("all", "wipe")),
        *(step("rest", "wait", {"seconds": 9}), late, after),
        words=("--rehearse",),
    )
    assert (rehearsed.code, cli.ledger) == (0, ["find x"])
    for shown in (rehearsed, cli.main("show")):
        for said in (
            'erase(ids=[1, 2], note="none") → not done: would run without a question, by rule 1',
            'displayConfirmation(action="Sum?") → not done: would ask a person first (dangerous, needs human)',
            'calculator(expression="1") → not done: would run after the confirmation ask:1',
            "wipe() → not done: would ask a person first (critical, needs signed)",
            "wait(seconds=9) → not done: a rehearsal waits for nothing",
            "only a real run has the result of all",
            "Rehearsed: nothing was changed. Calls not made: 6; 3 of them would ask a person.",
        ):
            assert said in shown.out, said
    calls = {found["id"]: found["actualToolCalls"] for found in cli.main("show", "--json").json["steps"]}
    assert calls["late"][0]["rehearsal"]["rule"]["number"] == 2


@pytest.mark.usefixtures("rules")
def test_a_loop_is_shown_by_telling_calls_and_its_items_by_pages(cli: Cli) -> None:
    items: JsonValue = [{"n": n} if n != 1 else {"n": "x"} for n in range(55)]
    failing = step("loop", "erase", {"ids": [FAILS]}, forEach=items, onItemFailure="continue")
    result = run_plan(cli, failing)
    assert (
        result.code == 1 and 'invalid_arguments: 1 of 55 items failed; index 1: erase failed: /ids/0: "x"' in result.out
    )
    assert "more calls; show --step loop has all items" in result.out and "(allowed by rule 1)" in result.out
    page = cli.main("show", "--step", "loop", "--limit", "2")
    assert "55 items: 54 succeeded, 1 failed, 0 rejected\n" in page.out
    assert "✓ index 0  done → erased: 1\n    ✗ index 1  failed → /ids/0:" in page.out and "index 2 " not in page.out
    assert f"more: planwarden --home {cli.home} show {cli.newest_thread[:8]} --step loop --items-from 2" in page.out
    rest = cli.main("show", "--step", "loop", "--items-from", "53", "--json").json
    assert [(item["item"], item["status"]) for item in rest["steps"][0]["itemResults"]] == [
        (53, "succeeded"),
        (54, "succeeded"),
    ]


@requirement("show:at")
@pytest.mark.usefixtures("rules")
def test_a_step_alone_and_the_graph_are_shown_as_options_ask_and_what_does_not_fit_is_refused(cli: Cli) -> None:
    skipped: JsonValue = {**FIND, "id": "skip", "when": NEVER}
    last = step("last", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}, dependencies=["sum"])
    assert (
        run_plan(
            cli, last, {**FIND, "dependencies": []}, skipped, step("sum", "find", {"topic": "y"}, dependencies=[])
        ).code
        == 0
    )
    assert "its condition did not hold" in cli.main("show", "--step", "skip").out
    assert cli.main("show", "--step", "find").out == '✓ find  use find\n    find(topic="x") → ids: [1, 2, 3]\n'
    drawing = cli.main("show", "--graph", "svg").out
    for said in ('aria-label="4 steps: ', "✓ 1. find: done", " skip: skipped", " last: done", 'class="tip"'):
        assert said in drawing, said
    for words, said in (
        ("show --graph --json", "--graph writes the graph alone; leave --json, --observations and --step out"),
        ("show --items-from 1", "--items-from needs --step, which names the loop"),
        ("show --graph --items-from 1", "--items-from needs --step, which names the loop"),
        ("show --artifact x --graph", "--artifact writes the artifact as it is; it goes with no other option of show"),
        ("show --step nothing", "the plan has no step 'nothing'; it has 'last', 'find', 'skip', 'sum'"),
        ("show --graph --at 1", "has no plan yet"),
        ("show --step last --limit 0", "'limit' must be between 1 and 1000"),
        ("show --step last --items-from 9", "step 'last' has no items"),
    ):
        refused = cli.main(*words.split())
        assert refused.code == 2 and said in refused.err, refused


def test_a_model_that_only_wrote_is_said(cli: Cli) -> None:
    think: JsonValue = {"id": "think", "description": "x", "requiredTools": ["find"], "toolValidationMode": "advisory"}
    replies: list[JsonValue] = [{"reply": {"content": "No."}}]
    script = cli.write("model.json", {"replies": replies * 2})
    after: JsonValue = {"id": "b", "description": "x", "dependencies": ["think"]}
    plan = cli.write("plan.json", {"todoList": [think, after]})
    done = cli.main("run", plan, "--model", f"scripted:{script}")
    assert done.code == 0 and '! the model only wrote: "No."\n    ! advisory: went on without find\n' in done.out
    assert "· 0 tool calls · 2 model replies" in done.out
