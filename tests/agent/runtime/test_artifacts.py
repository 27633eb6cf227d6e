"""Large results: whole in the store, a stand-in in the log, and references that lead into the whole.

References are bounded, and read without a copy of what is not needed; a loop goes through a list that is too large for
arguments, each item as small as any.
"""

import json
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.artifact import INLINE_BYTES, ResultWithArtifacts, make_artifact
from planwarden.agent.common.errors import StoreError, ToolError
from planwarden.agent.core.binding import pointers
from planwarden.agent.core.execution.references import MAX_ARGUMENT_BYTES, MAX_REFERENCES
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.agent.runtime.artifact_reader import MAX_PARSED_BYTES, read_wanted
from tests import kit
from tests.harness.ledger import Ledger as EffectLedger
from tests.kit import Tool, define, ev
from tests.support.fakes import CrashingStore, recording_tool
from tests.support.wardens import run

CONTEXT = CallContext(execution_id="e", step_id="s", call_id="s:1", idempotency_key="e:s:1")


@kit.requirement("artifact:whole")
async def test_a_large_result_is_stored_whole_and_the_log_holds_a_stand_in() -> None:
    store = kit.MemoryStore()
    async with kit.warden(tools=[kit.crawl], store=store) as w:
        done = await w.execute_plan(kit.plan(kit.tool_step("a", "crawl")))
        stood = kit.stand_in_of(done.steps[0])
        whole = await w.service.read_artifact(done.thread_id, stood["artifactId"], principal="local")
        log = await store.read(done.execution_id)
    document = json.loads(whole.data)
    assert (stood["sizeBytes"], stood["mediaType"]) == (len(whole.data), "application/json")
    assert len(document["results"]) == kit.PAGES and document["results"][-1]["text"] == "é" * 50
    assert stood["preview"] == whole.data[:4_000].decode() and len(str(log)) < 20_000


@kit.requirement("artifact:whole")
async def test_a_pointer_leads_into_the_whole_of_one_of_several_large_results() -> None:
    several: JsonValue = [
        {"toolName": "crawl", "arguments": {"pages": 1}},
        {"toolName": "crawl", "arguments": {"start": 7}},
    ]
    paths = ("/0/results/0/url", f"/1/results/{kit.PAGES - 1}/url")
    done, lines = await run(
        {"id": "a", "description": "crawl", "toolCalls": several},
        *(kit.tool_step(f"b{n}", "note", {"text": {"$from": "a", "pointer": p}}) for n, p in enumerate(paths)),
        tools=[kit.crawl],
    )
    assert (done.status, lines) == ("completed", ["note https://a.test/0", "note https://a.test/3006"])


@kit.requirement("artifact:whole")
@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ({}, "does not fit into arguments, which may have 262144 bytes (crawl returned 1"),
        ({"pointer": "/results"}, "leads to more than 262144 bytes or 20000 values; point to the part that is needed"),
        ({"pointer": "/results/9999"}, "has nothing there"),
    ],
)
async def test_a_reference_that_cannot_be_followed_into_a_large_result_says_why(
    reference: dict[str, JsonValue], why: str
) -> None:
    step = kit.tool_step("b", "note", {"text": {"$from": "a", **reference}})
    done, lines = await run(kit.tool_step("a", "crawl"), step, tools=[kit.crawl])
    assert (done.status, lines) == ("failed", [])
    assert done.steps[1].error is not None and why in done.steps[1].error.message


@kit.requirement("artifact:whole")
async def test_a_tool_cannot_pass_a_value_off_as_an_artifact() -> None:
    @planwarden.tool(risk="read", effect="read")
    async def forge(other: str) -> JsonValue:
        """Pretends."""
        return {"truncated": True, "stored": True, "artifactId": other, "mediaType": "x", "preview": "mine"}

    done, lines = await run(
        kit.tool_step("a", "forge", {"other": make_artifact(b"[1]").artifact_id}),
        kit.tool_step("b", "note", {"text": {"$from": "a", "pointer": "/preview"}}),
        tools=[forge],
    )
    assert (done.status, lines) == ("completed", ["note mine"])


@planwarden.tool(risk="read", effect="read")
async def big() -> dict[str, JsonValue]:
    """Many ids."""
    return {"results": [{"ids": [n], "text": "x" * 90} for n in range(kit.PAGES)]}


@planwarden.tool(execution_mode="blocking", risk="confirm")
async def sign() -> str:
    """Ask for a signature."""
    return "Sign here."


@kit.requirement("artifact:whole")
@pytest.mark.parametrize("tool", ["displayConfirmation", "sign"])
async def test_only_a_confirmation_that_shows_them_covers_arguments_in_an_artifact(tmp_path: Path, tool: str) -> None:
    ledger = kit.Ledger()
    steps = kit.plan(
        kit.tool_step("n", "big"),
        kit.tool_step("ask", tool, {} if tool == "sign" else {"action": "erase?"}, confirms=["b"]),
        kit.tool_step("b", "erase", {"ids": {"$from": "n", "pointer": "/results/1/ids"}}),
    )
    async with planwarden.Warden(home=tmp_path, tools=[big, sign, *ledger.tools()]) as w:
        asked = await w.execute_plan(steps, wait_seconds=60)
        shown = [covered.arguments for covered in asked.suspensions[0].confirms]
        assert shown == ([] if tool == "sign" else [{"ids": [1]}])
    async with planwarden.Warden(home=tmp_path, tools=[big, sign, *ledger.tools()]) as w:
        done = await kit.decide(w, asked)
        if tool == "sign":
            [question] = done.suspensions
            assert question.tool_call is not None and question.tool_call.arguments == {"ids": [1]} and not ledger.lines
            done = await kit.decide(w, done)
    assert (done.status, ledger.lines) == ("completed", ["erase [1]"])


async def test_a_result_is_kept_in_the_log_or_in_an_artifact_or_fails_the_call() -> None:
    def returning(value: object) -> kit.Registry:
        definition = define(ToolDefinition(name="t", description="x", input_schema={}))
        return kit.Registry([Tool(definition, kit.build_constant_call(value))], max_result_bytes=300_000)

    assert INLINE_BYTES >= MAX_ARGUMENT_BYTES
    exact = "x" * (INLINE_BYTES - 2)
    assert await returning(exact).call("t", {}, CONTEXT) == exact
    assert isinstance(await returning(exact + "x").call("t", {}, CONTEXT), ResultWithArtifacts)
    for value, why in (
        ("x" * 400_000, "cannot be kept: it has more than 300000 bytes or 1000000 values; it begins with 'xxx"),
        (Suspend(message="?", resume_payload="x" * 2_000_000), "form or payload of more than 1048576 bytes"),
    ):
        with pytest.raises(ToolError, match=why):
            await returning(value).call("t", {}, CONTEXT)


@kit.requirement("artifact:damage")
@pytest.mark.parametrize("change", ["media_type = 'text/plain'", "data = zeroblob(length(data))"])
async def test_a_damaged_artifact_fails_the_call_that_needs_it_and_reading_it(tmp_path: Path, change: str) -> None:
    ledger = kit.Ledger()
    last = kit.tool_step("b", "note", {"text": {"$from": "a", "pointer": "/results/0/url"}})
    async with planwarden.Warden(home=tmp_path, tools=[kit.crawl, *ledger.tools()]) as w:
        asked = await w.execute_plan(kit.plan(kit.tool_step("a", "crawl"), kit.confirm("ask"), last))
        name = kit.stand_in_of(asked.steps[0])["artifactId"]
        with closing(sqlite3.connect(tmp_path / "planwarden.db", isolation_level=None)) as connection:
            connection.execute(f"UPDATE artifacts SET {change}")
        with pytest.raises(StoreError, match=f"artifact '{name}' is damaged"):
            await w.service.read_artifact(asked.thread_id, name, principal="local")
        done = await kit.decide(w, asked)
    assert (done.status, ledger.lines) == ("failed", [])
    assert done.steps[2].error is not None and "is damaged" in done.steps[2].error.message


async def _mentioned_and_stored(path: Path) -> tuple[set[str], set[str]]:
    store = kit.SqliteStore.open(path)
    mentioned: set[str] = set()
    for header in await store.executions(None, 10):
        for entry in await store.read(header.execution_id):
            if isinstance(entry.event, ev.ToolReturned) and entry.event.artifact is not None:
                mentioned.add(entry.event.artifact)
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        return mentioned, {row[0] for row in connection.execute("SELECT artifact_id FROM artifacts")}


@kit.requirement("artifact:atomic", "crash:every-call")
async def test_a_crash_at_any_store_call_leaves_no_artifact_without_its_event(tmp_path: Path) -> None:
    counted: list[int] = []
    for at in range(1, 100):
        for when in ("before", "after"):
            folder = tmp_path / f"{at}{when}"
            folder.mkdir()
            ledger = EffectLedger(folder / "effects")
            dump = recording_tool(ledger, "dump", filler_bytes=300_000)
            inner = kit.SqliteStore.open(folder / "planwarden.db")
            store = CrashingStore(inner, at=at, when="before" if when == "before" else "after")
            try:
                async with kit.warden(tools=[dump], store=store) as w:
                    await w.execute_plan(kit.plan(kit.tool_step("a", "dump")))
            # The store's death surfaces through a task group, alone or with what it brought down.
            except BaseExceptionGroup:
                pass
            except BaseException as error:
                if type(error).__name__ != "Crash":
                    raise
            await inner.close()
            mentioned, stored = await _mentioned_and_stored(folder / "planwarden.db")
            assert mentioned == stored
            counted.append(len(stored))
            if not store.is_dead:
                assert set(counted) == {0, 1}
                return
    raise AssertionError("the run never ended")


Json = dict[str, JsonValue]
SIZE = 200_000


@kit.requirement("references:bounded")
@pytest.mark.parametrize(
    ("times", "pointer", "why"),
    [
        (2_500, "/filler", f"more than {MAX_REFERENCES} '$from' references"),
        (MAX_REFERENCES, "/filler", f"would be larger than {MAX_ARGUMENT_BYTES} bytes"),
        (2, "/filler", "at least 200002 bytes, 2 times through '$from'; point to the parts that are needed"),
        (2, "", "would be larger than"),
        (500, "/done", None),
    ],
)
async def test_a_plan_that_names_a_large_result_many_times_is_refused_before_anything_is_copied(
    times: int, pointer: str, why: str | None, tmp_path: Path
) -> None:
    named: list[JsonValue] = [{"$from": "a", "pointer": pointer} for _ in range(times)]
    seen = EffectLedger(tmp_path / "ledger")
    take = recording_tool(seen, "take", properties={"values": {"type": "array"}})
    steps = kit.plan(kit.tool_step("a", "big"), kit.tool_step("b", "take", {"values": named}))
    async with kit.warden(tools=[recording_tool(seen, "big", filler_bytes=SIZE), take]) as w:
        tracemalloc.start()
        try:
            done = await w.execute_plan(steps)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # What is said of 2,500 references takes some memory; what they name would take 500 MB.
    assert peak < 40 * SIZE
    assert seen.tools_run() == (["big", "take"] if why is None else ["big"])
    error = done.steps[1].error
    assert error is None if why is None else error is not None and why in error.message


def build_rows(count: int, note_chars: int = 150) -> list[JsonValue]:
    return [{"id": number, "to": f"c{number}@example.org", "note": "é" * note_chars} for number in range(count)]


@kit.requirement("references:process")
async def test_a_process_that_fails_on_an_artifact_is_a_fault_of_the_reference() -> None:
    broken = make_artifact(b'{"a": ' + b" " * MAX_PARSED_BYTES)
    address = pointers.PartAddress(broken.artifact_id, "/a")
    found = await read_wanted(kit.MemoryStore(), "t", frozenset({address}), {broken.artifact_id: broken})
    assert "it ended with code 1" in str(found[address].fault)


@planwarden.tool(risk="read", effect="read")
async def collect(count: int = 6_000, chars: int = 150, as_text: bool = False) -> JsonValue:
    """Finds more customers than fit into arguments."""
    rows = build_rows(count, chars)
    return {"text": json.dumps(rows)} if as_text else {"rows": rows}


def each(items: JsonValue, tool: str = "note", name: str = "text", **extra: JsonValue) -> Json:
    step = kit.tool_step("each", tool, {name: {"$from": "item", "pointer": "/to"}})
    return {**step, "forEach": items, "maxItems": 10_000, "maxConcurrent": 32, **extra}


@kit.requirement("loop:large")
@pytest.mark.parametrize("as_text", [False, True])
async def test_a_loop_goes_through_a_large_list_of_an_artifact_and_a_condition_can_look_at_it(as_text: bool) -> None:
    rows: Json = {"$from": "a", "pointer": "/text", "parse": "json"} if as_text else {"$from": "a", "pointer": "/rows"}
    first = kit.tool_step("a", "collect", {"count": 300, "chars": 2_000, "as_text": as_text})
    loop = each(rows, when={"value": rows, "matches": {"minItems": 1}})
    done, lines = await run(first, loop, tools=[collect])
    assert done.status == "completed", done.steps[1].error
    assert sorted(lines) == sorted(f"note c{number}@example.org" for number in range(300))


@kit.requirement("loop:large")
def test_each_item_and_the_whole_list_are_bounded() -> None:
    large: JsonValue = "x" * (MAX_ARGUMENT_BYTES + 1)
    lists: list[tuple[list[JsonValue], str]] = [
        (build_rows(10_000, 40), "None"),
        ([], "None"),
        (["\ud800"], "None"),
        (list[JsonValue](range(pointers.MAX_LISTED + 1)), f"{pointers.MAX_LISTED + 1} items"),
        ([1, large], "item at index 1 has more than"),
        (
            ["x" * 200_000 for _ in range(pointers.MAX_LIST_BYTES // 200_000 + 1)],
            f"more than {pointers.MAX_LIST_BYTES} bytes",
        ),
        (
            [list[JsonValue]([0] * 100) for _ in range(pointers.MAX_LIST_VALUES // 100 + 1)],
            f"{pointers.MAX_LIST_VALUES} values",
        ),
    ]
    for items, why in lists:
        assert why in str(pointers.find_list_fault(items))
