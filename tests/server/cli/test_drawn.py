"""What `check`, `run --rehearse` and `show` say of every kind of step, call and end."""

import pytest
from pydantic import JsonValue

from tests.kit import requirement
from tests.server.cli.support import ERASE, Cli, CommandResult, step

FIND = step("find", "find", {"topic": "x"})
NEVER: JsonValue = {"value": {"$from": "inputs", "pointer": "/go"}, "matches": {"const": True}}
INPUTS: JsonValue = {"type": "object", "properties": {"go": {"default": False}, "sum": {"default": 3}}}
FAILS: JsonValue = {"$from": "item", "pointer": "/n"}


@pytest.fixture(autouse=True)
def _rules(cli: Cli) -> None:
    """A rule lets `erase` run without a question, and the calculator asks."""
    rule = '[[rules]]\ntool = "erase"\nwhen = { "ids/0" = { min = 0, max = 99 } }\nthen = "allow"\n'
    text = f'[tools]\npython = ["tools.py"]\n[tools.calculator]\nrisk = "dangerous"\n{rule}'
    (cli.home / "planwarden.toml").write_text(text)


def run_plan(cli: Cli, *steps: JsonValue, words: tuple[str, ...] = ()) -> CommandResult:
    return cli.main("run", cli.write("plan.json", {"inputs": INPUTS, "todoList": list(steps)}), *words)


@requirement("plan:forecast", "rules:forecast")
def test_a_check_says_what_a_rule_lets_through_what_fails_what_is_skipped_and_who_writes_it(cli: Cli) -> None:
    unready = step("sum", "calculator", {"expression": {"$from": "inputs", "pointer": "/sum"}})
    think: JsonValue = {"id": "think", "description": "think", "dependencies": ["erase"]}
    maybe: JsonValue = {**step("maybe", "wipe"), "when": {"value": {"$from": "think"}, "matches": {"const": "yes"}}}
    steps: JsonValue = [ERASE, {**FIND, "when": NEVER}, unready, think, maybe]
    shown = cli.main("check", cli.write("plan.json", {"inputs": INPUTS, "todoList": steps}))
    assert (shown.code, cli.ledger) == (1, [])
    for said in (
        *("erase will not ask: rule 1 lets it through", 'would fail: calculator: /expression: 3 is not of type "str'),
        *("will be skipped: its condition does not hold", "a model writes its calls or its text"),
        "runs only if its condition holds",
    ):
        assert said in shown.out, said


@requirement("rehearsal:nothing-done", "rules:forecast")
def test_a_rehearsal_says_of_each_call_whom_it_would_ask_and_why_it_was_not_done(cli: Cli) -> None:
    ask = step("ask", "displayConfirmation", {"action": "Sum?"}, confirms=["sum"])
    rehearsed = run_plan(
        *(cli, FIND, ERASE, ask, step("sum", "calculator", {"expression": "1"}), step("all", "wipe")),
        *(step("rest", "wait", {"seconds": 9}), step("after", "find", {"topic": {"$from": "all"}})),
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
            "Rehearsed: nothing was changed; 5 call(s) were not made, 2 would ask a person.",
        ):
            assert said in shown.out, said


def test_a_loop_is_shown_by_telling_calls_and_its_items_by_pages(cli: Cli) -> None:
    items: JsonValue = [{"n": n} if n != 1 else {"n": "x"} for n in range(55)]
    failing = step("loop", "erase", {"ids": [FAILS]}, forEach=items, onItemFailure="continue")
    result = run_plan(cli, failing)
    assert (
        result.code == 1 and 'invalid_arguments: 1 of 55 items failed; item 1: erase failed: /ids/0: "x"' in result.out
    )
    assert "more calls; show --step loop has all items" in result.out and "(allowed by rule 1)" in result.out
    page = cli.main("show", "--step", "loop", "--limit", "2")
    assert "55 items: 54 succeeded, 1 failed, 0 rejected\n" in page.out
    assert "✓ item 0  done → erased: 1\n    ✗ item 1  failed → /ids/0:" in page.out and "item 2 " not in page.out
    assert f"more: planwarden --home {cli.home} show {cli.newest_thread[:8]} --step loop --items-from 2" in page.out
    rest = cli.main("show", "--step", "loop", "--items-from", "53", "--json").json
    assert [(item["item"], item["status"]) for item in rest["steps"][0]["itemResults"]] == [
        (53, "succeeded"),
        (54, "succeeded"),
    ]


@requirement("show:at")
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
        ("show --step nothing", "the plan has no step 'nothing'; it has 'last', 'find', 'skip', 'sum'"),
        ("show --graph --at 1", "has no plan yet"),
        ("show --step last --limit 0", "'limit' must be between 1 and 1000"),
        ("show --step last --items-from 9", "step 'last' has no items"),
    ):
        refused = cli.main(*words.split())
        assert refused.code == 2 and said in refused.err, refused


@requirement("key:once", "key:conflict")
def test_a_key_goes_on_with_the_run_that_it_began_and_a_model_that_only_wrote_is_said(cli: Cli) -> None:
    first, again = (run_plan(cli, FIND, words=("--key", "k")) for _ in range(2))
    assert (first.code, again.code, cli.ledger) == (0, 0, ["find x"])
    assert again.out == f"Key 'k' has started this before; nothing new was started.\n{first.out}"
    other = run_plan(cli, ERASE, words=("--key", "k"))
    assert other.code == 2 and "key 'k' started execution" in other.err and "with another goal or plan" in other.err
    think: JsonValue = {"id": "think", "description": "x", "requiredTools": ["find"], "toolValidationMode": "advisory"}
    replies: list[JsonValue] = [{"reply": {"content": "No."}}]
    script = cli.write("model.json", {"replies": replies * 2})
    after: JsonValue = {"id": "b", "description": "x", "dependencies": ["think"]}
    plan = cli.write("plan.json", {"todoList": [think, after]})
    done = cli.main("run", plan, "--model", f"scripted:{script}")
    assert done.code == 0 and '! the model only wrote: "No."\n    ! advisory: went on without find\n' in done.out
    assert "· 0 tool calls · 2 model replies" in done.out
