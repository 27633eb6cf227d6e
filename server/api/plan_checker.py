"""Checks plans as a run would begin with them now: with the tools and the thread."""

from collections.abc import Iterable, Mapping

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Earlier, EarlierNeeded, EarlierResult, Reference
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import new_execution
from planwarden.agent.core.plan import plan_parser
from planwarden.agent.core.plan.plan import Plan, ToolFacts, list_earlier_results
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.new_execution import ParsedPlan
from planwarden.server.api.threads import Threads
from planwarden.server.plans.library import SavedPlans
from planwarden.tools.downstream.servers import DownstreamServers


class PlanChecker:
    """Checks plans for one engine."""

    def __init__(
        self,
        engine: Engine,
        saved: SavedPlans,
        threads: Threads,
        downstream: DownstreamServers | None,
        *,
        max_steps: int,
    ) -> None:
        self._engine = engine
        self._saved = saved
        self._threads = threads
        self._downstream = downstream
        self._max_steps = max_steps

    async def check(self, plan: JsonValue, *, thread_id: str | None, principal: str) -> ParsedPlan:
        """Return the plan as it would run now on the thread; wait a limited time for tools of downstream servers.

        Raises:
            InvalidPlan, LimitExceeded: it cannot run.
            UnknownThread: it takes results from the thread, and the principal has no such thread.
        """
        if self._downstream is not None:
            names = plan_parser.read_tool_names(plan)
            if missing := names - self._engine.tool_facts().keys():
                await self.wait_for_tools(missing)
                self.check_servers(names)
        earlier: dict[Reference, EarlierResult | str] = {}
        while True:
            try:
                parsed, warnings = await self.parse(
                    plan, tools=self._engine.tool_facts(), earlier=None if thread_id is None else earlier
                )
                return ParsedPlan(parsed, warnings, list_earlier_results(parsed, earlier))
            except EarlierNeeded as needed:
                assert thread_id is not None
                await self._threads.read_headers(thread_id, principal)
                asking = new_execution("", thread_id, principal)
                earlier |= await self._engine.lookups.find_thread_results(asking, needed.wanted)

    async def parse(
        self,
        document: JsonValue,
        *,
        tools: Mapping[str, ToolFacts],
        earlier: Earlier | None,
        earlier_plan: Plan | None = None,
    ) -> tuple[Plan, tuple[str, ...]]:
        """As `parse_plan`; a large plan is parsed in a thread."""
        return await self._engine.lookups.parse_plan(
            document,
            author="caller",
            tools=dict(tools),
            max_steps=self._max_steps,
            earlier=earlier,
            earlier_plan=earlier_plan,
        )

    async def read_saved(self, name: str) -> tuple[ev.PlanVersion, Plan]:
        """Return the saved plan as a run would begin with it now. Raises as `check`, and `UnknownPlan`."""
        saved = await self._saved.find(name)
        checked_plan = await self.check(saved.document, thread_id=None, principal="")
        return ev.PlanVersion(name=saved.name, digest=saved.digest), checked_plan.plan

    async def wait_for_tools(self, names: Iterable[str]) -> None:
        """Wait a limited time until the downstream servers that the unknown names point to have listed their tools."""
        if self._downstream is not None:
            await self._downstream.wait_until_listed(names)

    def check_servers(self, names: Iterable[str]) -> None:
        """Raise `InvalidPlan` that says why a server's tools are missing, which `unknown tool` would not."""
        if self._downstream is None:
            return
        faults = {name: why for name in sorted(names) if (why := self._downstream.unavailable_reason(name)) is not None}
        if faults:
            text = "; ".join(f"{name[:128]!r} is not available: {why}" for name, why in list(faults.items())[:10])
            missing: list[JsonValue] = [name[:128] for name in faults]
            raise InvalidPlan(f"the plan needs tools that are not available: {text}", details={"unknownTools": missing})
