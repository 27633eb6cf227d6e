"""Saved plans over MCP: run by name, offered as prompts and tools, listed again after a change, and never written."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError
from mcp.server.subscriptions import PromptsListChanged, ResourceUpdated, ToolsListChanged
from mcp.types import (
    PromptListChangedNotification,
    PromptReference,
    ResourceUpdatedNotification,
    TextContent,
    TextResourceContents,
    ToolListChangedNotification,
)
from pydantic import JsonValue

from planwarden.server.mcp.resources import PLANS
from planwarden.server.mcp.saved_plans import MAX_LIST_CHARS
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.mcp.subscriptions import plan_lists
from planwarden.server.mcp.tools import TOOLS
from planwarden.server.plans import library
from planwarden.server.settings.configuration import Settings
from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Era, Served, approving, ids_of, ok, refused, sender, served
from tests.server.mcp.test_subscriptions import subscribe
from tests.support.wardens import Ledger

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]

INPUTS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "description": "Who gets it"},
        "copies": {"type": "integer", "default": 1},
    },
    "required": ["to"],
}
LETTER: dict[str, JsonValue] = {
    "title": "Send a letter",
    "description": "Sends one letter,\nafter a person agreed.",
    "inputs": INPUTS,
    "todoList": [
        {
            "id": "send",
            "description": "Send it",
            "toolCalls": [
                {
                    "toolName": "send",
                    "arguments": {
                        "to": {"$from": "inputs", "pointer": "/to"},
                        "copies": {"$from": "inputs", "pointer": "/copies"},
                    },
                }
            ],
        }
    ],
}
LOOK: dict[str, JsonValue] = {
    "todoList": [
        {"id": "a", "description": "x", "toolCalls": [{"toolName": "calculator", "arguments": {"expression": "1 + 1"}}]}
    ]
}


def save(home: Path, name: str, document: JsonValue) -> None:
    """Whole at once, because a server that looks while a file is being written sees a broken one."""
    (home / "plans").mkdir(exist_ok=True)
    written = home / f"{name}.part"
    written.write_text(json.dumps(document), encoding="utf-8")
    written.replace(home / "plans" / f"{name}.json")


@asynccontextmanager
async def opened(home: Path, ledger: Ledger | None = None, *, as_tools: bool = False) -> AsyncGenerator[Served]:
    """A server whose home has the plan `letter`, which asks a person before it sends."""
    save(home, "letter", LETTER)
    settings = Settings(home=home, plans_as_tools=as_tools)
    async with served(home, tools=[sender(ledger or Ledger())], settings=settings) as found:
        yield found


async def test_a_saved_plan_is_run_by_name_and_asks_its_person(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with (
        opened(tmp_path, ledger) as found,
        Client(found.server, mode=era, elicitation_callback=approving()) as client,
    ):
        asked = await ok(client, "run_plan", name="letter", inputs={"to": "Ada", "copies": 2})
        assert (asked["status"], ledger.lines) == ("suspended", [])
        done = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})
        assert (done["status"], ledger.lines) == ("completed", ["send Ada 2 False"])
        whole = await ok(client, "get_execution", threadId=asked["threadId"])
        [known] = await found.warden.plans()
        assert whole["savedPlan"] == {"name": "letter", "version": known.version}
        assert whole["goal"] == "Send a letter"


async def test_what_models_get_wrong_is_refused_with_what_is_right(tmp_path: Path, era: Era) -> None:
    async with opened(tmp_path) as found, Client(found.server, mode=era) as client:
        unknown = await refused(client, "run_plan", name="leter")
        assert unknown["code"] == "unknown_plan" and "did you mean 'letter'?" in unknown["message"]
        assert unknown["details"] == {"plans": ["letter"]}
        missing = await refused(client, "run_plan", name="letter", inputs={})
        assert missing["code"] == "invalid_arguments" and '"to" is a required property' in missing["message"]
        assert missing["details"]["inputs"] == INPUTS
        wrong = await refused(client, "run_plan", plan="letter")
        assert "write 'name'" in wrong["message"]
        direct = await refused(client, "letter", to="Ada")
        assert direct["code"] == "unknown_tool" and "call run_plan with this name" in direct["message"]
        text = await ok(client, "run_plan", name="letter", inputs=json.dumps({"to": "Ada"}))
        assert text["status"] == "suspended"


async def test_the_description_lists_what_there_is_and_stays_short(tmp_path: Path, era: Era) -> None:
    async with opened(tmp_path) as found:
        async with Client(found.server, mode=era) as client:
            assert (await _described(client)).endswith("Saved: letter(to, copies?): Send a letter.")
        for number in range(60):
            save(tmp_path, f"z{number:02}", {**LOOK, "title": f"Number {number}\n\x07" + "x" * 150})
        await found.warden.library.look()
        async with Client(found.server, mode=era) as client:
            shown = (await _described(client)).partition("Saved: ")[2]
            tools = (await client.list_tools()).tools
        assert shown.startswith("letter(to, copies?)") and "\n" not in shown and "\x07" not in shown
        assert len(shown) < MAX_LIST_CHARS + 60 and "more in planwarden://plans" in shown
        size = sum(len(t.name + (t.description or "") + json.dumps(t.input_schema)) for t in tools)
        assert size / 4 <= 3_000


async def _described(client: Client) -> str:
    [tool] = [tool for tool in (await client.list_tools()).tools if tool.name == "run_plan"]
    return str(tool.description)


async def test_each_plan_is_a_prompt_with_its_inputs_as_arguments(tmp_path: Path, era: Era) -> None:
    save(tmp_path, "review_pending", LOOK)
    async with opened(tmp_path) as found, Client(found.server, mode=era) as client:
        listed = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert list(listed) == ["plan_and_run", "review_pending", "letter"]
        letter = listed["letter"]
        assert (letter.title, letter.description) == ("Send a letter", "Sends one letter, after a person agreed.")
        assert [(a.name, a.required, a.description) for a in letter.arguments or ()] == [
            ("to", True, "Who gets it"),
            ("copies", False, None),
        ]
        assert listed["review_pending"].title == "Review what waits for me"
        text = await _prompted(client, "letter", {"to": "007", "copies": "2"})
        call = '{"name": "letter", "inputs": {"to": "007", "copies": 2}}'
        assert f"run_plan with {call}, exactly so" in text and "the decision is mine" in text
        assert '"inputs": {"to": "Ada"}}' in await _prompted(client, "letter", {"to": "Ada", "copies": ""})


async def test_arguments_of_a_prompt_begin_with_the_required_ones(tmp_path: Path, era: Era) -> None:
    properties: dict[str, JsonValue] = {"copies": {"default": 1}, "to": {"type": "string"}, "note": {}, "by": {}}
    inputs: JsonValue = {"properties": properties, "required": ["copies", "to", "by"]}
    async with opened(tmp_path) as found:
        save(tmp_path, "letter", {**LETTER, "inputs": inputs})
        await found.warden.library.look()
        async with Client(found.server, mode=era) as client:
            [letter] = [prompt for prompt in (await client.list_prompts()).prompts if prompt.name == "letter"]
    named = [(argument.name, argument.required) for argument in letter.arguments or ()]
    assert named == [("to", True), ("by", True), ("copies", False), ("note", False)]


async def test_a_prompt_can_be_a_template_that_the_host_fills_in(tmp_path: Path, era: Era) -> None:
    async with opened(tmp_path) as found, Client(found.server, mode=era) as client:
        text = await _prompted(client, "letter", {"to": "$1", "copies": "$2"})
        assert 'run_plan with name "letter"' in text and '\n"to": $1\n"copies": $2\n' in text
        assert "exactly so" not in text and "\n\nThen do what nextAction" in text and "the decision is mine" in text
        assert '{"to": "$1"}' in await _prompted(client, "letter", {"to": "$1"})


async def _prompted(client: Client, name: str, arguments: dict[str, str]) -> str:
    [message] = (await client.get_prompt(name, arguments)).messages
    assert isinstance(message.content, TextContent)
    return message.content.text


async def test_an_input_is_completed_from_the_values_that_its_schema_lists(tmp_path: Path, era: Era) -> None:
    inputs: JsonValue = {"properties": {"tone": {"enum": ["warm", "wry", 3]}, "to": {"type": "string"}}}
    save(tmp_path, "tell", {**LOOK, "inputs": inputs})
    async with opened(tmp_path) as found, Client(found.server, mode=era) as client:
        for name, typed, values in (("tone", "w", ["warm", "wry"]), ("tone", "", ["warm", "wry", "3"]), ("to", "", [])):
            argument = {"name": name, "value": typed}
            assert (await client.complete(PromptReference(name="tell"), argument)).completion.values == values


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({}, "needs to"), ({"to": "Ada", "copies": "many"}, "copies"), ({"to": "Ada", "other": "1"}, "other")],
)
async def test_arguments_that_do_not_fit_are_refused_before_a_model_reads_the_prompt(
    tmp_path: Path, era: Era, arguments: dict[str, str], said: str
) -> None:
    async with opened(tmp_path) as found, Client(found.server, mode=era) as client:
        with pytest.raises(MCPError, match=said):
            await client.get_prompt("letter", arguments)


async def test_the_resource_has_each_plan_with_its_inputs_and_not_where_it_is(tmp_path: Path, era: Era) -> None:
    async with opened(tmp_path) as found, Client(found.server, mode=era) as client:
        [content] = (await client.read_resource(PLANS)).contents
        assert isinstance(content, TextResourceContents)
        [shown] = json.loads(content.text)["plans"]
        [known] = await found.warden.plans()
        assert shown == {
            "name": "letter",
            "title": "Send a letter",
            "description": LETTER["description"],
            "inputs": INPUTS,
            "version": known.version,
            "source": "home",
        }
        assert str(tmp_path) not in content.text


async def test_with_as_tools_each_plan_is_a_tool_with_its_own_schema(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    save(tmp_path, "run_goal", LOOK)
    save(tmp_path, "x" * 41, LOOK)
    save(tmp_path, "look", LOOK)
    async with opened(tmp_path, ledger, as_tools=True) as found, Client(found.server, mode=era) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(listed) == [*(tool.name for tool in TOOLS), "letter", "look"]
        letter = listed["letter"]
        assert letter.input_schema == {"additionalProperties": False, **INPUTS}
        assert letter.title == "Send a letter" and str(letter.description).startswith("Sends one letter, after")
        assert listed["look"].input_schema == {"type": "object", "additionalProperties": False}
        asked = await ok(client, "letter", to="Ada")
        assert asked["status"] == "suspended"
        assert (await ok(client, "look"))["status"] == "completed"
        error = await refused(client, "letter", to=3)
        assert error["code"] == "invalid_arguments"
        assert (await refused(client, "run_goal", topic="x"))["message"].startswith("run_goal has no key")


class Heard:
    """Counts what a client of either era is told."""

    def __init__(self) -> None:
        self.tools = self.prompts = self.plans = 0
        self._bell = anyio.Event()

    async def handle(self, message: object) -> None:
        """What the older era pushes, and events of the newer one."""
        if isinstance(message, ToolListChangedNotification | ToolsListChanged):
            self.tools += 1
        elif isinstance(message, PromptListChangedNotification | PromptsListChanged):
            self.prompts += 1
        elif isinstance(message, ResourceUpdated):
            self.plans += message.uri == PLANS
        elif isinstance(message, ResourceUpdatedNotification):
            self.plans += str(message.params.uri) == PLANS
        self._bell.set()
        self._bell = anyio.Event()

    async def wait_until(self, is_so: Callable[["Heard"], bool]) -> None:
        with anyio.fail_after(60):
            while not is_so(self):
                await self._bell.wait()

    @asynccontextmanager
    async def listening(self, server: PlanwardenServer, era: Era) -> AsyncGenerator[Client]:
        """A client that hears of changed lists and of the plans."""
        pushed = self.handle if era == "legacy" else None
        async with Client(server, mode=era, message_handler=pushed) as client:
            if era == "legacy":
                await client.list_tools()
                await subscribe(client, PLANS)
                yield client
                return
            wants = client.listen(tools_list_changed=True, prompts_list_changed=True, resource_subscriptions=[PLANS])
            async with wants as stream, anyio.create_task_group() as tasks:

                async def hear() -> None:
                    async for event in stream:
                        await self.handle(event)

                tasks.start_soon(hear)
                yield client
                tasks.cancel_scope.cancel()


async def test_clients_are_told_when_a_file_comes_changes_or_goes(
    tmp_path: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_lists, "LOOK_S", 0.0)
    monkeypatch.setattr(library, "FRESH_S", 0.0)
    heard = Heard()
    async with opened(tmp_path) as found, heard.listening(found.server, era) as client:
        assert (heard.tools, heard.prompts, heard.plans) == (0, 0, 0)
        save(tmp_path, "new", LOOK)
        await heard.wait_until(lambda told: told.tools == told.prompts == told.plans == 1)
        assert "new" in [prompt.name for prompt in (await client.list_prompts()).prompts]
        save(tmp_path, "new", {**LOOK, "title": "Look again"})
        await heard.wait_until(lambda told: told.tools == told.prompts == told.plans == 2)
        (tmp_path / "plans" / "new.json").unlink()
        await heard.wait_until(lambda told: told.tools == told.prompts == told.plans == 3)
        assert "new" not in [prompt.name for prompt in (await client.list_prompts()).prompts]


async def test_the_capabilities_say_that_lists_change(tmp_path: Path, era: Era) -> None:
    async with opened(tmp_path) as found, Client(found.server, mode=era) as client:
        capabilities = client.server_capabilities
        assert capabilities.tools is not None and capabilities.tools.list_changed
        assert capabilities.prompts is not None and capabilities.prompts.list_changed


@requirement("plans:read-only")
async def test_nothing_over_mcp_writes_or_changes_a_plan(tmp_path: Path, era: Era) -> None:
    async with opened(tmp_path) as found, Client(found.server, mode=era) as client:
        before = _files(tmp_path)
        for name in ("save_plan", "keep_plan", "plans_keep", "write_plan"):
            assert (await refused(client, name, name="mine", plan=LOOK))["code"] == "unknown_tool"
        for arguments in (
            {"name": "mine", "plan": LOOK},
            {"name": "mine", "todoList": LOOK["todoList"]},
            {"name": "letter", "document": LETTER},
        ):
            assert (await refused(client, "run_plan", **arguments))["code"] == "invalid_arguments"
        for name in ("../letter", "plans/letter", "/etc/passwd", "letter.json", "", "letter\0"):
            assert (await refused(client, "run_plan", name=name))["code"] == "unknown_plan"
        own = {**LOOK, "name": "letter", "save": True}
        assert (await refused(client, "execute_plan", plan=own))["code"] == "invalid_plan"
        done = await ok(client, "execute_plan", plan=LOOK)
        asked = await ok(client, "run_plan", name="letter", inputs={"to": "Ada"})
        await refused(client, "submit_answer", **ids_of(asked), content={"todoList": []})
        await ok(client, "cancel_execution", threadId=asked["threadId"])
        assert done["status"] == "completed" and _files(tmp_path) == before
        assert [known.name for known in await found.warden.plans()] == ["letter"]


def _files(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (home / "plans").rglob("*") if path.is_file()}
