"""Grants for a step of a saved plan: which runs they let through without a question, and which ask."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, StaleDefinition, UnknownPlan
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.tool import ToolError
from planwarden.agent.ports.store import Store
from planwarden.server.api.grants import GrantRequest, GrantView
from tests.kit import Authority, Decision, ManualClock, MemoryStore, Settings, by, decide, requirement
from tests.support.wardens import Ledger, calls, model_step, pass_time, plan, says, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
ALLOWED = "A person allowed calls of erase in this step of the saved plan 'weekly'"
STEPS = (
    tool_step("find", "find", {"topic": "old"}),
    tool_step("purge", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}),
    tool_step("last", "erase", {"ids": [9]}),
)


def write_plan(home: Path, name: str, *steps: dict[str, JsonValue], **extra: JsonValue) -> None:
    (home / "plans").mkdir(exist_ok=True)
    (home / "plans" / f"{name}.json").write_text(json.dumps({**extra, "todoList": steps}))


@asynccontextmanager
async def opened(
    home: Path,
    ledger: Ledger | None,
    *steps: dict[str, JsonValue],
    tools: Sequence[object] = (),
    store: Store | None = None,
    script: Sequence[JsonValue] | None = None,
) -> AsyncGenerator[planwarden.Warden]:
    """A warden with the plans of the home, of which `weekly` has these steps."""
    write_plan(home, "weekly", *steps)
    async with warden(ledger, tools=tools, store=store, settings=Settings(home=home), script=script) as made:
        yield made


async def allow(
    w: planwarden.Warden,
    uses: int = 5,
    *,
    plan: str = "weekly",
    step: str = "purge",
    tool: str = "erase",
    days: float = 90,
    authority: Authority | None = None,
    owner: str | None = None,
    **arguments: JsonValue,
) -> GrantView:
    found = await w.service.grants.find_step(plan, step, tool)
    request = GrantRequest(
        tool_name=tool, arguments=arguments, step=found.step, uses=uses, expires_in_s=days * DAY_S, owner=owner
    )
    return await w.service.grants.make(request, authority or by())


def found_in(execution: planwarden.Execution) -> tuple[str, ...]:
    """What a person is told who is asked."""
    [asked] = execution.suspensions
    return tuple(sentence for sentence in asked.found if sentence.startswith("A person allowed"))


@requirement("grants:step")
async def test_a_call_of_the_step_runs_without_a_question_so_often_a_day_and_no_other_call_does(tmp_path: Path) -> None:
    ledger, clock = Ledger(), ManualClock(1_000 * DAY_S + 9 * 3600)
    async with opened(tmp_path, ledger, *STEPS[:2], store=MemoryStore(clock)) as w:
        made = await allow(w, 2)
        runs = [await w.run_plan("weekly") for _ in range(3)]
        [spent] = await w.service.grants.list()
        clock.advance(DAY_S)
        tomorrow = await w.run_plan("weekly")
        rows = (await w.service.audit.read_page()).rows
        assert (await w.service.audit.verify()).problems == ()
    assert [run.status for run in (*runs, tomorrow)] == ["completed", "completed", "suspended", "completed"]
    assert ledger.lines == ["erase [1, 2, 3]"] * 3
    assert (spent.uses_left, spent.is_open) == (0, True)
    assert found_in(runs[2]) == (f"{ALLOWED}, 2 calls a day (UTC), and those of today are used.",)
    [facts] = [row.facts for row in rows if row.kind == "grant_made"]
    assert made.step is not None
    assert {name: facts[name] for name in ("per", "plan", "version", "step", "uses")} == {
        "per": "day",
        "plan": "weekly",
        "version": made.step.version,
        "step": "purge",
        "uses": 2,
    }
    assert [row.facts["grant"] for row in rows if row.kind == "granted"] == [made.grant_id] * 3


@requirement("grants:step")
async def test_another_step_of_the_plan_and_the_same_step_of_another_plan_ask(tmp_path: Path) -> None:
    ledger = Ledger()
    write_plan(tmp_path, "copy", *STEPS)
    async with opened(tmp_path, ledger, *STEPS) as w:
        await allow(w)
        mine = await w.run_plan("weekly")
        copy = await w.run_plan("copy")
        same = await w.execute_plan({"todoList": list(STEPS)})
    assert statuses(mine) == {"find": "completed", "purge": "completed", "last": "suspended"}
    assert [statuses(run)["purge"] for run in (copy, same)] == ["suspended"] * 2
    assert ledger.lines == ["erase [1, 2, 3]"] and found_in(mine) == found_in(copy) == found_in(same) == ()


@requirement("grants:step")
async def test_a_changed_plan_asks_and_the_plan_as_it_was_does_not(tmp_path: Path) -> None:
    ledger = Ledger()
    async with opened(tmp_path, ledger, *STEPS[:2]) as w:
        await allow(w)
        write_plan(tmp_path, "weekly", *STEPS[:2], title="Weekly")
        changed = await w.run_plan("weekly")
        [shown] = await w.service.grants.list()
        write_plan(tmp_path, "weekly", *STEPS[:2])
        again = await w.run_plan("weekly")
    assert (changed.status, again.status) == ("suspended", "completed")
    assert shown.step is not None and shown.step.has_changed and shown.is_open
    [sentence] = found_in(changed)
    assert shown.step.version[:12] in sentence and "and this is version" in sentence


@requirement("grants:step")
async def test_a_run_whose_plan_or_arguments_were_changed_asks_from_then_on(tmp_path: Path) -> None:
    ledger = Ledger()
    other = plan(tool_step("first", "find", {"topic": "x"}), STEPS[2])
    async with opened(tmp_path, ledger, tool_step("first", "erase", {"ids": [1]}), STEPS[2]) as w:
        await allow(w, step="last")
        same = await decide(w, await w.run_plan("weekly"))
        edited = await decide(w, await w.run_plan("weekly"), Decision(approved=True, modified_args={"ids": [2]}))
        review: dict[str, JsonValue] = {"review": "person"}
        agreed = await decide(w, await w.run_plan("weekly", options=review))
        agreed = await decide(w, agreed)
        changed = await decide(
            w, await w.run_plan("weekly", options=review), Decision(approved=True, content={"plan": other})
        )
    assert [statuses(run)["last"] for run in (same, agreed)] == ["completed"] * 2
    assert [statuses(run) for run in (edited, changed)] == [{"first": "completed", "last": "suspended"}] * 2
    assert all("but not in a run whose plan or calls were changed" in found_in(run)[0] for run in (edited, changed))


@requirement("grants:step")
async def test_a_plan_that_a_model_revised_asks(tmp_path: Path) -> None:
    ledger = Ledger()
    patch: JsonValue = [{"op": "add", "step": tool_step("more", "note", {"text": "x"})}]
    look: JsonValue = {
        "when": {"purpose": "step"},
        "reply": {"toolCalls": [{"toolName": "find", "arguments": {"topic": "x"}}], "revise": patch},
    }
    async with opened(tmp_path, ledger, model_step("look", "find"), STEPS[2], script=[look, *[says("found")] * 2]) as w:
        await allow(w, step="last")
        run = await w.run_plan("weekly")
    assert statuses(run) == {"look": "completed", "last": "suspended", "more": "pending"}
    assert len(found_in(run)) == 1 and ledger.lines == []


@requirement("grants:step")
async def test_calls_that_a_model_writes_ask(tmp_path: Path) -> None:
    ledger = Ledger()
    last = tool_step("last", "erase", {"ids": [9]})
    last["requiredTools"] = ["erase", "find"]
    async with opened(
        tmp_path, ledger, model_step("free", "erase"), last, script=[calls(("erase", {"ids": [1]}))]
    ) as w:
        found = await w.service.grants.find_step("weekly", "last", "erase")
        made = await allow(w, step="last")
        [grant] = await w.service.engine.store.grants(only_open=True)
        w.service.engine.grants.fill([replace(grant, step=replace(found.step, step_id="free"))])
        run = await w.run_plan("weekly")
    assert made.is_open and statuses(run)["free"] == "suspended" and ledger.lines == []


@requirement("grants:step")
@pytest.mark.parametrize("way", ["retry", "fork", "fork with the same plan"])
async def test_retries_and_forks_ask(tmp_path: Path, way: str) -> None:
    steps = (tool_step("first", "erase", {"ids": [1]}, onReject="stop"), STEPS[2])
    async with opened(tmp_path, Ledger(), *steps) as w:
        await allow(w, step="last")
        run = await decide(w, await w.run_plan("weekly"), Decision(approved=way != "retry"))
        if way == "retry":
            again = await decide(w, await w.retry(run.thread_id))
        else:
            same = None if way == "fork" else plan(*steps)
            again = await w.retry(run.thread_id, from_step="last", plan=same)
    assert run.status == ("rejected" if way == "retry" else "completed")
    assert statuses(again) == {"first": "completed", "last": "suspended"}


@requirement("grants:step")
async def test_each_call_of_a_loop_is_a_use_and_the_rest_asks_in_one_question(tmp_path: Path) -> None:
    ledger = Ledger()
    loop = tool_step("purge", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2, 3, 4, 5])
    async with opened(tmp_path, ledger, loop) as w:
        await allow(w, 3)
        run = await w.run_plan("weekly")
        [question] = run.suspensions
        [shown] = await w.service.grants.list()
        done = await decide(w, run)
    assert ledger.lines == [f"erase [{n}]" for n in range(1, 6)] and done.status == "completed"
    assert question.calls is not None and [row.arguments for row in question.calls] == [{"ids": [4]}, {"ids": [5]}]
    assert shown.uses_left == 0 and len(found_in(run)) == 1


@requirement("grants:step")
async def test_each_attempt_of_a_call_is_a_use(tmp_path: Path) -> None:
    attempts = list[int]()

    @planwarden.tool(name="push")
    async def push() -> str:
        """Push."""
        attempts.append(len(attempts))
        if len(attempts) < 3:
            raise ToolError("busy", retryable=True)
        return "done"

    clock = ManualClock()
    step = tool_step("purge", "push", retry={"attempts": 3, "delayS": 10})
    async with opened(tmp_path, None, step, tools=[push], store=MemoryStore(clock)) as w:
        await allow(w, 2, tool="push")
        run = await w.run_plan("weekly")
        for made in (1, 2):
            assert (run.status, run.suspensions, len(attempts)) == ("suspended", (), made)
            run = await pass_time(w, clock, run, 100)
    assert [asked.kind for asked in run.suspensions] == ["approval"]
    assert run.status == "suspended" and len(attempts) == 2


@requirement("grants:step")
@pytest.mark.parametrize("maker", ["human", "signed", "second", "embedder"])
async def test_no_grant_for_a_step_lets_a_critical_call_through_whoever_made_it(
    tmp_path: Path, maker: ev.Assurance
) -> None:
    done = list[str]()

    def make_wipe(risk: Any) -> object:
        @planwarden.tool(name="wipe", risk=risk)
        async def wipe() -> str:
            """Wipe."""
            done.append("wipe")
            return "done"

        return wipe

    authority = by("zoe", maker)
    wipe = tool_step("purge", "wipe")
    async with opened(tmp_path, None, wipe, tools=[make_wipe("critical")]) as w:
        with pytest.raises(InvalidArguments, match="wipe is critical"):
            await allow(w, tool="wipe", authority=authority)
        [definition] = [found for found in w.service.engine.tools.definitions() if found.name == "wipe"]
        found = await w.service.grants.find_step("weekly", "purge", "wipe")
    store = MemoryStore()
    async with opened(tmp_path, None, wipe, tools=[make_wipe("dangerous")], store=store) as w:
        await allow(w, tool="wipe", authority=authority)
        [grant] = await store.grants(only_open=True)
        assert grant.step == found.step
    # As if the digest of the definition had not changed with the risk.
    unchanged = replace(grant, grant_id="unchanged", definition_digest=definition.digest)
    await store.add_grant(unchanged, AuditEntry(kind="grant_made", facts={}))
    async with opened(tmp_path, None, wipe, tools=[make_wipe("critical")], store=store) as w:
        assert (await w.run_plan("weekly")).status == "suspended" and done == []


@requirement("grants:step")
async def test_a_call_whose_outcome_is_unknown_asks_what_happened(tmp_path: Path) -> None:
    sent = list[str]()

    @planwarden.tool(name="send")
    async def send() -> str:
        """Send."""
        sent.append("send")
        raise planwarden.OutcomeUnknown("the line went dead")

    async with opened(tmp_path, None, tool_step("purge", "send"), tools=[send]) as w:
        await allow(w, tool="send")
        run = await w.run_plan("weekly")
    assert [asked.kind for asked in run.suspensions] == ["reconcile"] and sent == ["send"]


@requirement("grants:step")
async def test_a_forecast_says_which_calls_a_grant_will_let_through(tmp_path: Path) -> None:
    last = tool_step("last", "erase", {"ids": [9]})
    last["toolCalls"] = [{"toolName": "erase", "arguments": {"ids": [n]}} for n in range(3)]
    async with opened(tmp_path, Ledger(), *STEPS[:2], tool_step("twice", "erase", {"ids": [1]}), last) as w:
        bound = await allow(w)
        known = await allow(w, 2, step="last")
        saved = (await w.library.look()).find("weekly")
        of_saved = await w.service.forecast_plan(
            saved.document, name=saved.name, version=saved.digest, principal="local"
        )
        of_copy = await w.service.forecast_plan(saved.document, principal="local")
    assert [(found.step_id, found.grant_id) for found in of_saved.only_the_run_knows] == [("purge", bound.grant_id)]
    assert [(found.step_id, found.grant_id) for found in of_saved.allowed] == [("last", known.grant_id)] * 2
    assert [found.step_id for found in of_saved.asks] == ["twice", "last"]
    assert of_copy.allowed == () and [found.grant_id for found in of_copy.only_the_run_knows] == [None]


@requirement("grants:step")
async def test_a_process_that_was_refused_a_use_takes_one_of_the_next_day_without_being_told(tmp_path: Path) -> None:
    ledger, clock = Ledger(), ManualClock(1_000 * DAY_S + 9 * 3600)
    async with opened(tmp_path, ledger, STEPS[2], store=MemoryStore(clock)) as w:
        await allow(w, 1, step="last")
        runs = [await w.run_plan("weekly")]
        w.service.engine.grants.fill(await w.service.engine.store.grants(only_open=True))
        runs += [await w.run_plan("weekly") for _ in range(2)]
        clock.advance(DAY_S)
        runs.append(await w.run_plan("weekly"))
    assert [run.status for run in runs] == ["completed", "suspended", "suspended", "completed"]


@requirement("grants:step")
async def test_a_grant_for_a_step_ends_after_ninety_days_and_is_for_the_plan_that_was_shown(tmp_path: Path) -> None:
    ledger, clock = Ledger(), ManualClock()
    async with opened(tmp_path, ledger, STEPS[2], store=MemoryStore(clock)) as w:
        await allow(w, step="last", ids=[9])
        runs = [await w.run_plan("weekly")]
        clock.advance(90 * DAY_S)
        runs.append(await w.run_plan("weekly"))
        shown = await w.service.grants.find_step("weekly", "last", "erase")
        write_plan(tmp_path, "weekly", *STEPS, title="changed")
        request = GrantRequest(tool_name="erase", arguments={}, step=shown.step, uses=5, expires_in_s=DAY_S)
        with pytest.raises(StaleDefinition):
            await w.service.grants.make(request, by())
    assert [run.status for run in runs] == ["completed", "suspended"] and ledger.lines == ["erase [9]"]


@requirement("grants:step")
@pytest.mark.parametrize(
    ("wanted", "error", "said"),
    [
        ({"plan": "weakly"}, UnknownPlan, "did you mean 'weekly'"),
        ({"step": "purg"}, InvalidArguments, r"has no step 'purg' \(did you mean 'purge'\?\)"),
        ({"tool": "erse"}, InvalidArguments, r"does not call 'erse' \(did you mean 'erase'\?\)"),
        ({"step": "last", "ids": [8]}, InvalidArguments, "never calls with this value of 'ids'"),
        ({"step": "last", "colour": "red"}, InvalidArguments, "colour"),
        ({"step": "last", "days": 91}, InvalidArguments, None),
        ({"step": "free"}, InvalidArguments, "a model writes the calls of 'erase' in step 'free'"),
        ({"step": "find", "tool": "find"}, InvalidArguments, None),
        ({"authority": by(assurance="claimed")}, InvalidArguments, None),
        ({"authority": by(assurance="client")}, InvalidArguments, None),
    ],
)
async def test_a_grant_for_a_step_that_is_too_much_or_not_a_persons_is_refused_with_what_was_meant(
    tmp_path: Path, wanted: dict[str, Any], error: type[Exception], said: str | None
) -> None:
    async with opened(tmp_path, Ledger(), *STEPS, model_step("free", "erase")) as w:
        with pytest.raises(error, match=said):
            await allow(w, **wanted)
        assert await w.service.grants.list() == ()
