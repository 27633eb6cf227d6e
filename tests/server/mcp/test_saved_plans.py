"""Saved plans over MCP: run by name, offered as prompts and tools, listed again after a change, and never written."""

import json
from pathlib import Path

import pytest
from mcp import MCPError, types
from pydantic import JsonValue

from planwarden.server.mcp.resources import PLANS
from planwarden.server.mcp.tools.listing import MAX_LIST_CHARS, TOOLS
from planwarden.server.settings.tables import PlansTable, SettingsTables
from tests.kit import Settings, plan, requirement, save_plan, tool_step
from tests.server.mcp.support import Desk, Era, open_desk
from tests.server.mcp.test_prompts import prompted

INPUTS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"to": {"type": "string", "description": "Who gets it"}, "copies": {"type": "integer", "default": 1}},
    "required": ["to"],
}
LETTER: dict[str, JsonValue] = {
    "title": "Send a letter",
    "description": "Sends one letter,\nafter a person agreed.",
    "inputs": INPUTS,
    **plan(tool_step("send", "send", {name: {"$from": "inputs", "pointer": f"/{name}"} for name in ("to", "copies")})),
}
AS_TOOLS = SettingsTables(plans=PlansTable(as_tools=True))
LOOK = plan(tool_step("a", "calculator", {"expression": "1 + 1"}))


@pytest.fixture(autouse=True)
def letter(tmp_path: Path) -> None:
    save_plan(tmp_path, "letter", LETTER)


async def test_what_models_get_wrong_is_refused_with_what_is_right(desk: Desk) -> None:
    unknown = await desk.refused("run_plan", name="leter")
    assert unknown["code"] == "unknown_plan" and "did you mean 'letter'?" in unknown["message"]
    assert unknown["details"] == {"plans": ["letter"]}
    missing = await desk.refused("run_plan", name="letter", inputs={})
    assert missing["code"] == "invalid_arguments" and '"to" is a required property' in missing["message"]
    assert missing["details"]["inputs"] == INPUTS
    wrong = await desk.refused("run_plan", plan="letter")
    assert "write 'name'" in wrong["message"]
    direct = await desk.refused("letter", to="Ada")
    assert direct["code"] == "unknown_tool" and "call run_plan with this name" in direct["message"]
    text = await desk.ok("run_plan", name="letter", inputs=json.dumps({"to": "Ada"}))
    assert text["status"] == "suspended"


async def test_the_description_lists_what_there_is_and_stays_short(desk: Desk, tmp_path: Path) -> None:
    save_plan(tmp_path, "bare", {**LOOK, "inputs": INPUTS})
    for number in range(60):
        save_plan(tmp_path, f"z{number:02}", {**LOOK, "title": f"Number {number}\n\x07" + "x" * 150})
    await desk.warden.library.look()
    [tool] = [tool for tool in (await desk.client.list_tools()).tools if tool.name == "run_plan"]
    shown = (tool.description or "").partition("Saved: ")[2]
    assert shown.startswith("bare(to, copies?); letter(to, copies?): Send a letter; z00: ")
    assert "\n" not in shown and "\x07" not in shown
    assert len(shown) < MAX_LIST_CHARS + 60
    assert f"{62 - len(shown.split('; ')[:-1])} more in planwarden://plans" in shown


async def test_each_plan_is_a_prompt_with_its_inputs_as_arguments(desk: Desk, tmp_path: Path) -> None:
    properties: dict[str, JsonValue] = {"copies": {"default": 1}, "to": {"type": "string"}, "note": {}, "by": {}}
    save_plan(tmp_path, "many", {**LOOK, "inputs": {"properties": properties, "required": ["copies", "to", "by"]}})
    save_plan(tmp_path, "review_pending", LOOK)
    listed = {prompt.name: prompt for prompt in (await desk.client.list_prompts()).prompts}
    assert list(listed) == ["plan_and_run", "review_pending", "letter", "many"]
    # Required ones come first, and what has a default is not required.
    named = [(argument.name, argument.required) for argument in listed["many"].arguments or ()]
    assert named == [("to", True), ("by", True), ("copies", False), ("note", False)]
    letter = listed["letter"]
    assert (letter.title, letter.description) == ("Send a letter", "Sends one letter, after a person agreed.")
    assert [(a.name, a.required, a.description) for a in letter.arguments or ()] == [
        ("to", True, "Who gets it"),
        ("copies", False, None),
    ]
    assert listed["review_pending"].title == "Review what waits for me"
    text = await prompted(desk.client, "letter", {"to": "007", "copies": "2"})
    call = '{"name": "letter", "inputs": {"to": "007", "copies": 2}}'
    assert f"run_plan with {call}, exactly so" in text and "the decision is mine" in text
    assert '"inputs": {"to": "Ada"}}' in await prompted(desk.client, "letter", {"to": "Ada", "copies": ""})
    # A host may fill in a template.
    text = await prompted(desk.client, "letter", {"to": "$1", "copies": "$2"})
    assert 'run_plan with name "letter"' in text and '\n"to": $1\n"copies": $2\n' in text
    assert "exactly so" not in text and "\n\nThen do what nextAction" in text and "the decision is mine" in text


async def test_an_input_is_completed_and_what_does_not_fit_is_refused_before_a_model_reads_the_prompt(
    desk: Desk, tmp_path: Path
) -> None:
    inputs: JsonValue = {"properties": {"tone": {"enum": ["warm", "wry", 3]}, "to": {"type": "string"}}}
    save_plan(tmp_path, "tell", {**LOOK, "inputs": inputs})
    for name, typed, values in (("tone", "w", ["warm", "wry"]), ("tone", "", ["warm", "wry", "3"]), ("to", "", [])):
        argument = {"name": name, "value": typed}
        assert (await desk.client.complete(types.PromptReference(name="tell"), argument)).completion.values == values
    refusals: tuple[tuple[dict[str, str], str], ...]
    refusals = (({}, "needs to"), ({"to": "Ada", "copies": "many"}, "copies"), ({"to": "Ada", "other": "1"}, "other"))
    for arguments, said in refusals:
        with pytest.raises(MCPError, match=said):
            await desk.client.get_prompt("letter", arguments)


async def test_the_resource_has_each_plan_with_its_inputs_and_not_where_it_is(desk: Desk, tmp_path: Path) -> None:
    [content] = (await desk.client.read_resource(PLANS)).contents
    assert isinstance(content, types.TextResourceContents) and str(tmp_path) not in content.text
    [shown] = json.loads(content.text)["plans"]
    [known] = await desk.warden.plans()
    named = {"name": "letter", "title": "Send a letter", "description": LETTER["description"]}
    assert shown == {**named, "inputs": INPUTS, "version": known.version, "source": "home"}


async def test_with_as_tools_each_plan_is_a_tool_with_its_own_schema(tmp_path: Path, era: Era) -> None:
    save_plan(tmp_path, "run_goal", LOOK)
    # Hosts' hooks call it, although it is not listed.
    save_plan(tmp_path, "guard_call", LOOK)
    save_plan(tmp_path, "x" * 41, LOOK)
    save_plan(tmp_path, "look", LOOK)
    async with open_desk(tmp_path, era, settings=Settings(home=tmp_path, tables=AS_TOOLS)) as desk:
        listed = {tool.name: tool for tool in (await desk.client.list_tools()).tools}
        assert list(listed) == [*(tool.name for tool in TOOLS), "letter", "look"]
        letter = listed["letter"]
        assert letter.input_schema == {"additionalProperties": False, **INPUTS}
        assert letter.title == "Send a letter" and str(letter.description).startswith("Sends one letter, after")
        assert listed["look"].input_schema == {"type": "object", "additionalProperties": False}
        asked = await desk.ok("letter", to="Ada")
        assert asked["status"] == "suspended"
        assert (await desk.ok("look"))["status"] == "completed"
        error = await desk.refused("letter", to=3)
        assert error["code"] == "invalid_arguments"
        assert (await desk.refused("run_goal", topic="x"))["message"].startswith("run_goal has no key")


@requirement("plans:read-only")
async def test_nothing_over_mcp_writes_or_changes_a_plan(desk: Desk, tmp_path: Path) -> None:
    before = _read_files(tmp_path)
    own: dict[str, JsonValue] = {**LOOK, "name": "letter", "save": True}
    refusals: list[tuple[str, str, dict[str, JsonValue]]] = [
        *(("unknown_tool", name, {"name": "mine", "plan": LOOK}) for name in ("save_plan", "keep_plan", "plans_keep")),
        ("invalid_arguments", "run_plan", {"name": "mine", "plan": LOOK}),
        ("invalid_arguments", "run_plan", {"name": "mine", "todoList": LOOK["todoList"]}),
        ("invalid_arguments", "run_plan", {"name": "letter", "document": LETTER}),
        *(("unknown_plan", "run_plan", {"name": name}) for name in ("../letter", "/etc/passwd", "", "letter\0")),
        ("invalid_plan", "execute_plan", {"plan": own}),
    ]
    for code, tool, arguments in refusals:
        assert (await desk.refused(tool, **arguments))["code"] == code, arguments
    assert (await desk.ok("execute_plan", plan=LOOK))["status"] == "completed"
    await desk.ok("run_plan", name="letter", inputs={"to": "Ada"})
    assert _read_files(tmp_path) == before
    assert [known.name for known in await desk.warden.plans()] == ["letter"]


def _read_files(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (home / "plans").rglob("*") if path.is_file()}
