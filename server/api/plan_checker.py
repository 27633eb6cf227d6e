"""Checks plans as a run would begin with them now: with the tools and the thread."""

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Earlier, EarlierNeeded
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import new_execution
from planwarden.agent.core.plan import plan_parser
from planwarden.agent.core.plan.plan import Plan, ToolFacts, list_earlier_results
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.new_execution import ParsedPlan
from planwarden.server.api.starts import Threads
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
        return await self.parse(plan, self._engine.tool_facts(), thread_id=thread_id, principal=principal)

    async def parse(
        self,
        document: JsonValue,
        tools: Mapping[str, ToolFacts],
        *,
        thread_id: str | None,
        principal: str,
        earlier: Earlier = MappingProxyType({}),
        earlier_plan: Plan | None = None,
    ) -> ParsedPlan:
        """Return the plan with what it takes from the thread. A large one is parsed on another thread of the process.

        Raises:
            UnknownThread: it takes results from the thread, and the principal has no such thread.
        """
        results = dict(earlier)
        while True:
            try:
                parse = partial(
                    plan_parser.parse_plan,
                    document,
                    author="caller",
                    tools=dict(tools),
                    max_steps=self._max_steps,
                    earlier=None if thread_id is None else results,
                    earlier_plan=earlier_plan,
                )
                is_large = plan_parser.is_large_plan(document)
                plan, warnings = await self._engine.lookups.run_parser(parse) if is_large else parse()
                return ParsedPlan(plan, warnings, list_earlier_results(plan, results))
            except EarlierNeeded as needed:
                assert thread_id is not None
                await self._threads.read_headers(thread_id, principal)
                asking = new_execution("", thread_id, principal)
                results |= await self._engine.lookups.find_thread_results(asking, needed.wanted)

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
