"""planwarden runs plans durably over real tools, proves every promised call, and waits for a person where it matters."""

from planwarden.agent.answers import Decision
from planwarden.agent.errors import OutcomeUnknown, PlanwardenError, ToolError
from planwarden.agent.tool import CallContext, Suspend
from planwarden.server.views import Execution, Step, Suspension
from planwarden.server.warden import Warden
from planwarden.tools.base import Tool, tool

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
