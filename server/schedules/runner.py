"""What schedules and hooks need of the rest: saved plans that can be started by name."""

from collections.abc import Mapping
from typing import Protocol

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.requester import Requester


class StartedRun(Protocol):
    """The execution of a saved plan; `planwarden.server.views.execution.Execution` is one."""

    @property
    def execution_id(self) -> str: ...

    @property
    def thread_id(self) -> str: ...


class PlanRunner(Protocol):
    """Starts saved plans; `Service` is one."""

    async def run_plan(
        self,
        name: str,
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        requester: Requester,
    ) -> StartedRun:
        """Starts the plan once for each key of the principal.

        Raises:
            PlanwardenError: it cannot start.
        """
        ...
