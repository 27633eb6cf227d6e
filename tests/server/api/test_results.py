"""Results that are read: artifacts in pieces over MCP and whole at the terminal, items by pages, and their shapes."""

import json
from pathlib import Path

import anyio
import pytest
from mcp.types import TextResourceContents
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.artifact import Artifact, ResultWithArtifacts, make_artifact
from planwarden.agent.common.errors import UnknownArtifact, UsageError
from planwarden.agent.core.execution.state import Call, StepState
from planwarden.agent.core.plan.plan import ToolFacts
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.api.tools import MAX_SHAPE_CHARS, describe_shape
from planwarden.server.cli.commands.show import read_artifact
from planwarden.server.views.tools import list_items
from tests import kit
from tests.kit import Home, Requester, Tool, crawl, define, parse_plan
from tests.server.mcp.support import Document, ok, served, text_of


async def _read(client: kit.Client, uri: str) -> Document:
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return json.loads(content.text)


def drawing(artifact: Artifact) -> Tool:
    shown = define(ToolDefinition(name="draw", description="x", input_schema={}, risk="read"))
    return Tool(shown, kit.build_constant_call(ResultWithArtifacts(value="drawn", artifacts=(artifact,))))


async def test_an_artifact_is_read_piece_by_piece_over_mcp_and_what_is_not_text_as_base64(tmp_path: Path) -> None:
    image = make_artifact(bytes(range(256)), "image/png")
    async with served(tmp_path, tools=[crawl, drawing(image)]) as found, kit.Client(found.server) as client:
        drawn = await ok(client, "execute_plan", plan=kit.plan(kit.tool_step("a", "draw")))
        piece = await _read(client, f"planwarden://artifacts/{drawn['threadId']}/{image.artifact_id}")
        assert piece["mediaType"] == "image/png" and piece["base64"].startswith("AAECAwQ") and "text" not in piece
        done = await ok(client, "execute_plan", plan=kit.plan(kit.tool_step("a", "crawl")))
        stood = done["steps"][0]["result"]
        address = f"planwarden://artifacts/{done['threadId']}/{stood['artifactId']}"
        shown = await client.call_tool("get_execution", {"threadId": done["threadId"]})
        assert f"\n  {address} has it whole" in text_of(shown)
        assert 'Too large to show: a. {"$from": "a", "pointer": ...} in a later plan on this' in done["nextAction"]
        text, offset, pieces = "", 0, 0
        while offset is not None:
            piece = await _read(client, f"{address}?offset={offset}" if offset else address)
            text, offset, pieces = text + piece["text"], piece["nextOffset"], pieces + 1
        assert pieces > 2 and len(text) == stood["sizeBytes"]
        assert len(json.loads(text)["results"]) == kit.PAGES
        beyond = await _read(client, f"{address}?offset=999999999")
        assert (beyond["text"], beyond["nextOffset"]) == ("", None)
        for wrong in ("?offset=-1", "?offset=x", "?page=2", "?offset="):
            with pytest.raises(Exception, match="is not offset=N"):
                await _read(client, address + wrong)


async def test_an_absent_and_a_foreign_artifact_look_the_same(tmp_path: Path) -> None:
    async with served(tmp_path, tools=[crawl]) as found, kit.Client(found.server) as client:
        service = found.warden.service
        foreign = await kit.start_as(service, kit.plan(kit.tool_step("a", "crawl")), Requester("somebody else"))
        name = kit.stand_in_of(foreign.steps[0])["artifactId"]
        mine = await ok(client, "execute_plan", plan=kit.plan(kit.tool_step("a", "crawl")))
        said: set[str] = set()
        for thread, artifact in (
            (foreign.thread_id, name),
            (foreign.thread_id, "nope"),
            ("nope", name),
            (mine["threadId"], "nope"),
        ):
            with pytest.raises(UnknownArtifact) as refused:
                await service.read_artifact(thread, artifact, principal="local")
            said.add(refused.value.message.replace(thread, "T").replace(artifact, "A"))
            with pytest.raises(Exception, match="there is no artifact"):
                await _read(client, f"planwarden://artifacts/{thread}/{artifact}")
        assert said == {"there is no artifact 'A' in thread 'T'"}
        assert await service.read_artifact(mine["threadId"], name, principal="local")


def test_the_command_line_writes_an_artifact_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = kit.Cli(kit.make_home(tmp_path / "home"), capture=capsys)
    with (cli.home / "tools.py").open("a") as file:
        file.write(
            '\n\n@planwarden.tool(risk="read", effect="read")\nasync def dump() -> list[str]:\n'
            '    """A lot."""\n    return ["line"] * 100_000\n'
        )
    ran = cli.main("run", cli.write("plan.json", kit.plan(kit.tool_step("a", "dump"))), "--json")
    stood, thread = ran.json["steps"][0]["result"], ran.json["threadId"]
    said = cli.main("show", thread, "--artifact", stood["artifactId"])
    assert (said.code, said.err) == (0, "") and json.loads(said.out) == ["line"] * 100_000
    assert f"{stood['sizeBytes']} bytes, artifact {stood['artifactId']}" in cli.main("show", thread).out
    for words, why in (
        (("--artifact", "nope"), f"there is no artifact 'nope' in thread '{thread[:8]}'"),
        (("--artifact", stood["artifactId"], "--json"), "it goes with no other option of show"),
    ):
        refused = cli.main("show", thread, *words)
        assert refused.code == 2 and why in refused.err and refused.err.count("\n") == 1


def test_an_artifact_cannot_send_escape_sequences_to_a_terminal(tmp_path: Path) -> None:
    folder = kit.make_home(tmp_path / "home")
    hostile = make_artifact(b"\x1b]0;gotcha\x07", "text/plain")

    async def store_it() -> str:
        async with planwarden.Warden(folder, tools=[drawing(hostile)]) as w:
            return (await w.execute_plan(kit.plan(kit.tool_step("a", "draw")))).thread_id

    thread_id, home = anyio.run(store_it), Home.load(folder, environment={})
    with pytest.raises(UsageError, match="is not plain text; redirect the output into a file"):
        read_artifact(home, thread_id, hostile.artifact_id, for_terminal=True)
    assert read_artifact(home, thread_id, hostile.artifact_id, for_terminal=False) == hostile.data


async def test_a_view_that_is_too_large_still_says_where_the_artifacts_are(tmp_path: Path) -> None:
    called: JsonValue = [{"toolName": "crawl", "arguments": {"pages": 1_000, "start": n}} for n in range(50)]
    many: list[dict[str, JsonValue]] = [{"id": f"s{n}", "description": "crawl", "toolCalls": called} for n in range(2)]
    async with served(tmp_path, tools=[crawl]) as found, kit.Client(found.server) as client:
        done = await ok(client, "execute_plan", plan=kit.plan(*many))
        while done["status"] == "running":
            done = await ok(client, "get_execution", threadId=done["threadId"])
    results = done["steps"][1]["result"]
    assert len(results) == 50 and all(len(result["artifactId"]) == 32 for result in results)
    assert len(json.dumps(done)) < 400_000


_FACTS = {"double": ToolFacts(is_blocking=False)}


def _loop(count: int) -> dict[str, JsonValue]:
    items: list[JsonValue] = [*range(count)]
    more: dict[str, JsonValue] = {"forEach": items, "maxItems": count, "maxConcurrent": 32}
    return kit.tool_step("double", "double", {"number": {"$from": "item"}}, **more)


@kit.requirement("loops:pages")
@pytest.mark.parametrize(("size", "pages"), [(10, 100), (5_000_000, 10_000)])
def test_ten_thousand_items_are_pages_of_bounded_size(size: int, pages: int) -> None:
    step = parse_plan(kit.plan(_loop(10_000)), author="caller", tools=_FACTS, max_steps=10)[0].steps[0]
    value = "x" * size
    calls = tuple(
        Call(call_id=f"double:{n + 1}", tool_name="double", origin="", proposed={}, status="succeeded", value=value)
        for n in range(10_000)
    )
    state = StepState(step=step, status="completed", calls=calls, items=tuple(range(10_000)))
    first, count = 0, 0
    while first < 10_000:
        page = list_items(state, first, 100)
        assert [item.item for item in page] == [*range(first, first + len(page))] and page
        first, count = first + len(page), count + 1
    assert count == pages


@kit.requirement("loops:pages")
async def test_items_that_wait_say_so() -> None:
    async with kit.warden(kit.Ledger()) as w:
        asked = await w.execute_plan(
            kit.plan(kit.tool_step("wipe", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2]))
        )
        [wipe] = (await w.get_execution(asked.thread_id, step_id="wipe")).steps
    assert [(item.item, item.status) for item in wipe.item_results] == [(0, "pending"), (1, "pending")]


def test_a_shape_has_names_and_kinds_and_no_value() -> None:
    value: JsonValue = {"rows": [{"no": "7", "sum": 1.5, "paid": True}], "note": '{"a": [1]}', "none": None}
    assert describe_shape(value) == {
        "rows": [{"no": "text", "sum": "number", "paid": "true or false"}],
        "note": {'text with JSON, for "parse": "json"': {"a": ["number"]}},
        "none": "null",
    }


def test_a_shape_is_bounded_however_wide_and_deep_the_value_is() -> None:
    value: JsonValue = "x"
    for _ in range(4):
        value = {f"{n}{'k' * 60}": value for n in range(20)}
    assert 2 < len(json.dumps(describe_shape(value))) <= MAX_SHAPE_CHARS
