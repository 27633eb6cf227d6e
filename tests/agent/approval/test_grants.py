"""Grants: which calls they let through without a question, anywhere or in a step of a saved plan, and which ask."""

import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import JsonValue

import planwarden
from planwarden.agent.common import errors
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.api.grants import GrantRequest, GrantView
from planwarden.storage.sqlite.store import SqliteStore
from tests import kit
from tests.kit import AuditEntry, Tool, define, ev

Json = dict[str, JsonValue]
DAY_S = 86_400.0
ALLOWED = "A person allowed calls of erase in this step of the saved plan 'weekly'"
STEPS = (
    kit.tool_step("find", "find", {"topic": "old"}),
    kit.tool_step("purge", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}),
    kit.tool_step("last", "erase", {"ids": [9]}),
)


def write_plan(home: Path, name: str, *steps: dict[str, JsonValue], **extra: JsonValue) -> None:
    kit.save_plan(home, name, {**extra, "todoList": [*steps]})


@asynccontextmanager
async def opened(
    home: Path,
    ledger: kit.Ledger | None,
    *steps: dict[str, JsonValue],
    tools: Sequence[object] = (),
    store: kit.Store | None = None,
    script: Sequence[JsonValue] | None = None,
) -> AsyncGenerator[planwarden.Warden]:
    """A warden with the plans of the home, of which `weekly` has these steps."""
    write_plan(home, "weekly", *steps)
    async with kit.warden(ledger, tools=tools, store=store, settings=kit.Settings(home=home), script=script) as made:
        yield made


async def allow_step(w: planwarden.Warden, uses: int = 5, **more: Any) -> GrantView:
    """Allow calls of `erase` in the step `purge` of `weekly`, unless a test says otherwise."""
    given: dict[str, Any] = {"plan": "weekly", "days": 90, **more}
    return await allow(w, uses, **given)


def found_in(execution: planwarden.Execution) -> tuple[str, ...]:
    """What a person is told who is asked."""
    [asked] = execution.suspensions
    return tuple(sentence for sentence in asked.found if sentence.startswith("A person allowed"))


@kit.requirement("grants:step")
async def test_a_call_of_the_step_runs_without_a_question_so_often_a_day(tmp_path: Path) -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock(1_000 * DAY_S + 9 * 3600)
    async with opened(tmp_path, ledger, *STEPS[:2], store=kit.MemoryStore(clock)) as w:
        made = await allow_step(w, 2)
        engine = kit.find_engine(w)
        unused = await engine.store.grants(only_open=True)
        runs = [await w.run_plan("weekly") for _ in range(3)]
        [spent] = await w.service.grants.list()
        # As in a process that was not told of the uses yet.
        engine.grants.fill(unused)
        runs += [await w.run_plan("weekly") for _ in range(2)]
        clock.advance(DAY_S)
        runs.append(await w.run_plan("weekly"))
        rows = (await kit.read_audit_page(w.service.store)).rows
        assert (await kit.verify_audit(w.service.store)).problems == ()
    assert [run.status for run in runs] == ["completed"] * 2 + ["suspended"] * 3 + ["completed"]
    assert ledger.lines == ["erase [1, 2, 3]"] * 3
    assert (spent.uses_left, spent.is_open) == (0, True)
    assert found_in(runs[2]) == (f"{ALLOWED}, 2 calls a day (UTC), and today's are used up.",)
    [facts] = [row.facts for row in rows if row.kind == "grant_made"]
    assert made.step is not None and facts["version"] == made.step.version
    assert (facts["per"], facts["plan"], facts["step"], facts["uses"]) == ("day", "weekly", "purge", 2)
    assert [row.facts["grant"] for row in rows if row.kind == "granted"] == [made.grant_id] * 3


@kit.requirement("grants:step")
async def test_another_step_of_the_plan_and_the_same_step_of_another_plan_ask(tmp_path: Path) -> None:
    ledger = kit.Ledger()
    write_plan(tmp_path, "copy", *STEPS)
    async with opened(tmp_path, ledger, *STEPS) as w:
        await allow_step(w)
        mine = await w.run_plan("weekly")
        copy = await w.run_plan("copy")
        same = await w.execute_plan({"todoList": list(STEPS)})
    assert kit.statuses(mine) == {"find": "completed", "purge": "completed", "last": "suspended"}
    assert [kit.statuses(run)["purge"] for run in (copy, same)] == ["suspended"] * 2
    assert ledger.lines == ["erase [1, 2, 3]"] and found_in(mine) == found_in(copy) == found_in(same) == ()


@kit.requirement("grants:step")
async def test_a_run_whose_plan_or_arguments_were_changed_asks_from_then_on(tmp_path: Path) -> None:
    ledger = kit.Ledger()
    other = kit.plan(kit.tool_step("first", "find", {"topic": "x"}), STEPS[2])
    async with opened(tmp_path, ledger, kit.tool_step("first", "erase", {"ids": [1]}), STEPS[2]) as w:
        await allow_step(w, step="last")
        same = await kit.decide(w, await w.run_plan("weekly"))
        edited = await kit.decide(
            w, await w.run_plan("weekly"), kit.Decision(approved=True, modified_args={"ids": [2]})
        )
        review: dict[str, JsonValue] = {"review": "person"}
        agreed = await kit.decide(w, await w.run_plan("weekly", options=review))
        agreed = await kit.decide(w, agreed)
        changed = await kit.decide(
            w, await w.run_plan("weekly", options=review), kit.Decision(approved=True, content={"plan": other})
        )
    assert [kit.statuses(run)["last"] for run in (same, agreed)] == ["completed"] * 2
    assert [kit.statuses(run) for run in (edited, changed)] == [{"first": "completed", "last": "suspended"}] * 2
    assert all("none in a run whose plan or calls were changed" in found_in(run)[0] for run in (edited, changed))


@kit.requirement("grants:step")
async def test_calls_that_a_model_writes_ask(tmp_path: Path) -> None:
    ledger, last = kit.Ledger(), kit.tool_step("last", "erase", {"ids": [9]}, requiredTools=["erase", "find"])
    script = [kit.calls(("erase", {"ids": [1]}))]
    async with opened(tmp_path, ledger, kit.model_step("free", "erase"), last, script=script) as w:
        made = await allow_step(w, step="last")
        [grant] = await w.service.store.grants(only_open=True)
        assert grant.step is not None
        kit.find_engine(w).grants.fill([replace(grant, step=replace(grant.step, step_id="free"))])
        run = await w.run_plan("weekly")
    assert made.is_open and kit.statuses(run)["free"] == "suspended" and ledger.lines == []


@kit.requirement("grants:step")
@pytest.mark.parametrize("way", ["retry", "fork", "fork with the same plan"])
async def test_retries_and_forks_ask(tmp_path: Path, way: str) -> None:
    steps = (kit.tool_step("first", "erase", {"ids": [1]}, onReject="stop"), STEPS[2])
    async with opened(tmp_path, kit.Ledger(), *steps) as w:
        await allow_step(w, step="last")
        run = await kit.decide(w, await w.run_plan("weekly"), kit.Decision(approved=way != "retry"))
        if way == "retry":
            again = await kit.decide(w, await w.retry(run.thread_id))
        else:
            same = None if way == "fork" else kit.plan(*steps)
            again = await w.retry(run.thread_id, from_step="last", plan=same)
    assert run.status == ("rejected" if way == "retry" else "completed")
    assert kit.statuses(again) == {"first": "completed", "last": "suspended"}


@kit.requirement("grants:step")
async def test_each_call_of_a_loop_is_a_use_and_the_rest_asks_in_one_question(tmp_path: Path) -> None:
    ledger = kit.Ledger()
    loop = kit.tool_step("purge", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2, 3, 4, 5])
    async with opened(tmp_path, ledger, loop) as w:
        await allow_step(w, 3)
        run = await w.run_plan("weekly")
        [question] = run.suspensions
        [shown] = await w.service.grants.list()
        done = await kit.decide(w, run)
    assert ledger.lines == [f"erase [{n}]" for n in range(1, 6)] and done.status == "completed"
    assert question.calls is not None and [row.arguments for row in question.calls] == [{"ids": [4]}, {"ids": [5]}]
    assert shown.uses_left == 0 and len(found_in(run)) == 1


@kit.requirement("grants:step")
@pytest.mark.parametrize("maker", ["human", "signed", "second", "embedder"])
async def test_no_grant_for_a_step_lets_a_critical_call_through(tmp_path: Path, maker: ev.Assurance) -> None:
    done, store = list[str](), kit.MemoryStore()
    authority, wipe = kit.by("zoe", maker), kit.tool_step("purge", "wipe")
    async with opened(tmp_path, None, wipe, tools=[kit.acting("wipe", done, "critical")]) as w:
        with pytest.raises(errors.InvalidArguments, match="wipe is critical"):
            await allow_step(w, tool="wipe", authority=authority)
        [definition] = [found for found in w.service.tools.definitions() if found.name == "wipe"]
    async with opened(tmp_path, None, wipe, tools=[kit.acting("wipe", done, "dangerous")], store=store) as w:
        await allow_step(w, tool="wipe", authority=authority)
        [grant] = await store.grants(only_open=True)
    # As if the digest of the definition had not changed with the risk.
    unchanged = replace(grant, grant_id="unchanged", definition_digest=definition.digest)
    await store.add_grant(unchanged, AuditEntry(kind="grant_made", facts={}))
    async with opened(tmp_path, None, wipe, tools=[kit.acting("wipe", done, "critical")], store=store) as w:
        assert (await w.run_plan("weekly")).status == "suspended" and done == []


@kit.requirement("grants:step")
async def test_a_grant_for_a_step_ends_after_ninety_days_and_is_for_the_plan_that_was_shown(tmp_path: Path) -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock()
    async with opened(tmp_path, ledger, STEPS[2], store=kit.MemoryStore(clock)) as w:
        await allow_step(w, step="last", ids=[9])
        runs = [await w.run_plan("weekly")]
        clock.advance(90 * DAY_S)
        runs.append(await w.run_plan("weekly"))
        shown = await w.service.grants.find_step("weekly", "last", "erase")
        write_plan(tmp_path, "weekly", *STEPS, title="changed")
        request = GrantRequest(tool_name="erase", arguments={}, step=shown.step, uses=5, expires_in_s=DAY_S)
        with pytest.raises(errors.StaleDefinition):
            await w.service.grants.make(request, kit.by())
    assert [run.status for run in runs] == ["completed", "suspended"] and ledger.lines == ["erase [9]"]


def erase(*ids: int) -> Json:
    return kit.plan(kit.tool_step("a", "erase", {"ids": list(ids)}))


async def allow(
    w: planwarden.Warden,
    uses: int = 5,
    *,
    plan: str | None = None,
    step: str = "purge",
    tool: str = "erase",
    days: float = 1 / 24,
    authority: kit.Authority | None = None,
    owner: str | None = None,
    free: tuple[str, ...] = (),
    opens_others: bool = False,
    **arguments: JsonValue,
) -> GrantView:
    found = None if plan is None else (await w.service.grants.find_step(plan, step, tool)).step
    request = GrantRequest(
        tool_name=tool,
        arguments=arguments,
        step=found,
        uses=uses,
        expires_in_s=days * DAY_S,
        owner=owner,
        free=free,
        opens_others=opens_others,
    )
    return await w.service.grants.make(request, authority or kit.by())


@kit.requirement("approval:grants")
@pytest.mark.parametrize("other", ["arguments", "owner", "late", "revoked", "tool"])
async def test_anything_that_the_grant_does_not_name_is_asked(other: str) -> None:
    ledger, clock = kit.Ledger(), kit.ManualClock()
    store = kit.MemoryStore(clock)
    async with kit.warden(ledger, store=store) as w:
        made = await allow(w, owner="zoe" if other == "owner" else None, ids=[1])
        if other == "late":
            clock.advance(3600)
        if other == "revoked":
            await w.service.grants.revoke(made.grant_id, kit.by())
    tools = [kit.acting("erase", ledger.lines)] if other == "tool" else ledger.tools()
    async with kit.warden(tools=tools, store=store) as w:
        asked = await w.execute_plan(erase(2) if other == "arguments" else erase(1))
    assert asked.status == "suspended" and ledger.lines == []


@kit.requirement("approval:grants")
@pytest.mark.parametrize("opened", ["nothing", "one name", "all others"])
async def test_a_call_with_an_argument_that_nobody_allowed_is_asked_about(opened: str) -> None:
    sent: list[str] = []

    @planwarden.tool
    async def send(to: str, text: str, bcc: str | None = None, amount: float | None = None) -> str:
        """Send."""
        sent.append(f"{to} {text} {bcc} {amount}")
        return "sent"

    async with kit.warden(tools=[send]) as w:
        free = ("text",) if opened == "nothing" else ("text", "bcc")
        await allow(w, tool="send", to="ann", free=free, opens_others=opened == "all others")
        others: list[Json] = [{}, {"bcc": "eve"}, {"amount": 1e9}]
        calls = [kit.plan(kit.tool_step("a", "send", {"to": "ann", "text": "hello", **other})) for other in others]
        ended = [(await w.execute_plan(call)).status for call in calls]
    passed = {"nothing": 1, "one name": 2, "all others": 3}[opened]
    assert ended == ["completed"] * passed + ["suspended"] * (3 - passed) and len(sent) == passed


@kit.requirement("approval:grants")
@pytest.mark.parametrize(("allowed", "passed"), [(5, 2), (5.0, 2), ("5", 0), (True, 0)])
async def test_an_allowed_number_is_the_same_number_however_it_is_written(allowed: JsonValue, passed: int) -> None:
    schema: Json = {"type": "object", "properties": {"n": {}}}
    definition = ToolDefinition(name="pay", description="Pay.", input_schema=schema)
    async with kit.warden(tools=[Tool(define(definition), kit.build_constant_call("paid"))]) as w:
        await allow(w, tool="pay", n=allowed)
        calls = [kit.plan(kit.tool_step("a", "pay", {"n": number})) for number in (5, 5.0)]
        ended = [(await w.execute_plan(call)).status for call in calls]
    assert ended == ["completed"] * passed + ["suspended"] * (2 - passed)


@kit.requirement("approval:grants")
async def test_a_grant_is_worth_what_its_makers_word_is_worth() -> None:
    makers: tuple[tuple[ev.Assurance, str], ...] = (("human", "suspended"), ("signed", "completed"))
    async with kit.warden(tools=[kit.acting("wipe", [], "critical")]) as w:
        for assurance, status in makers:
            await allow(w, tool="wipe", authority=kit.by("local", assurance))
            assert (await w.execute_plan(kit.plan(kit.tool_step("a", "wipe")))).status == status


PLAIN: list[tuple[dict[str, Any], str | None]] = [
    ({"authority": kit.by(assurance="claimed")}, None),
    ({"authority": kit.by(assurance="client")}, None),
    ({"uses": 0}, None),
    ({"uses": 1001}, None),
    ({"days": 8.1 / 24}, None),
    ({"tool": "nothing"}, None),
    ({"tool": "find"}, None),
    ({"colour": "red"}, "colour"),
    ({"ids": "x" * 70_000}, None),
]
OF_STEPS: list[tuple[dict[str, Any], str | None]] = [
    ({"plan": "weakly"}, "did you mean 'weekly'"),
    ({"step": "purg"}, r"has no step 'purg' \(did you mean 'purge'\?\)"),
    ({"tool": "erse"}, r"does not call 'erse' \(did you mean 'erase'\?\)"),
    ({"step": "last", "ids": [8]}, "never calls with this value of 'ids'"),
    ({"step": "last", "days": 91}, None),
    ({"step": "free"}, "a model writes the calls of 'erase' in step 'free'"),
    ({"step": "find", "tool": "find"}, None),
    ({"authority": kit.by(assurance="claimed")}, None),
    ({"authority": kit.by(assurance="client")}, None),
]


@kit.requirement("approval:grants", "grants:step")
@pytest.mark.parametrize(
    ("wanted", "said"), [*PLAIN, *(({"plan": "weekly", "days": 90, **wanted}, said) for wanted, said in OF_STEPS)]
)
async def test_a_grant_that_is_too_much_or_not_a_persons_is_refused_with_what_was_meant(
    tmp_path: Path, wanted: dict[str, Any], said: str | None
) -> None:
    async with opened(tmp_path, kit.Ledger(), *STEPS, kit.model_step("free", "erase")) as w:
        with pytest.raises((errors.InvalidArguments, errors.UnknownTool, errors.UnknownPlan), match=said):
            await allow(w, **wanted)
        assert await w.service.grants.list() == ()


@kit.requirement("store:grants")
async def test_a_grant_that_is_over_elsewhere_releases_nothing(tmp_path: Path) -> None:
    ledger = kit.Ledger()
    async with planwarden.Warden(home=tmp_path, tools=ledger.tools()) as w:
        made = await allow(w, opens_others=True)
        engine = kit.find_engine(w)
        open_now = await engine.store.grants(only_open=True)
        await w.service.grants.revoke(made.grant_id, kit.by())
        # As in a process that was not told yet.
        engine.grants.fill(open_now)
        asked = await w.execute_plan(erase(1))
        assert asked.status == "suspended" and ledger.lines == []
        with pytest.raises(errors.UnknownGrant):
            await w.service.grants.revoke("nothing", kit.by())


DEEP = f"arguments = '{'[' * 5_000}{']' * 5_000}'"
DAMAGE = (
    DEEP,
    "arguments = '[1'",
    "arguments = '[]'",
    "free = '[1]'",
    "free = '['",
    "step = '{}'",
    "assurance = 'god'",
)


@kit.requirement("store:grants")
@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
async def test_a_damaged_grant_is_named_by_the_audit_and_stops_nothing_but_the_calls_that_it_would_let_through(
    tmp_path: Path, damage: str
) -> None:
    ledger = kit.Ledger()
    async with planwarden.Warden(home=tmp_path, tools=ledger.tools()) as w:
        damaged = await allow(w, opens_others=True)
        with closing(sqlite3.connect(tmp_path / "planwarden.db", isolation_level=None)) as connection:
            connection.execute(f"UPDATE grants SET {damage}")
        # This process still has the grant as it was.
        assert (await w.execute_plan(erase(1))).status == "suspended"
    async with planwarden.Warden(home=tmp_path, tools=ledger.tools()) as w:
        assert (await w.execute_plan(erase(2))).status == "suspended" and ledger.lines == []
        [problem] = (await kit.verify_audit(w.service.store)).problems
        assert problem == f"grant {damaged.grant_id!r} is in the audit and no longer stored, or damaged"
        other = await allow(w, opens_others=True)
        assert (await w.execute_plan(erase(3))).status == "completed" and ledger.lines == ["erase [3]"]
        assert [grant.grant_id for grant in await w.service.grants.list()] == [other.grant_id]
        await w.service.grants.revoke(damaged.grant_id, kit.by())


@kit.requirement("store:grants", "audit:proves-the-log")
@pytest.mark.parametrize("terms", [{"ids": [1, 2, 3]}, {"plan": "weekly", "days": 90}], ids=["anywhere", "a step"])
async def test_a_call_too_many_is_named_also_if_the_uses_were_set_back_before_it_and_corrected_after_it(
    tmp_path: Path, terms: dict[str, Any]
) -> None:
    ledger, path = kit.Ledger(), tmp_path / "planwarden.db"
    store = SqliteStore.open(path, clock=kit.ManualClock(1_000 * DAY_S + 9 * 3600))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        async with opened(tmp_path, ledger, *STEPS[:2], store=store) as w:
            made = await allow(w, 1, **terms)
            await w.run_plan("weekly")
            assert (await kit.verify_audit(store)).is_whole
        connection.execute("UPDATE grants SET used = 0, used_on = 0")
        async with opened(tmp_path, ledger, *STEPS[:2], store=store) as w:
            await w.run_plan("weekly")
        connection.execute("UPDATE grants SET used = 2")
        problems = (await kit.verify_audit(store)).problems
    await store.close()
    assert len(ledger.lines) == 2 and len(problems) == 1
    assert problems[0].endswith(f"lets through more calls than grant {made.grant_id!r} allows")


@kit.requirement("store:grants", "audit:proves-the-log")
async def test_a_call_through_a_revoked_grant_is_named_also_if_its_row_was_corrected_after_the_call(
    tmp_path: Path,
) -> None:
    ledger, path = kit.Ledger(), tmp_path / "planwarden.db"
    store = SqliteStore.open(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        async with opened(tmp_path, ledger, store=store) as w:
            made = await allow(w, ids=[1])
            await w.service.grants.revoke(made.grant_id, kit.by())
        connection.execute("UPDATE grants SET revoked_at = NULL")
        async with opened(tmp_path, ledger, store=store) as w:
            assert (await w.execute_plan(erase(1))).status == "completed"
        connection.execute("UPDATE grants SET revoked_at = 1.0")
        problems = (await kit.verify_audit(store)).problems
    await store.close()
    assert ledger.lines == ["erase [1]"] and len(problems) == 1
    assert problems[0].endswith(f"lets a call through after grant {made.grant_id!r} was revoked")
