"""Input and tools that no honest client sends or has: a coded error, nothing lost, and the server continues."""

import json
from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import CallToolResult
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidPlan, StoreError
from planwarden.agent.ports.store import Append, Header, Lease, Store
from planwarden.server.api.warden import Warden
from planwarden.server.mcp.lazy_service import build_service_opener
from planwarden.server.mcp.server import build_server
from planwarden.server.mcp.tools import TOOLS
from tests.kit import MemoryStore, Settings, confirm, plan, tool_step
from tests.server.mcp.support import Desk, Era, approving, ids_of, open_desk, refused

pytestmark = pytest.mark.anyio

HALF = "a\udfffb"
ODD = "a\0b"


def _nest(depth: int) -> JsonValue:
    deep: JsonValue = 1
    for _ in range(depth):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({1, 2}, [1, 2]),
        ({"text": "a\ud83db"}, {"text": "a?b"}),
        (float("nan"), None),
        (object(), None),
        (_nest(500), None),
        (b"\xff\xfe", None),
        (10**5_000, None),
        (SystemExit(3), None),
    ],
    ids=["set", "half a surrogate pair", "nan", "object", "deep", "bytes", "huge integer", "ends the process"],
)
async def test_a_result_that_is_not_json_fails_its_step_and_not_the_connection(
    tmp_path: Path, value: object, shown: JsonValue
) -> None:
    @planwarden.tool(risk="read", effect="read")
    async def strange() -> object:
        """Something else."""
        if isinstance(value, BaseException):
            raise value
        return value

    async with open_desk(tmp_path, "auto", strange) as desk:
        done = await desk.ok("execute_plan", plan=plan(tool_step("a", "strange")))
        step = done["steps"][0]
        # Some values have an obvious JSON form.
        assert (step["status"], step.get("result")) == ("failed" if shown is None else "completed", shown)
        assert len(json.dumps(done)) < 20_000
        assert (await desk.ok("execute_plan", plan=plan(tool_step("a", "find", {"topic": "x"}))))[
            "status"
        ] == "completed"


async def test_text_that_is_no_unicode_is_refused_in_arguments_and_fails_no_server(desk: Desk) -> None:
    for tool, arguments in (
        ("get_execution", {"threadId": {"a": HALF}}),
        ("search_tools", {"query": [{HALF: 1}]}),
        ("get_tool_schemas", {"names": [HALF, 7]}),
    ):
        # The SDK's client cannot send it.
        result = await desk.server.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult) and result.structured_content is not None
        assert result.structured_content["error"]["code"] == "invalid_arguments"
    steps = plan(tool_step("a", "find", {"topic": HALF, "limit": HALF}))
    with pytest.raises(InvalidPlan, match="half of a surrogate pair"):
        await desk.warden.execute_plan(steps, wait_seconds=60)


async def test_nul_is_refused_in_ids_and_kept_in_values(store: Store, tmp_path: Path) -> None:
    note = tool_step("act", "note", {"text": ODD})
    async with open_desk(tmp_path, asks=approving(), store=store) as desk:
        asked = await desk.ok("execute_plan", plan=plan(confirm("ask", ODD), note))
        odd = {**ids_of(asked), "suspensionId": ODD, "decision": {"approved": True}}
        for code, name, arguments in (
            ("unknown_thread", "get_execution", {"threadId": ODD}),
            ("unknown_thread", "execute_plan", {"threadId": ODD, "plan": plan(note)}),
            ("unknown_thread", "cancel_execution", {"threadId": ODD}),
            ("unknown_thread", "list_suspensions", {"threadId": ODD}),
            ("invalid_arguments", "list_suspensions", {"cursor": ODD}),
            ("invalid_arguments", "execute_plan", {"key": ODD, "plan": plan(note)}),
            ("unknown_suspension", "resume_execution", odd),
        ):
            assert (await desk.refused(name, **arguments))["code"] == code, (name, arguments)
        decision = {"approved": True, "reason": ODD}
        with anyio.fail_after(60):
            done = await desk.ok("resume_execution", **ids_of(asked), decision=decision)
        assert (done["status"], desk.ledger.lines) == ("completed", [f"note {ODD}"])


class FailingStore(MemoryStore):
    """Fails when told to, as a full disk or a bug would."""

    failure: Exception | None = None

    async def append(self, append: Append) -> Lease | None:
        if self.failure is not None:
            raise self.failure
        return await super().append(append)

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        if self.failure is not None:
            raise self.failure
        return await super().thread(thread_id)


async def test_a_store_that_fails_is_said_a_defect_of_ours_without_its_details_and_the_server_goes_on(
    tmp_path: Path,
) -> None:
    store = FailingStore()
    async with open_desk(tmp_path, store=store) as desk:
        store.failure = StoreError("the disk is full")
        error = await desk.refused("run_goal", goal="x")
        assert (error["code"], error["message"]) == ("storage_error", "the disk is full")
        store.failure = RuntimeError("password=hunter2")
        error = await desk.refused("get_execution", threadId="x")
        assert error["code"] == "internal_error" and "hunter2" not in error["message"]
        store.failure = None
        assert (await desk.refused("get_execution", threadId="x"))["code"] == "unknown_thread"
        assert (await desk.ok("run_goal", goal="x"))["status"] == "suspended"


@pytest.mark.parametrize("is_file", [True, False], ids=["a file in its place", "a file of another program"])
async def test_a_store_that_cannot_open_is_said_with_every_call(tmp_path: Path, era: Era, is_file: bool) -> None:
    home = tmp_path / "home"
    diary = home if is_file else home / "planwarden.db"
    diary.parent.mkdir(exist_ok=True)
    diary.write_bytes(b"this is somebody's diary, not a database" * 100)
    warden = Warden(settings=Settings(home=home))
    async with Client(build_server(build_service_opener(warden)), mode=era) as client:
        assert len((await client.list_tools()).tools) == len(TOOLS)
        error = await refused(client, "run_goal", goal="x")
        assert error["code"] == "storage_error" and str(home) in error["message"]
        with pytest.raises(MCPError, match="storage_error"):
            await client.read_resource("planwarden://suspensions")
    assert diary.read_bytes().startswith(b"this is somebody's diary")
