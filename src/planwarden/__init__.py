"""planwarden runs plans durably, proves every promised tool call, and stops for a person before what matters."""

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import OutcomeUnknown, PlanwardenError, ToolError
from planwarden.agent.core.tool import CallContext, Suspend
from planwarden.server.api.warden import Warden
from planwarden.server.views.execution import Execution, Step
from planwarden.server.views.suspension import Suspension
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
