"""What rules do to calls: on every way to a tool, in the log, the audit and the forecast."""

import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel, JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, OutcomeUnknown, StaleDefinition
from planwarden.server.api.grants import GrantRequest
from planwarden.server.settings.rules import build_rule_book
from tests import kit
from tests.kit import confirm

CLIENT = kit.by("local", "client", "mcp")
SMALL = """
[[rules]]
tool = "erase"
when = { "ids/0" = { min = 0, max = 9 }, ids = { length = { max = 1 } } }
then = "allow"
because = "one small record"
[[rules]]
tool = "erase"
when = { "ids/0" = { min = 100 } }
then = "deny"
because = "those are kept for the tax office"
"""
BY_HAND = '[[rules]]\ntool = "*"\nthen = "ask"\nbecause = "by hand"\n'


def ruled(text: str) -> kit.Settings:
    rules = tomllib.loads(text)["rules"]
    return kit.governed(rules=build_rule_book(rules), facts={"rules": rules})


def erase(*ids: int) -> dict[str, JsonValue]:
    return kit.plan(kit.tool_step("a", "erase", {"ids": list(ids)}))


RULE, OTHER = '[[rules]]\ntool = "pay"\nrisk = "confirm"\n', '[[rules]]\ntool = "other"\nthen = "ask"\n'


@kit.requirement("approval:reconcile")
async def test_no_rule_lowers_what_an_unknown_outcome_needs_when_it_is_asked_about_again() -> None:
    lines, store, answer = list[str](), kit.MemoryStore(), kit.Decision(content={"happened": False})
    pay = kit.acting("pay", lines, fault=OutcomeUnknown("the connection was lost"))
    async with kit.warden(tools=[pay], store=store, settings=ruled(RULE)) as w:
        asked = await w.execute_plan(kit.plan(kit.tool_step("a", "pay")))
        asked = await kit.decide(w, asked, authority=CLIENT)
        assert [(question.kind, question.needs) for question in asked.suspensions] == [("reconcile", "human")]
    async with kit.warden(tools=[pay], store=store, settings=ruled(RULE + OTHER)) as w:
        with pytest.raises(StaleDefinition):
            await kit.decide(w, asked, answer, CLIENT)
        again = await kit.decide(w, asked, answer, CLIENT)
    assert [question.needs for question in again.suspensions] == ["human"] and lines == ["pay"]


@kit.requirement("downstream:pins")
async def test_no_rule_lowers_what_a_changed_tool_needs_when_it_is_asked_about_again() -> None:
    lines, store = list[str](), kit.MemoryStore()
    pay, changed = kit.acting("pay", lines), kit.acting("pay", lines, says="Pay all.")
    async with kit.warden(tools=[pay], store=store, settings=ruled(RULE)) as w:
        asked = await w.execute_plan(kit.plan(confirm("a"), kit.tool_step("b", "pay")))
    async with kit.warden(tools=[changed], store=store, settings=ruled(RULE)) as w:
        asked = await kit.decide(w, asked)
        assert [question.needs for question in asked.suspensions] == ["human"]
    async with kit.warden(tools=[changed], store=store, settings=ruled(RULE + OTHER)) as w:
        with pytest.raises(StaleDefinition):
            await kit.decide(w, asked, authority=CLIENT)
        again = await kit.decide(w, asked, authority=CLIENT)
    assert [question.needs for question in again.suspensions] == ["human"] and lines == []


@kit.requirement("downstream:pins")
@pytest.mark.parametrize("then", ['then = "allow"', 'risk = "confirm"'])
async def test_no_rule_lowers_what_a_confirmation_needs_for_a_tool_that_changed_under_it(then: str) -> None:
    lines, store, settings = list[str](), kit.MemoryStore(), ruled(f'[[rules]]\ntool = "pay"\n{then}\n')
    async with kit.warden(tools=[kit.acting("pay", lines)], store=store, settings=settings) as w:
        asked = await w.execute_plan(kit.plan(confirm("a", confirms=["b"]), kit.tool_step("b", "pay")))
    async with kit.warden(tools=[kit.acting("pay", lines, says="Pay all.")], store=store, settings=settings) as w:
        with pytest.raises(StaleDefinition):
            await kit.decide(w, asked, authority=CLIENT)
        again = await kit.decide(w, asked, authority=CLIENT)
    assert [question.needs for question in again.suspensions] == ["human"] and lines == []


@kit.requirement("rules:calls")
async def test_a_call_passes_is_asked_about_or_denied_as_the_rules_say() -> None:
    ledger = kit.Ledger()
    async with kit.warden(ledger, settings=ruled(SMALL)) as w:
        passed, asked, denied = [await w.execute_plan(erase(*ids)) for ids in ([1], [1, 2], [100])]
        # Nobody can edit a call into one that is denied.
        with pytest.raises(InvalidArguments, match="rule 2 of the operator denies it"):
            await kit.decide(w, asked, kit.Decision(approved=True, modified_args={"ids": [100]}))
        rows = (await kit.read_audit_page(w.service.store)).rows
    assert (passed.status, asked.status, denied.status) == ("completed", "suspended", "failed")
    assert ledger.lines == ["erase [1]"]
    [call] = passed.steps[0].actual_tool_calls
    assert call.rule is not None and (call.rule.number, call.rule.matched) == (1, ("ids/0 = 1", "ids = [1]"))
    error = denied.steps[0].error
    assert error is not None and error.code == "denied"
    assert error.message == "erase failed: rule 2 of the operator denies it: those are kept for the tax office"
    facts = {row.kind: row.facts for row in rows if row.kind != "policy"}
    assert list(facts) == ["allowed", "asked", "denied"] and facts["denied"]["rule"] == 2
    assert facts["allowed"]["matched"] == ["ids/0 = 1", "ids = [1]"]


@kit.requirement("rules:calls")
async def test_a_question_says_which_rule_decides_and_its_digest_covers_that() -> None:
    digests = set[str]()
    for because in ("a", "b"):
        text = f'[[rules]]\ntool = "note"\nwhen = {{ text = {{ prefix = "x" }} }}\nthen = "ask"\nbecause = "{because}"'
        async with kit.warden(kit.Ledger(), settings=ruled(text)) as w:
            [question] = (await w.execute_plan(kit.plan(kit.tool_step("a", "note", {"text": "x\u202ey"})))).suspensions
        assert question.needs == "human" and question.rule is not None and question.rule.number == 1
        says = f'Rule 1 applies: ask note when text begins with "x" ({because})'
        assert f'{says}; here text = "x\\u202ey".' in question.card.findings
        digests.add(question.digest)
    assert len(digests) == 2


class Options(BaseModel):
    force: bool = True
    depth: int = 1


@kit.requirement("rules:calls", "approval:defaults")
async def test_rules_and_grants_see_the_defaults_of_a_model_that_the_call_leaves_out() -> None:
    done: list[tuple[str, bool]] = []

    @planwarden.tool
    async def sweep(where: str, o: Options) -> None:
        """Sweep."""
        done.append((where, o.force))

    rules = (
        '[[rules]]\ntool = "sweep"\nwhen = { "o/force" = { in = [true] }, where = { in = ["home"] } }\nthen = "deny"'
    )
    async with kit.warden(tools=[sweep], settings=ruled(rules)) as w:
        request = GrantRequest(
            tool_name="sweep", arguments={"o": {"depth": 2}}, free=("where",), uses=5, expires_in_s=60
        )
        await w.service.grants.make(request, kit.by())
        given: list[tuple[str, JsonValue]] = [
            ("home", {"depth": 2}),
            ("office", {"depth": 2}),
            ("office", {"depth": 2, "force": True}),
            ("office", {"depth": 2, "force": False}),
        ]
        calls = [kit.plan(kit.tool_step("a", "sweep", {"where": where, "o": o})) for where, o in given]
        ended = [(await w.execute_plan(call)).status for call in calls]
    assert ended == ["failed", "completed", "completed", "suspended"] and done == [("office", True)] * 2


@kit.requirement("rules:calls")
async def test_rows_of_a_loop_pass_or_fail_by_themselves_and_the_rest_is_one_question() -> None:
    ledger = kit.Ledger()
    items: list[JsonValue] = [1, 2, 50, 60, 100]
    step = kit.tool_step("a", "erase", {"ids": [{"$from": "item"}]}, forEach=items, onItemFailure="continue")
    async with kit.warden(ledger, settings=ruled(SMALL + BY_HAND)) as w:
        asked = await w.execute_plan(kit.plan(step))
        [question] = asked.suspensions
        assert [call.arguments for call in question.calls] == [{"ids": [50]}, {"ids": [60]}]
        assert any("Rule 3 applies to 2 of them (1, 2)" in said for said in question.found)
        with pytest.raises(InvalidArguments, match="rule 2 of the operator denies it"):
            await kit.decide(w, asked, kit.Decision(approved=True, modified_args={"0": {"ids": [101]}}))
        await kit.decide(w, asked, kit.Decision(approved=True, content={"items": [0]}))
    assert ledger.lines == ["erase [1]", "erase [2]", "erase [50]"]


@kit.requirement("rules:calls")
async def test_what_was_asked_about_before_a_rule_denied_it_does_not_run() -> None:
    ledger, store = kit.Ledger(), kit.MemoryStore()
    async with kit.warden(ledger, store=store) as w:
        asked = await w.execute_plan(erase(100))
    async with kit.warden(ledger, store=store, settings=ruled(SMALL)) as w:
        with pytest.raises(StaleDefinition):
            await kit.decide(w, asked)
        [again] = (await w.get_execution(asked.thread_id)).suspensions
        assert "does not run even if you approve it: rule 2 of the operator denies it" in again.found[-1]
        done = await kit.decide(w, asked)
    assert done.status == "failed" and ledger.lines == []


@kit.requirement("rules:calls")
@pytest.mark.parametrize("then", ["allow", "deny"])
async def test_rules_never_answer_the_question_of_a_blocking_tool(then: str) -> None:
    @planwarden.tool(execution_mode="blocking", risk="confirm")
    async def consult() -> str:
        """Ask somebody."""
        return "Well?"

    async with kit.warden(tools=[consult], settings=ruled(f'[[rules]]\ntool="*"\nthen="{then}"')) as w:
        for step in (confirm("c"), kit.tool_step("c", "consult")):
            assert (await w.execute_plan(kit.plan(step))).status == "suspended"


@kit.requirement("rules:calls")
async def test_an_edit_that_a_rule_rates_higher_needs_what_the_higher_risk_needs() -> None:
    ledger = kit.Ledger()
    rules = '[[rules]]\ntool = "erase"\nwhen = { ids = { length = { max = 1 } } }\nrisk = "confirm"'
    async with kit.warden(ledger, settings=ruled(rules)) as w:
        asked = await w.execute_plan(erase(1))
        edited = kit.Decision(approved=True, modified_args={"ids": [1, 2]})
        [question] = (await kit.decide(w, asked, edited, CLIENT)).suspensions
        assert (asked.suspensions[0].needs, question.needs, question.risk) == ("client", "human", "dangerous")
        assert (question.suspension_id, question.revision) == (asked.suspensions[0].suspension_id, 2)
        assert ledger.lines == []
        await kit.decide(w, asked)
    assert ledger.lines == ["erase [1, 2]"]


@kit.requirement("rules:calls")
async def test_a_confirmation_releases_no_call_that_a_rule_has_made_critical_since() -> None:
    ledger, store = kit.Ledger(), kit.MemoryStore()
    steps = kit.plan(confirm("c", confirms=["a"]), confirm("d"), kit.tool_step("a", "erase", {"ids": [1]}))
    async with kit.warden(ledger, store=store) as w:
        asked = await kit.decide(w, await w.execute_plan(steps), authority=kit.by("local"))
    critical = ruled('[[rules]]\ntool="erase"\nrisk="critical"')
    async with kit.warden(ledger, store=store, settings=critical) as w:
        with pytest.raises(StaleDefinition, match="policy changed"):
            await kit.decide(w, asked, authority=kit.by("local"))
        [question] = (await kit.decide(w, asked, authority=kit.by("local"))).suspensions
    assert (question.step_id, question.kind, question.needs, ledger.lines) == ("a", "approval", "signed", [])


@kit.requirement("rules:under")
async def test_a_path_is_looked_up_on_every_way_to_a_tool(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    links = {"link": outside, "dangling": outside / "new", "loop": inside / "loop"}
    for name, target in links.items():
        (inside / name).symlink_to(target)
    (inside / "file").write_text("")
    saved: list[str] = []
    text = f"[[rules]]\ntool='save'\nwhen={{ path = {{ under = '{inside}' }} }}\nthen='allow'"
    good = [f"{inside}/a", f"{inside}/x/../c"]
    bad = [f"{inside}/link/a", f"{inside}/dangling", f"{inside}/../out/a", str(inside), "in/a", f"{inside}/a\0"]
    # Where these lead cannot be known.
    bad += [f"{inside}/loop/x", f"{inside}/file/x", f"{inside}/{'n' * 300}"]
    steps = kit.plan(
        *(kit.tool_step(f"s{n}", "save", {"path": path}, dependencies=[]) for n, path in enumerate(good + bad))
    )
    async with kit.warden(tools=[kit.acting("save", saved)], settings=ruled(text)) as w:
        found = await w.service.forecast_plan(steps, principal="local")
        assert [passes.step_id for passes in found.by_rule] == ["s0", "s1"]
        asked = await w.execute_plan(steps, wait_seconds=60)
        assert len(asked.suspensions) == len(bad) and sorted(saved) == [f"save {path}" for path in good]
        each = kit.tool_step("all", "save", {"path": {"$from": "item"}}, forEach=[good[0], bad[0], good[1], bad[1]])
        rows = await w.execute_plan(kit.plan(each))
        assert [call.arguments["path"] for call in rows.suspensions[0].calls] == [bad[0], bad[1]]
        asked = await w.execute_plan(kit.plan(kit.tool_step("a", "save", {"path": bad[0]})))
        edited = await kit.decide(w, asked, kit.Decision(approved=True, modified_args={"path": f"{inside}/d"}))
    assert edited.status == "completed" and not {f"save {path}" for path in bad} & {*saved}


@kit.requirement("rules:under")
async def test_a_confirmed_call_whose_path_leads_elsewhere_by_then_needs_what_it_needs_there(tmp_path: Path) -> None:
    (inside := tmp_path / "in").mkdir()
    (link := inside / "link").symlink_to(inside)

    @planwarden.tool(risk="read")
    async def move() -> None:
        link.unlink()
        link.symlink_to(tmp_path)

    saved: list[str] = []
    rules = ruled(f"[[rules]]\ntool = 'save'\nwhen = {{ path = {{ under = '{inside}' }} }}\nrisk = 'confirm'")
    save = kit.tool_step("c", "save", {"path": f"{link}/x"})
    async with kit.warden(tools=[move, kit.acting("save", saved)], settings=rules) as w:
        asked = await w.execute_plan(kit.plan(confirm("a", confirms=["c"]), kit.tool_step("b", "move"), save))
        again = await kit.decide(w, asked, authority=CLIENT)
    assert [(question.kind, question.needs) for question in again.suspensions] == [("approval", "human")] and not saved
