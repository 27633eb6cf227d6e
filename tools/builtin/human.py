"""Tools that only wait for an answer: `displayConfirmation` and `requestInput` ask a person, `wait` asks the clock.

These tools run no code: their arguments become a question, and the decision on it is the result.
"""

from collections.abc import Callable, Mapping

from planwarden.agent.common.errors import ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import MAX_WAIT_S, CallContext, Risk, Suspend, ToolDefinition
from planwarden.tools.base import Tool, build_object_schema, define

MAX_ADDRESSEE_CHARS = 200


async def _never_called(arguments: dict[str, JsonValue], context: CallContext) -> object:
    raise ToolError("this tool only asks; it has nothing to run")


def _build_confirmation(arguments: Mapping[str, JsonValue]) -> Suspend:
    return Suspend(message=str(arguments["action"]), timeout_s=_read_seconds(arguments, "timeoutSeconds"))


def _build_form(arguments: Mapping[str, JsonValue]) -> Suspend:
    form = arguments["form"]
    assert isinstance(form, dict)
    return Suspend(message=str(arguments["message"]), form=form, timeout_s=_read_seconds(arguments, "timeoutSeconds"))


def _build_wait(arguments: Mapping[str, JsonValue]) -> Suspend:
    seconds = _read_seconds(arguments, "seconds")
    return Suspend(message=f"waits {seconds:g} s", timeout_s=seconds, addressee="clock")


def _read_seconds(arguments: Mapping[str, JsonValue], key: str) -> float | None:
    seconds = arguments.get(key)
    return float(seconds) if isinstance(seconds, int | float) else None


def _build_tool(
    name: str,
    description: str,
    question: Callable[[Mapping[str, JsonValue]], Suspend],
    input_schema: dict[str, JsonValue],
    capabilities: tuple[str, ...],
    risk: Risk = "confirm",
) -> Tool:
    definition = ToolDefinition(
        name=name,
        description=description,
        input_schema=input_schema,
        capabilities=capabilities,
        risk=risk,
        effect="read",
        execution_mode="blocking",
        source="builtin",
        timeout_s=None,
    )
    return Tool(define(definition), _never_called, question=question)


_TIMEOUT: JsonValue = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WAIT_S}
_DETAILS: JsonValue = {"description": "The facts to decide on; take them from results with $from."}
_ADDRESSEE: JsonValue = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_ADDRESSEE_CHARS,
    "description": "Who should answer; it gives nobody a right and takes none.",
}

_QUESTION: dict[str, JsonValue] = {"details": _DETAILS, "addressee": _ADDRESSEE, "timeoutSeconds": _TIMEOUT}
_ACTION: JsonValue = {"type": "string", "minLength": 1, "description": "What will happen, in one sentence."}
_MESSAGE: JsonValue = {"type": "string", "minLength": 1, "description": "What is asked and why."}
_FORM: JsonValue = {
    "type": "object",
    "description": "JSON Schema of the answer.",
    "properties": {"type": {"const": "object"}},
    "required": ["type"],
}

DISPLAY_CONFIRMATION = _build_tool(
    "displayConfirmation",
    "Ask a person to approve or reject an action before it happens.\n\nWaits until somebody decides.",
    _build_confirmation,
    build_object_schema({"action": _ACTION, **_QUESTION}, "action"),
    ("human", "approval"),
)
REQUEST_INPUT = _build_tool(
    "requestInput",
    "Ask a person to fill in a form; the answer is in the result under /content.",
    _build_form,
    build_object_schema({"message": _MESSAGE, "form": _FORM, **_QUESTION}, "message", "form"),
    ("human", "input"),
)
WAIT = _build_tool(
    "wait",
    "Wait some seconds, durably.\n\nThe wait survives restarts and costs nothing.",
    _build_wait,
    build_object_schema({"seconds": _TIMEOUT}, "seconds"),
    ("time",),
    "read",
)
ASKING_TOOLS = {tool.definition.name: tool for tool in (DISPLAY_CONFIRMATION, REQUEST_INPUT, WAIT)}
