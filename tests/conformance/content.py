"""Fixtures with fixed content: the tools, resources and prompts whose answers the suite looks at."""

import base64
import json
from typing import Annotated, Any

from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPError
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    SetLevelRequestParams,
    TextContent,
    TextResourceContents,
)
from pydantic import Field

from planwarden.server.mcp.progress import AnyContext
from planwarden.server.mcp.server import PlanwardenServer

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


def register(server: PlanwardenServer) -> None:
    """All of them."""
    for tool in (
        test_simple_text,
        test_image_content,
        test_audio_content,
        test_embedded_resource,
        test_multiple_content_types,
        test_tool_with_logging,
        test_tool_with_progress,
        test_error_handling,
        test_missing_capability,
        test_x_mcp_header,
    ):
        server.add_tool(tool, structured_output=False)
    _register_changes(server)
    _register_resources(server)
    for prompt in (
        test_simple_prompt,
        test_prompt_with_arguments,
        test_prompt_with_embedded_resource,
        test_prompt_with_image,
    ):
        server.add_prompt(Prompt.from_function(prompt))
    server.completion()(_complete)
    # The SDK (2.3) has no public way to serve this method, which newer revisions do not have any more.
    lowlevel = server._lowlevel_server  # pyright: ignore[reportPrivateUsage]
    lowlevel.add_request_handler("logging/setLevel", SetLevelRequestParams, _set_level)


def test_simple_text() -> str:
    """Gives a text."""
    return "This is a simple text response for testing."


def test_image_content() -> ImageContent:
    """Gives an image."""
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def test_audio_content() -> AudioContent:
    """Gives a sound."""
    return AudioContent(type="audio", data=WAV, mime_type="audio/wav")


def test_embedded_resource() -> EmbeddedResource:
    """Gives a resource inside of the result."""
    return _embedded("test://embedded-resource", "This is an embedded resource content.")


def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Gives three kinds of content at once."""
    return [
        TextContent(type="text", text="Multiple content types test:"),
        test_image_content(),
        _embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json"),
    ]


async def test_tool_with_logging(ctx: AnyContext) -> str:
    """Logs three times while it runs."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        params = LoggingMessageNotificationParams(level="info", data=line)
        await ctx.session.send_notification(LoggingMessageNotification(params=params), ctx.request_id)
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
        raise MCPError(code=MISSING_REQUIRED_CLIENT_CAPABILITY, message="sampling is required", data=data)
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
    """Registers tools that change the lists and notify the listeners."""

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


async def _complete(ref: object, argument: object, context: object) -> Completion:
    return Completion(values=[], total=0, has_more=False)


async def _set_level(ctx: ServerRequestContext[Any, Any], params: SetLevelRequestParams) -> EmptyResult:
    return EmptyResult()


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text))
