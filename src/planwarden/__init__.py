"""planwarden runs plans durably, proves every promised tool call, and stops for a person before what matters."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planwarden.agent.approval.answers import Decision
    from planwarden.agent.common.errors import OutcomeUnknown, PlanwardenError, ToolError
    from planwarden.agent.core.tool import CallContext, Suspend
    from planwarden.server.api.warden import Warden
    from planwarden.server.views.execution import Execution, Step
    from planwarden.server.views.suspension import Suspension
    from planwarden.tools.base import Tool
    from planwarden.tools.function import tool

__all__ = [
    "CallContext",
    "Decision",
    "Execution",
    "OutcomeUnknown",
    "PlanwardenError",
    "Step",
    "Suspend",
    "Suspension",
    "Tool",
    "ToolError",
    "Warden",
    "tool",
]

_MODULES = {
    "CallContext": "agent.core.tool",
    "Decision": "agent.approval.answers",
    "Execution": "server.views.execution",
    "OutcomeUnknown": "agent.common.errors",
    "PlanwardenError": "agent.common.errors",
    "Step": "server.views.execution",
    "Suspend": "agent.core.tool",
    "Suspension": "server.views.suspension",
    "Tool": "tools.base",
    "ToolError": "agent.common.errors",
    "Warden": "server.api.warden",
    "tool": "tools.function",
}
"""The module of each name, imported at the first use because every command imports this package first."""


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
