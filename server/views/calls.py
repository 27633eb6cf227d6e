"""The view of a tool call, and of what went wrong with a call, a step or an execution."""

from dataclasses import dataclass

from pydantic import JsonValue

from planwarden.agent.core.state import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Why something failed."""

    code: str
    """A stable word for what went wrong."""
    message: str
    """What happened, to which id, and what to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool that ran, or that a suspension asks about."""

    call_id: str
    """`STEP:NUMBER`, unique in the execution."""
    tool_name: str
    """Name in the catalogue."""
    arguments: dict[str, JsonValue]
    """As they ran or will run: references resolved, defaults filled in."""
    status: str | None = None
    """`succeeded`, `failed`, `suspended`, `rejected` or `outcome_unknown`; left out in suspensions."""
    error: Error | None = None
    """Why it failed; left out if it did not."""


def build_tool_call(call: Call) -> ToolCall:
    return ToolCall(
        call_id=call.call_id,
        tool_name=call.tool_name,
        arguments=call.proposed if call.arguments is None else call.arguments,
        status=call.status,
        error=None if call.error_code is None else Error(code=call.error_code, message=call.error_message or ""),
    )
