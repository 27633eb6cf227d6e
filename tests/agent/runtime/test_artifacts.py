"""Large results: whole in the store, a stand-in in the log, and references that lead into the whole."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.artifact import INLINE_BYTES, ResultWithArtifacts, make_artifact
from planwarden.agent.common.errors import StoreError, ToolError
from planwarden.agent.core import events as ev
from planwarden.agent.core.references import MAX_ARGUMENT_BYTES
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.base import Tool, define
from planwarden.tools.registry import Registry
from tests.harness.ledger import Ledger as EffectLedger
from tests.harness.process import Worker
from tests.kit import MemoryStore, requirement
from tests.support.artifacts import PAGES, build_constant_call, crawl, stand_in_of
from tests.support.fakes import CrashingStore, recording_tool
from tests.support.wardens import Ledger, calls, decide, model_step, plan, run, tool_step, warden

pytestmark = pytest.mark.anyio

CONTEXT = CallContext(execution_id="e", step_id="s", call_id="s:1", idempotency_key="e:s:1")
URL = "https://a.test/2999"


@requirement("artifact:whole")
async def test_a_large_result_is_stored_whole_and_the_log_holds_a_stand_in() -> None:
    store = MemoryStore()
    async with warden(tools=[crawl], store=store) as w:
        done = await w.execute_plan(plan(tool_step("a", "crawl")))
        [stood] = [stand_in_of(step) for step in done.steps]
        whole = await w.service.read_artifact(done.thread_id, stood["artifactId"], principal="local")
        log = await store.read(done.execution_id)
    document = json.loads(whole.data)
    assert (stood["sizeBytes"], stood["mediaType"]) == (len(whole.data), "application/json")
    assert len(document["results"]) == PAGES and document["results"][-1]["text"] == "é" * 50
    assert stood["preview"] == whole.data[:4_000].decode() and len(str(log)) < 20_000
    [returned] = [entry.event for entry in log if isinstance(entry.event, ev.ToolReturned)]
    assert returned.artifact == stood["artifactId"]


@requirement("artifact:whole")
async def test_a_pointer_leads_into_the_whole_of_one_of_several_large_results() -> None:
    several: JsonValue = [
        {"toolName": "crawl", "arguments": {"pages": 1}},
        {"toolName": "crawl", "arguments": {"start": 7}},
        {"toolName": "crawl", "arguments": {"start": 8}},
    ]
    pointers = ("/0/results/0/url", f"/1/results/{PAGES - 1}/url", "/2/results/0/url")
    done, lines = await run(
        {"id": "a", "description": "crawl", "toolCalls": several},
        *(tool_step(f"b{n}", "note", {"text": {"$from": "a", "pointer": p}}) for n, p in enumerate(pointers)),
        tools=[crawl],
    )
    assert done.status == "completed", done.error
    assert lines == [f"note https://a.test/{number}" for number in (0, 3006, 8)]


@requirement("artifact:whole")
@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ({}, "does not fit into arguments, which may have 262144 bytes (crawl returned 1"),
        ({"pointer": "/results"}, "leads to more than 262144 bytes or 20000 values; point to the part that is needed"),
        ({"pointer": "/results/9999"}, "has nothing there"),
        ({"pointer": "/results/-"}, "has nothing there"),
        ({"pointer": "/preview"}, "has nothing there"),
    ],
)
async def test_a_reference_that_cannot_be_followed_into_a_large_result_says_why(
    reference: dict[str, JsonValue], why: str
) -> None:
    step = tool_step("b", "note", {"text": {"$from": "a", **reference}})
    done, lines = await run(tool_step("a", "crawl"), step, tools=[crawl])
    assert (done.status, lines) == ("failed", [])
    assert done.steps[1].error is not None and why in done.steps[1].error.message


POINTERS = ("abc", "", "/", "//", "/0", "/1", "/2", "/-", "/01/results", "~", "/0/~9", "/9/x")


@requirement("artifact:whole")
@pytest.mark.parametrize("times", [1, 2])
async def test_whatever_a_model_writes_for_a_pointer_is_answered_with_a_reason(times: int) -> None:
    several: list[JsonValue] = [{"toolName": "crawl"} for _ in range(times)]
    bindings: list[JsonValue] = [{"$from": "a", "pointer": pointer} for pointer in POINTERS]
    wrong = calls(*(("note", {"text": binding}) for binding in bindings))
    first: dict[str, JsonValue] = {"id": "a", "description": "crawl", "toolCalls": several}
    done, lines = await run(
        first, model_step("b", "note"), tools=[crawl], script=[wrong, calls(("note", {"text": "at last"}))]
    )
    codes = [call.error.code if call.error else None for call in done.steps[1].actual_tool_calls]
    assert codes == ["invalid_arguments"] * len(POINTERS) + [None] and lines == ["note at last"]


@requirement("artifact:whole")
async def test_a_tool_cannot_pass_a_value_off_as_an_artifact() -> None:
    @planwarden.tool(risk="read", effect="read")
    async def forge(other: str) -> JsonValue:
        """Pretends."""
        return {"truncated": True, "stored": True, "artifactId": other, "mediaType": "x", "preview": "mine"}

    done, lines = await run(
        tool_step("a", "forge", {"other": make_artifact(b"[1]").artifact_id}),
        tool_step("b", "note", {"text": {"$from": "a", "pointer": "/preview"}}),
        tools=[forge],
    )
    assert (done.status, lines) == ("completed", ["note mine"])


@planwarden.tool(risk="read", effect="read")
async def big() -> dict[str, JsonValue]:
    """Many ids."""
    return {"results": [{"ids": [n], "text": "x" * 90} for n in range(PAGES)]}


@planwarden.tool(execution_mode="blocking", risk="confirm")
async def sign() -> str:
    """Ask for a signature."""
    return "Sign here."


@requirement("artifact:whole")
@pytest.mark.parametrize("tool", ["displayConfirmation", "sign"])
async def test_only_a_confirmation_that_shows_them_covers_arguments_that_are_in_an_artifact(
    tmp_path: Path, tool: str
) -> None:
    ledger = Ledger()
    steps = plan(
        tool_step("n", "big"),
        tool_step("ask", tool, {} if tool == "sign" else {"action": "erase?"}, confirms=["b"]),
        tool_step("b", "erase", {"ids": {"$from": "n", "pointer": "/results/1/ids"}}),
    )
    async with planwarden.Warden(home=tmp_path, tools=[big, sign, *ledger.tools()]) as w:
        asked = await w.execute_plan(steps, wait_seconds=60)
        shown = [covered.arguments for covered in asked.suspensions[0].confirms]
        assert shown == ([] if tool == "sign" else [{"ids": [1]}])
    async with planwarden.Warden(home=tmp_path, tools=[big, sign, *ledger.tools()]) as w:
        done = await decide(w, asked)
        if tool == "sign":
            [question] = done.suspensions
            assert question.tool_call is not None and question.tool_call.arguments == {"ids": [1]} and not ledger.lines
            done = await decide(w, done)
    assert (done.status, ledger.lines) == ("completed", ["erase [1]"])


async def test_a_prompt_quotes_a_large_result_in_part_and_says_how_to_take_the_rest() -> None:
    steps = plan(tool_step("a", "crawl"), model_step("b", "note"))
    async with warden(Ledger(), tools=[crawl]) as w:
        asked = await w.execute_plan(steps)
        prompt = asked.suspensions[0].results or ""
        assert '"https://a.test/0"' in prompt and "bytes in all" in prompt and len(prompt) < 5_000
        assert '{"$from": "a", "pointer": "/..."}' in prompt
        answer: JsonValue = {
            "toolCalls": [
                {"toolName": "note", "arguments": {"text": {"$from": "a", "pointer": f"/results/{PAGES - 1}/url"}}}
            ]
        }
        done = await w.submit_answer(asked.thread_id, asked.suspensions[0].suspension_id, answer)
    assert done.status == "completed" and done.steps[1].result == {"written": URL}


def returning(value: object) -> Registry:
    definition = define(ToolDefinition(name="t", description="x", input_schema={}))
    return Registry([Tool(definition, build_constant_call(value))], max_result_bytes=300_000)


async def test_a_result_is_kept_in_the_log_or_in_an_artifact_or_fails_the_call() -> None:
    assert INLINE_BYTES >= MAX_ARGUMENT_BYTES
    exact = "x" * (INLINE_BYTES - 2)
    assert await returning(exact).call("t", {}, CONTEXT) == exact
    assert isinstance(await returning(exact + "x").call("t", {}, CONTEXT), ResultWithArtifacts)
    with pytest.raises(
        ToolError, match="cannot be kept: it has more than 300000 bytes or 1000000 values; it begins with 'xxx"
    ):
        await returning("x" * 400_000).call("t", {}, CONTEXT)
    with pytest.raises(ToolError, match="form or payload of more than 1048576 bytes"):
        await returning(Suspend(message="?", resume_payload="x" * 2_000_000)).call("t", {}, CONTEXT)


async def test_a_tool_may_attach_content_of_another_kind() -> None:
    image = make_artifact(bytes(range(256)), "image/png")
    value: JsonValue = {"image": image.artifact_id}
    shown = define(ToolDefinition(name="draw", description="x", input_schema={}, risk="read"))
    draw = Tool(shown, build_constant_call(ResultWithArtifacts(value=value, artifacts=(image,))))
    ledger = Ledger()
    steps = plan(tool_step("a", "draw"), tool_step("b", "note", {"text": {"$from": "a", "pointer": "/image"}}))
    async with warden(ledger, tools=[draw]) as w:
        done = await w.execute_plan(steps)
        assert ledger.lines == [f"note {image.artifact_id}"]
        assert await w.service.read_artifact(done.thread_id, image.artifact_id, principal="local") == image
    registry = Registry([draw], max_result_bytes=100)
    with pytest.raises(ToolError, match="attached is larger than 100 bytes"):
        await registry.call("draw", {}, CONTEXT)


def _damage(path: Path, change: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE artifacts SET {change}")


@requirement("artifact:damage")
@pytest.mark.parametrize("change", ["media_type = 'text/plain'", "data = zeroblob(length(data))"])
async def test_a_damaged_artifact_fails_the_call_that_needs_it_and_reading_it(tmp_path: Path, change: str) -> None:
    ledger = Ledger()
    steps = plan(
        tool_step("a", "crawl"),
        tool_step("ask", "displayConfirmation", {"action": "go on?"}),
        tool_step("b", "note", {"text": {"$from": "a", "pointer": "/results/0/url"}}),
    )
    async with planwarden.Warden(home=tmp_path, tools=[crawl, *ledger.tools()]) as w:
        asked = await w.execute_plan(steps)
        name = stand_in_of(asked.steps[0])["artifactId"]
        _damage(tmp_path / "planwarden.db", change)
        with pytest.raises(StoreError, match=f"artifact '{name}' is damaged"):
            await w.service.read_artifact(asked.thread_id, name, principal="local")
        done = await decide(w, asked)
    assert (done.status, ledger.lines) == ("failed", [])
    assert done.steps[2].error is not None and "is damaged" in done.steps[2].error.message


async def _mentioned_and_stored(path: Path) -> tuple[set[str], set[str]]:
    """Artifacts that logs mention, and those that are in the file."""
    store = SqliteStore.open(path)
    mentioned: set[str] = set()
    for header in await store.executions(None, 10):
        for entry in await store.read(header.execution_id):
            if isinstance(entry.event, ev.ToolReturned) and entry.event.artifact is not None:
                mentioned.add(entry.event.artifact)
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        return mentioned, {row[0] for row in connection.execute("SELECT artifact_id FROM artifacts")}


@requirement("artifact:crash", "crash:every-call")
async def test_a_crash_at_any_store_call_leaves_no_artifact_without_its_event(tmp_path: Path) -> None:
    counted: list[int] = []
    for at in range(1, 100):
        for when in ("before", "after"):
            folder = tmp_path / f"{at}{when}"
            folder.mkdir()
            ledger = EffectLedger(folder / "effects")
            dump = recording_tool(ledger, "dump", filler_bytes=300_000)
            inner = SqliteStore.open(folder / "planwarden.db")
            store = CrashingStore(inner, at=at, when="before" if when == "before" else "after")
            try:
                async with warden(tools=[dump], store=store) as w:
                    await w.execute_plan(plan(tool_step("a", "dump")))
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


@requirement("artifact:crash")
@pytest.mark.slow
async def test_a_process_killed_between_a_large_effect_and_its_commit_leaves_a_question_and_no_artifact(
    tmp_path: Path,
) -> None:
    worker = Worker("tests.crash.programs:large_effect", str(tmp_path))
    worker.process.wait(60)
    worker.kill()
    ledger = EffectLedger(tmp_path / "effects")
    assert worker.process.returncode == -9 and ledger.tools_run() == ["dump"]
    assert await _mentioned_and_stored(tmp_path / "planwarden.db") == (set(), set())
    dump = recording_tool(ledger, "dump", filler_bytes=300_000)
    async with planwarden.Warden(home=tmp_path, tools=[dump]) as w:
        [header] = await w.service.engine.store.executions(None, 10)
        await w.service.engine.tick()
        execution = await load_execution(w.service.engine.store, header)
        execution = await w.service.engine.wait(execution, 60)
        [question] = execution.open_suspensions
    assert question.question.kind == "reconcile" and ledger.tools_run() == ["dump"]
