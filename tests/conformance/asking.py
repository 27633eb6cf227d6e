"""Fixtures that ask the client: pushed while the call waits in older revisions, returned from it in 2026-07-28."""

import json
from collections.abc import Mapping
from typing import Any

from mcp.server.mcpserver.prompts import Prompt
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.message import ServerMessageMetadata
from mcp.types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)

from planwarden.server.mcp.progress import AnyContext
from planwarden.server.mcp.server import PlanwardenServer

CHOICES = ["option1", "option2", "option3"]
TITLED = [{"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"}]


def register(server: PlanwardenServer) -> None:
    """All of them."""
    for tool in (
        test_sampling,
        test_elicitation,
        test_elicitation_sep1034_defaults,
        test_elicitation_sep1330_enums,
        test_input_required_result_elicitation,
        test_input_required_result_sampling,
        test_input_required_result_list_roots,
        test_input_required_result_request_state,
        test_input_required_result_multiple_inputs,
        test_input_required_result_multi_round,
        test_input_required_result_tampered_state,
        test_input_required_result_capabilities,
    ):
        server.add_tool(tool, structured_output=False)
    server.add_prompt(Prompt.from_function(test_input_required_result_prompt))


async def test_sampling(prompt: str, ctx: AnyContext) -> str:
    """Asks the client's model."""
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    answer = await ctx.session.send_request(_sample(prompt), CreateMessageResult, metadata=related)
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


async def test_input_required_result_elicitation(ctx: AnyContext) -> str | InputRequiredResult:
    """Returns a question to the person."""
    name = _filled(ctx, "user_name").get("name")
    return _asked({"user_name": _ask_name()}) if name is None else f"Hello, {name}!"


async def test_input_required_result_sampling(ctx: AnyContext) -> str | InputRequiredResult:
    """Returns a question to the model."""
    answer = _answers(ctx).get("capital_question")
    if isinstance(answer, CreateMessageResult):
        return f"The model said: {_said(answer)}"
    return _asked({"capital_question": _sample("What is the capital of France?")})


async def test_input_required_result_list_roots(ctx: AnyContext) -> str | InputRequiredResult:
    """Returns a question for the roots."""
    answer = _answers(ctx).get("client_roots")
    if isinstance(answer, ListRootsResult):
        return f"Roots: {', '.join(str(root.uri) for root in answer.roots)}"
    return _asked({"client_roots": ListRootsRequest()})


async def test_input_required_result_request_state(ctx: AnyContext) -> str | InputRequiredResult:
    """Wants its state back with the answer."""
    if ctx.request_state == "first" and "confirm" in _answers(ctx):
        return "state-ok"
    return _asked({"confirm": _ask("Please confirm", ok="boolean")}, "first")


async def test_input_required_result_multiple_inputs(ctx: AnyContext) -> str | InputRequiredResult:
    """Returns three questions at once."""
    wanted: dict[str, InputRequest] = {
        "user_name": _ask_name(),
        "greeting": _sample("Say hello"),
        "client_roots": ListRootsRequest(),
    }
    return "all there" if wanted.keys() <= _answers(ctx).keys() else _asked(wanted, "several")


async def test_input_required_result_multi_round(ctx: AnyContext) -> str | InputRequiredResult:
    """Asks for the name, then for the colour; the state carries the name."""
    state: dict[str, Any] = json.loads(ctx.request_state or "{}")
    name, color = _filled(ctx, "step1").get("name"), _filled(ctx, "step2").get("color")
    if "name" in state and color is not None:
        return f"{state['name']} likes {color}"
    if state.get("round") == 1 and name is not None:
        return _asked({"step2": _ask("Which color?", color="string")}, json.dumps({"name": name}))
    return _asked({"step1": _ask_name()}, json.dumps({"round": 1}))


async def test_input_required_result_tampered_state(ctx: AnyContext) -> str | InputRequiredResult:
    """The server seals its state; the fixture gets only a state with a valid seal."""
    if ctx.request_state is None:
        return _asked({"confirm": _ask("Please confirm", ok="boolean")}, "sealed")
    return f"state-ok {ctx.request_state}"


async def test_input_required_result_capabilities(ctx: AnyContext) -> InputRequiredResult:
    """Asks only for what the client declared."""
    capabilities = ctx.client_capabilities
    wanted: dict[str, InputRequest] = {}
    if capabilities is not None and capabilities.sampling is not None:
        wanted["greeting"] = _sample("Say hello")
    if capabilities is not None and capabilities.elicitation is not None:
        wanted["user_name"] = _ask_name()
    return _asked(wanted, "declared")


async def test_input_required_result_prompt(ctx: AnyContext) -> list[UserMessage] | InputRequiredResult:
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
    """The content of an accepted form; empty when there is none."""
    answer = _answers(ctx).get(key)
    return (answer.content or {}) if isinstance(answer, ElicitResult) else {}


def _asked(requests: dict[str, InputRequest], state: str | None = None) -> InputRequiredResult:
    return InputRequiredResult(input_requests=requests, request_state=state)


def _ask(message: str, **fields: str) -> ElicitRequest:
    properties = {name: {"type": kind} for name, kind in fields.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": list(fields)}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _ask_name() -> ElicitRequest:
    return _ask("What is your name?", name="string")


def _sample(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=100))


def _said(answer: CreateMessageResult) -> str:
    return answer.content.text if isinstance(answer.content, TextContent) else "nothing"
