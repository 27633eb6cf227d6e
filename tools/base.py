"""What a tool is: its definition, and the code behind it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from msgspec.structs import asdict, replace

from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import LeaseLost, StaleDefinition, StoreError, ToolError, UsageError
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition

_NOT_COVERED = frozenset({"timeout_s", "answer_within_s", "on_timeout", "unavailable", "is_gated", "digest"})
"""Fields that the digest leaves out: time limits and their effects, who can call the tool now, and the digest."""
MARK = "__planwarden_tool__"
"""The attribute in which a decorated function holds its tool."""
NOT_A_FAULT = (
    *(ToolError, StaleDefinition, LeaseLost, StoreError),
    *(asyncio.CancelledError, KeyboardInterrupt, GeneratorExit),
)
"""Exceptions of a tool that its caller receives unchanged. A tool is somebody else's code: any other exception, even
`SystemExit` or a panic of an extension in Rust, fails the call and does not end the process."""


class Tool(msgspec.Struct, frozen=True):
    """A definition and the code behind it."""

    definition: ToolDefinition
    call: Callable[[dict[str, JsonValue], CallContext], Awaitable[object]]
    """Runs the tool; returns its result, or `Suspend`."""
    resume: Callable[[JsonValue, JsonValue, CallContext], Awaitable[object]] | None = None
    """Takes the stored `resume_payload` and the decision; returns the call's result."""
    question: Callable[[Mapping[str, JsonValue]], Suspend] | None = None
    """For a tool that only asks: builds the question without running anything."""
    schema: Schema | None = None
    """The compiled input schema; None if it is not compiled yet."""


def define(definition: ToolDefinition) -> ToolDefinition:
    """Return the definition with its digest, which covers everything that a caller or a person may rely on."""
    facts = {name: value for name, value in asdict(definition).items() if name not in _NOT_COVERED}
    return replace(definition, digest=digest(facts, context="definition/v1"))


def build_object_schema(properties: dict[str, JsonValue], *required: str) -> dict[str, JsonValue]:
    """Return the schema of an object that has these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list[JsonValue](required),
        "additionalProperties": False,
    }


def as_tool(candidate: object) -> Tool:
    """Return `candidate` if it is a `Tool`, or a decorated function's `Tool`. Raises `UsageError` for anything else."""
    tool = candidate if isinstance(candidate, Tool) else getattr(candidate, MARK, None)
    if not isinstance(tool, Tool):
        raise UsageError(f"{candidate!r} is not a tool; decorate the function with @planwarden.tool(...)")
    return tool


def find_tools(namespace: Mapping[str, object]) -> list[Tool]:
    """Return a module's tools and those of its decorated functions, each only once, in the order of its namespace."""
    tools = (value if isinstance(value, Tool) else getattr(value, MARK, None) for value in namespace.values())
    return list({id(tool): tool for tool in tools if isinstance(tool, Tool)}.values())


def first_line(error: BaseException) -> str:
    """Return the first line of the error's message, cut to 300 characters."""
    try:
        return (str(error).strip().splitlines() or [""])[0][:300]
    # `str` runs the error's own `__str__`, which may fail as well.
    except Exception:  # noqa: BLE001
        return "(it has no text)"
