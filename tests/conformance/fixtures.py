"""The product's own server object over HTTP, with the fixtures of the suite registered on it.

Those that ask the client push their question while the call waits in older revisions, and return it in 2026-07-28.
"""

import base64
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import uvicorn
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import Field

from planwarden.server.api.warden import Warden
from planwarden.server.auth.admission import AllowedNames
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.mcp.requests import AnyContext
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.settings.configuration import Settings
from planwarden.server.transports.http import PATH, build_http_app
from planwarden.storage.clock import SystemClock
from tests.conformance import tasks
from tests.support.wardens import open_service

# One pixel, and a sound of no length.
PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
        "0000000b4944415478da6364600000000600023081d02f0000000049454e44ae426082"
    )
).decode()
WAV = base64.b64encode(
    b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00"
    b"@\x1f\x00\x00@\x1f\x00\x00\x01\x00\x08\x00data\x00\x00\x00\x00"
).decode()
CHOICES = ["option1", "option2", "option3"]
TITLED = [{"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"}]
HOST = "127.0.0.1"


@asynccontextmanager
async def serve_fixtures(home: Path) -> AsyncGenerator[str]:
    """Serves while the block runs and yields the address. The store is a SQLite file in `home`."""
    warden = Warden(settings=Settings(home=home), tools=tasks.engine_tools())
    server = PlanwardenServer(lambda: open_service(warden), extensions=[tasks.FixtureTasks()])
    for register in (register_fixtures, tasks.register):
        register(server)
    with socket.create_server((HOST, 0)) as listener:
        port = int(listener.getsockname()[1])
        config = uvicorn.Config(
            build_http_app(server, AllowedNames.from_settings(HttpSettings(), HOST, port), clock=SystemClock()),
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        running = uvicorn.Server(config)
        async with anyio.create_task_group() as group:
            group.start_soon(running.serve, [listener])
            yield f"http://{HOST}:{port}{PATH}"
            running.should_exit = True


def register_fixtures(server: PlanwardenServer) -> None:
    """Registers everything whose name begins as the suite's fixtures do: the prompts, and the tools."""
    for name, fixture in globals().items():
        if name.startswith("test_") and "prompt" in name:
            server.add_prompt(Prompt.from_function(fixture))
        elif name.startswith("test_"):
            server.add_tool(fixture, structured_output=False)
    _register_changes(server)
    _register_resources(server)
    server.completion()(_complete)
    # The SDK (2.3) has no public way to serve this method, which newer revisions do not have any more.
    lowlevel = server._lowlevel_server  # pyright: ignore[reportPrivateUsage]
    lowlevel.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _set_level)


def test_simple_text() -> str:
    """Gives a text."""
    return "This is a simple text response for testing."


def test_image_content() -> types.ImageContent:
    """Gives an image."""
    return types.ImageContent(type="image", data=PNG, mime_type="image/png")


def test_audio_content() -> types.AudioContent:
    """Gives a sound."""
    return types.AudioContent(type="audio", data=WAV, mime_type="audio/wav")


def test_embedded_resource() -> types.EmbeddedResource:
    """Gives a resource inside of the result."""
    return _embedded("test://embedded-resource", "This is an embedded resource content.")


def test_multiple_content_types() -> list[types.TextContent | types.ImageContent | types.EmbeddedResource]:
    """Gives three kinds of content at once."""
    return [
        types.TextContent(type="text", text="Multiple content types test:"),
        test_image_content(),
        _embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json"),
    ]


async def test_tool_with_logging(ctx: AnyContext) -> str:
    """Logs three times while it runs."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        params = types.LoggingMessageNotificationParams(level="info", data=line)
        await ctx.session.send_notification(types.LoggingMessageNotification(params=params), ctx.request_id)
    return "logged"


async def test_tool_with_progress(ctx: AnyContext) -> str:
    """Reports progress three times while it runs."""
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100, f"{done} of 100")
    return "done"


def test_error_handling() -> str:
    """Always fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


async def test_missing_capability(ctx: AnyContext) -> str:
    """Needs a client that samples."""
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        data: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(code=types.MISSING_REQUIRED_CLIENT_CAPABILITY, message="sampling is required", data=data)
    return "the client samples"


def test_x_mcp_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "none") -> str:
    """Has an argument that is mirrored into a header."""
    return region


def test_simple_prompt() -> list[UserMessage]:
    """Without arguments."""
    return [UserMessage("This is a simple prompt for testing.")]


def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    """With two arguments."""
    return [UserMessage(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")]


# The suite calls the argument by this name.
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    """With a resource inside."""
    resource = _embedded(resourceUri, "Embedded resource content for testing.")
    return [UserMessage(resource), UserMessage("Please process the embedded resource above.")]


def test_prompt_with_image() -> list[UserMessage]:
    """With an image inside."""
    return [UserMessage(test_image_content()), UserMessage("Please analyze the image above.")]


def _register_changes(server: PlanwardenServer) -> None:

    async def test_trigger_tool_change(ctx: Context[Any, Any]) -> str:
        """Changes the list of tools."""
        server.add_tool(test_simple_text, name="test_passing_tool")
        server.remove_tool("test_passing_tool")
        await ctx.notify_tools_changed()
        return "changed"

    async def test_trigger_prompt_change(ctx: Context[Any, Any]) -> str:
        """Changes the list of prompts."""
        server.add_prompt(Prompt.from_function(test_simple_prompt, name="test_passing_prompt"))
        server.remove_prompt("test_passing_prompt")
        await ctx.notify_prompts_changed()
        return "changed"

    server.add_tool(test_trigger_tool_change)
    server.add_tool(test_trigger_prompt_change)


def _register_resources(server: PlanwardenServer) -> None:
    def text() -> str:
        return "This is the content of the static text resource."

    def binary() -> bytes:
        return base64.b64decode(PNG)

    # The name of the parameter stands in the address.
    def data(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    server.resource("test://static-text")(text)
    server.resource("test://static-binary", mime_type="image/png")(binary)
    server.resource("test://template/{id}/data", mime_type="application/json")(data)
    server.resource("test://watched-resource")(text)


async def _complete(ref: object, argument: object, context: object) -> types.Completion:
    return types.Completion(values=[], total=0, has_more=False)


async def _set_level(ctx: ServerRequestContext[Any, Any], params: types.SetLevelRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> types.EmbeddedResource:
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    )


async def test_sampling(prompt: str, ctx: AnyContext) -> str:
    """Asks the client's model."""
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    answer = await ctx.session.send_request(_sample(prompt), types.CreateMessageResult, metadata=related)
    return f"LLM response: {_said(answer)}"


async def test_elicitation(message: str, ctx: AnyContext) -> str:
    """Asks the client's person."""
    fields = {"username": {"type": "string"}, "email": {"type": "string"}}
    return await _pushed(ctx, message, fields, required=["username", "email"])


async def test_elicitation_sep1034_defaults(ctx: AnyContext) -> str:
    """Asks with a default in every field."""
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await _pushed(ctx, "Please provide user information", fields)


async def test_elicitation_sep1330_enums(ctx: AnyContext) -> str:
    """Asks with every kind of choice."""
    fields = {
        "untitledSingle": {"type": "string", "enum": CHOICES},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {"type": "string", "enum": CHOICES, "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": CHOICES}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    }
    return await _pushed(ctx, "Please select", fields)


async def test_input_required_result_elicitation(ctx: AnyContext) -> str | types.InputRequiredResult:
    """Returns a question to the person."""
    name = _filled(ctx, "user_name").get("name")
    return _asked({"user_name": _ask_name()}) if name is None else f"Hello, {name}!"


async def test_input_required_result_sampling(ctx: AnyContext) -> str | types.InputRequiredResult:
    """Returns a question to the model."""
    answer = _answers(ctx).get("capital_question")
    if isinstance(answer, types.CreateMessageResult):
        return f"The model said: {_said(answer)}"
    return _asked({"capital_question": _sample("What is the capital of France?")})


async def test_input_required_result_list_roots(ctx: AnyContext) -> str | types.InputRequiredResult:
    """Returns a question for the roots."""
    answer = _answers(ctx).get("client_roots")
    if isinstance(answer, types.ListRootsResult):
        return f"Roots: {', '.join(str(root.uri) for root in answer.roots)}"
    return _asked({"client_roots": types.ListRootsRequest()})


async def test_input_required_result_request_state(ctx: AnyContext) -> str | types.InputRequiredResult:
    """Wants its state back with the answer."""
    if ctx.request_state == "first" and "confirm" in _answers(ctx):
        return "state-ok"
    return _asked({"confirm": _ask("Please confirm", ok="boolean")}, "first")


async def test_input_required_result_multiple_inputs(ctx: AnyContext) -> str | types.InputRequiredResult:
    """Returns three questions at once."""
    wanted: dict[str, types.InputRequest] = {
        "user_name": _ask_name(),
        "greeting": _sample("Say hello"),
        "client_roots": types.ListRootsRequest(),
    }
    return "all there" if wanted.keys() <= _answers(ctx).keys() else _asked(wanted, "several")


async def test_input_required_result_multi_round(ctx: AnyContext) -> str | types.InputRequiredResult:
    """Asks for the name, then for the colour; the state carries the name."""
    state: dict[str, Any] = json.loads(ctx.request_state or "{}")
    name, color = _filled(ctx, "step1").get("name"), _filled(ctx, "step2").get("color")
    if "name" in state and color is not None:
        return f"{state['name']} likes {color}"
    if state.get("round") == 1 and name is not None:
        return _asked({"step2": _ask("Which color?", color="string")}, json.dumps({"name": name}))
    return _asked({"step1": _ask_name()}, json.dumps({"round": 1}))


async def test_input_required_result_tampered_state(ctx: AnyContext) -> str | types.InputRequiredResult:
    """The server seals its state; the fixture gets only a state with a valid seal."""
    if ctx.request_state is None:
        return _asked({"confirm": _ask("Please confirm", ok="boolean")}, "sealed")
    return f"state-ok {ctx.request_state}"


async def test_input_required_result_capabilities(ctx: AnyContext) -> types.InputRequiredResult:
    """Asks only for what the client declared."""
    capabilities = ctx.client_capabilities
    wanted: dict[str, types.InputRequest] = {}
    if capabilities is not None and capabilities.sampling is not None:
        wanted["greeting"] = _sample("Say hello")
    if capabilities is not None and capabilities.elicitation is not None:
        wanted["user_name"] = _ask_name()
    return _asked(wanted, "declared")


async def test_input_required_result_prompt(ctx: AnyContext) -> list[UserMessage] | types.InputRequiredResult:
    """Asks before it returns its message."""
    context = _filled(ctx, "user_context").get("context")
    if context is None:
        return _asked({"user_context": _ask("Which context?", context="string")})
    return [UserMessage(f"Use the following context: {context}")]


async def _pushed(ctx: AnyContext, message: str, fields: dict[str, Any], required: list[str] | None = None) -> str:
    schema: dict[str, Any] = {"type": "object", "properties": fields, "required": required or []}
    answer = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
    return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"


def _answers(ctx: AnyContext) -> Mapping[str, Any]:
    return ctx.input_responses or {}


def _filled(ctx: AnyContext, key: str) -> Mapping[str, Any]:
    answer = _answers(ctx).get(key)
    return (answer.content or {}) if isinstance(answer, types.ElicitResult) else {}


def _asked(requests: dict[str, types.InputRequest], state: str | None = None) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def _ask(message: str, **fields: str) -> types.ElicitRequest:
    properties = {name: {"type": kind} for name, kind in fields.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(fields)}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _ask_name() -> types.ElicitRequest:
    return _ask("What is your name?", name="string")


def _sample(text: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=100))


def _said(answer: types.CreateMessageResult) -> str:
    return answer.content.text if isinstance(answer.content, types.TextContent) else "nothing"
