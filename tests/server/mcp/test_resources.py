"""Resources: the catalogue, schemas, executions and open questions as JSON."""

import json
from base64 import b64decode

import pytest
from mcp import Client, MCPError
from mcp.types import TextResourceContents

from planwarden.agent.core.requester import Requester
from tests.kit import plan, requirement, tool_step
from tests.server.mcp.support import ERAS, Desk, Document, Era, ids_of

pytestmark = pytest.mark.anyio


async def _read(client: Client, uri: str) -> Document:
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    assert content.mime_type == "application/json"
    return json.loads(content.text)


@requirement("lists:hints")
async def test_what_is_listed_has_a_drawing_without_script_and_says_whom_it_is_for(desk: Desk) -> None:
    client = desk.client
    resources = (await client.list_resources()).resources
    templates = (await client.list_resource_templates()).resource_templates
    addresses = [each.uri for each in resources] + [each.uri_template for each in templates]
    assert addresses == [
        "planwarden://tools",
        "planwarden://suspensions",
        "planwarden://plans",
        "planwarden://tools/{name}",
        "planwarden://executions/{thread_id}",
        "planwarden://suspensions/{suspension_id}",
        "planwarden://artifacts/{thread_id}/{artifact_id}{?offset}",
    ]
    for each in (*resources, *templates):
        assert each.annotations is not None and each.annotations.audience and each.annotations.priority
    tools, prompts = (await client.list_tools()).tools, (await client.list_prompts()).prompts
    assert client.server_info is not None
    for each in (client.server_info, *tools, *prompts, *resources, *templates):
        [icon] = each.icons or []
        head, _, data = icon.src.partition("base64,")
        assert head == "data:image/svg+xml;" and len(icon.src) < 400
        drawing = b64decode(data, validate=True).decode()
        assert drawing.startswith("<svg ") and "script" not in drawing and "href" not in drawing


@requirement("lists:hints")
@pytest.mark.parametrize("era", ERAS)
async def test_lists_may_be_kept_and_what_changes_may_not(desk: Desk, era: Era) -> None:
    lists = (
        (await desk.client.list_tools(), 5_000, "private"),
        (await desk.client.list_resources(), 3_600_000, "private"),
        (await desk.client.list_resource_templates(), 3_600_000, "public"),
        (await desk.client.list_prompts(), 5_000, "public"),
    )
    for listed, ttl_ms, scope in lists:
        sent = listed.model_dump(by_alias=True, exclude_unset=True)
        hints = (sent.get("ttlMs"), sent.get("cacheScope"))
        assert hints == ((ttl_ms, scope) if era == "auto" else (None, None))
    for uri in ("planwarden://tools", "planwarden://suspensions"):
        assert (await desk.client.read_resource(uri)).ttl_ms == 0


async def test_resources_say_the_same_as_the_tools(desk: Desk) -> None:
    asked = await desk.ok("execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
    assert (await _read(desk.client, "planwarden://tools"))["tools"] == (await desk.ok("search_tools", limit=100))[
        "tools"
    ]
    [tool] = (await desk.ok("get_tool_schemas", names=["erase"]))["tools"]
    assert await _read(desk.client, "planwarden://tools/erase") == tool
    page = await _read(desk.client, "planwarden://suspensions")
    assert [question["suspensionId"] for question in page["suspensions"]] == [ids_of(asked)["suspensionId"]]
    assert (
        await _read(desk.client, f"planwarden://suspensions/{ids_of(asked)['suspensionId']}") == page["suspensions"][0]
    )
    execution = await _read(desk.client, f"planwarden://executions/{asked['threadId']}")
    assert execution == await desk.ok("get_execution", threadId=asked["threadId"], observationsAfter=0)


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
async def test_what_does_not_exist_is_not_found(desk: Desk, uri: str) -> None:
    foreign = await desk.warden.service.run_goal("secret", requester=Requester("somebody else"))
    for address in (uri, f"planwarden://executions/{foreign.thread_id}"):
        with pytest.raises(MCPError) as caught:
            await desk.client.read_resource(address)
        assert caught.value.error.code == -32602


@requirement("resources:suspension")
async def test_a_question_that_is_absent_answered_or_somebody_elses_is_the_same_error(desk: Desk) -> None:
    erasing = plan(tool_step("a", "erase", {"ids": [1]}))
    foreign = await desk.warden.service.execute_plan(erasing, requester=Requester("somebody else"), wait_seconds=60)
    [theirs] = foreign.suspensions
    answered = await desk.ok("execute_plan", plan=erasing)
    await desk.ok("resume_execution", **ids_of(answered), decision={"approved": False})
    said: list[str] = []
    for name in ("0" * 32, theirs.suspension_id, ids_of(answered)["suspensionId"]):
        with pytest.raises(MCPError) as caught:
            await desk.client.read_resource(f"planwarden://suspensions/{name}")
        said.append(f"{caught.value.error.code} {caught.value.error.message}".replace(name, "ID"))
    assert len(set(said)) == 1
    assert "there is no open question" in said[0]
