"""Artifacts are read over MCP in pieces and at the terminal whole, by whom they belong to."""

import json
from pathlib import Path

import anyio
import pytest
from mcp.types import TextResourceContents
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.artifact import Artifact, ResultWithArtifacts, make_artifact
from planwarden.agent.common.errors import UnknownArtifact, UsageError
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.cli.commands.show import read_artifact
from planwarden.server.cli.context import CliContext
from planwarden.tools.base import Tool, define
from tests.kit import Cli, Client, make_home, plan, tool_step
from tests.server.mcp.support import Document, ok, served
from tests.support.artifacts import PAGES, build_constant_call, crawl, stand_in_of

pytestmark = pytest.mark.anyio


async def _read(client: Client, uri: str) -> Document:
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return json.loads(content.text)


def drawing(artifact: Artifact) -> Tool:
    shown = define(ToolDefinition(name="draw", description="x", input_schema={}, risk="read"))
    return Tool(shown, build_constant_call(ResultWithArtifacts(value="drawn", artifacts=(artifact,))))


async def test_an_artifact_is_read_piece_by_piece_over_mcp(tmp_path: Path) -> None:
    async with served(tmp_path, tools=[crawl]) as found, Client(found.server) as client:
        done = await ok(client, "execute_plan", plan=plan(tool_step("a", "crawl")))
        stood = done["steps"][0]["result"]
        address = f"planwarden://artifacts/{done['threadId']}/{stood['artifactId']}"
        text, offset, pieces = "", 0, 0
        while offset is not None:
            piece = await _read(client, f"{address}?offset={offset}" if offset else address)
            text, offset, pieces = text + piece["text"], piece["nextOffset"], pieces + 1
        assert pieces > 2 and len(text) == stood["sizeBytes"]
        assert len(json.loads(text)["results"]) == PAGES
        beyond = await _read(client, f"{address}?offset=999999999")
        assert (beyond["text"], beyond["nextOffset"]) == ("", None)
        for wrong in ("?offset=-1", "?offset=x", "?page=2", "?offset="):
            with pytest.raises(Exception, match="is not offset=N"):
                await _read(client, address + wrong)


async def test_an_absent_and_a_foreign_artifact_look_the_same(tmp_path: Path) -> None:
    async with served(tmp_path, tools=[crawl]) as found, Client(found.server) as client:
        service = found.warden.service
        foreign = await service.execute_plan(plan(tool_step("a", "crawl")), requester=Requester("somebody else"))
        name = stand_in_of(foreign.steps[0])["artifactId"]
        mine = await ok(client, "execute_plan", plan=plan(tool_step("a", "crawl")))
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
    cli = Cli(make_home(tmp_path / "home"), capture=capsys)
    with (cli.home / "tools.py").open("a") as file:
        file.write(
            '\n\n@planwarden.tool(risk="read", effect="read")\nasync def dump() -> list[str]:\n'
            '    """A lot."""\n    return ["line"] * 100_000\n'
        )
    ran = cli.main("run", cli.write("plan.json", plan(tool_step("a", "dump"))), "--json")
    stood, thread = ran.json["steps"][0]["result"], ran.json["threadId"]
    said = cli.main("show", thread, "--artifact", stood["artifactId"])
    assert (said.code, said.err) == (0, "") and json.loads(said.out) == ["line"] * 100_000
    assert f"{stood['sizeBytes']} bytes, artifact {stood['artifactId']}" in cli.main("show", thread).out
    for words, why in (
        (("show", thread, "--artifact", "nope"), f"there is no artifact 'nope' in thread '{thread[:8]}'"),
        (("show", "nope", "--artifact", stood["artifactId"]), "in thread 'nope'"),
        (("show", thread, "--artifact", stood["artifactId"], "--json"), "it goes with no other option of show"),
    ):
        refused = cli.main(*words)
        assert refused.code == 2 and why in refused.err and refused.err.count("\n") == 1


def test_an_artifact_cannot_send_escape_sequences_to_a_terminal(tmp_path: Path) -> None:
    folder = make_home(tmp_path / "home")
    hostile = make_artifact(b"\x1b]0;gotcha\x07", "text/plain")

    async def store_it() -> str:
        async with planwarden.Warden(folder, tools=[drawing(hostile)]) as w:
            return (await w.execute_plan(plan(tool_step("a", "draw")))).thread_id

    thread_id, home = anyio.run(store_it), CliContext.load(folder, None, {})
    with pytest.raises(UsageError, match="is not plain text; redirect the output into a file"):
        read_artifact(home, thread_id, hostile.artifact_id, for_terminal=True)
    assert read_artifact(home, thread_id, hostile.artifact_id, for_terminal=False) == hostile.data


async def test_content_that_is_not_text_is_read_as_base64(tmp_path: Path) -> None:
    image = make_artifact(bytes(range(256)), "image/png")
    async with served(tmp_path, tools=[drawing(image)]) as found, Client(found.server) as client:
        done = await ok(client, "execute_plan", plan=plan(tool_step("a", "draw")))
        piece = await _read(client, f"planwarden://artifacts/{done['threadId']}/{image.artifact_id}")
    assert piece["mediaType"] == "image/png" and piece["base64"].startswith("AAECAwQ") and "text" not in piece


async def test_a_view_that_is_too_large_still_says_where_the_artifacts_are(tmp_path: Path) -> None:
    called: JsonValue = [{"toolName": "crawl", "arguments": {"pages": 1_000, "start": n}} for n in range(50)]
    many: list[dict[str, JsonValue]] = [{"id": f"s{n}", "description": "crawl", "toolCalls": called} for n in range(2)]
    async with served(tmp_path, tools=[crawl]) as found, Client(found.server) as client:
        done = await ok(client, "execute_plan", plan=plan(*many))
        while done["status"] == "running":
            done = await ok(client, "get_execution", threadId=done["threadId"])
    results = done["steps"][1]["result"]
    assert len(results) == 50 and all(len(result["artifactId"]) == 32 for result in results)
    assert len(json.dumps(done)) < 400_000
