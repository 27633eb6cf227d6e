"""Resources: the catalogue, schemas, executions and open questions as JSON."""

import json
from pathlib import Path

import pytest
from mcp import Client, MCPError
from mcp.types import TextResourceContents

from planwarden.agent.core.requester import Requester
from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Document, Era, ids_of, ok, served
from tests.support.wardens import Ledger, plan, tool_step

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]


async def _read(client: Client, uri: str) -> Document:
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    assert content.mime_type == "application/json"
    return json.loads(content.text)


async def test_resources_and_templates_are_listed(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        resources = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates
        assert [resource.uri for resource in resources] == [
            "planwarden://tools",
            "planwarden://suspensions",
            "planwarden://plans",
        ]
        assert [template.uri_template for template in templates] == [
            "planwarden://tools/{name}",
            "planwarden://executions/{thread_id}",
            "planwarden://suspensions/{suspension_id}",
            "planwarden://artifacts/{thread_id}/{artifact_id}{?offset}",
        ]


@requirement("lists:hints")
async def test_resources_have_a_drawing_and_say_whom_they_are_for(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        resources = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates
        for each in (*resources, *templates):
            assert each.icons and each.icons[0].src.startswith("data:image/svg+xml;base64,")
            assert each.annotations is not None and each.annotations.audience and each.annotations.priority


@requirement("lists:hints")
async def test_lists_may_be_kept_and_what_changes_may_not(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        lists = (
            (await client.list_tools(), 5_000, "private"),
            (await client.list_resources(), 3_600_000, "private"),
            (await client.list_resource_templates(), 3_600_000, "public"),
            (await client.list_prompts(), 5_000, "public"),
        )
        for listed, ttl_ms, scope in lists:
            sent = listed.model_dump(by_alias=True, exclude_unset=True)
            hints = (sent.get("ttlMs"), sent.get("cacheScope"))
            assert hints == ((ttl_ms, scope) if era == "auto" else (None, None))
        for uri in ("planwarden://tools", "planwarden://suspensions"):
            assert (await client.read_resource(uri)).ttl_ms == 0


async def test_resources_say_the_same_as_the_tools(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
        assert (await _read(client, "planwarden://tools"))["tools"] == (await ok(client, "search_tools", limit=100))[
            "tools"
        ]
        [tool] = (await ok(client, "get_tool_schemas", names=["erase"]))["tools"]
        assert await _read(client, "planwarden://tools/erase") == tool
        page = await _read(client, "planwarden://suspensions")
        assert [question["suspensionId"] for question in page["suspensions"]] == [ids_of(asked)["suspensionId"]]
        assert (
            await _read(client, f"planwarden://suspensions/{ids_of(asked)['suspensionId']}") == page["suspensions"][0]
        )
        execution = await _read(client, f"planwarden://executions/{asked['threadId']}")
        assert execution == await ok(client, "get_execution", threadId=asked["threadId"], observationsAfter=0)


@pytest.mark.parametrize(
    "uri",
    [
        "planwarden://tools/nope",
        "planwarden://tools/",
        "planwarden://executions/nope",
        "planwarden://executions/..%2f..%2fetc%2fpasswd",
        "planwarden://suspensions/nope",
        "planwarden://suspensions/..%2fexecutions",
        "planwarden://secrets",
        "file:///etc/passwd",
    ],
)
async def test_what_does_not_exist_is_not_found(tmp_path: Path, era: Era, uri: str) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        foreign = await found.warden.service.run_goal("secret", requester=Requester("somebody else"))
        for address in (uri, f"planwarden://executions/{foreign.thread_id}"):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(address)
            assert caught.value.error.code == -32602


@requirement("resources:suspension")
async def test_a_question_that_is_absent_answered_or_somebody_elses_is_the_same_error(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        erasing = plan(tool_step("a", "erase", {"ids": [1]}))
        foreign = await found.warden.service.execute_plan(
            erasing, requester=Requester("somebody else"), wait_seconds=60
        )
        [theirs] = foreign.suspensions
        answered = await ok(client, "execute_plan", plan=erasing)
        await ok(client, "resume_execution", **ids_of(answered), decision={"approved": False})
        said: list[str] = []
        for name in ("0" * 32, theirs.suspension_id, ids_of(answered)["suspensionId"]):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(f"planwarden://suspensions/{name}")
            said.append(f"{caught.value.error.code} {caught.value.error.message}".replace(name, "ID"))
        assert len(set(said)) == 1
        assert "there is no open question" in said[0]
