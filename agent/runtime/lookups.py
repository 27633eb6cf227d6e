"""What a judgement lacks that is not in its execution: files, plans, keys and results that only I/O can read.

Judgements are pure and raise what they need. Read it into the same `LookedUp` and judge again.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.business_keys import OnceNeeded
from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import BudgetSpent
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Earlier, EarlierNeeded, EarlierResult, Reference
from planwarden.agent.core.execution.references import PartsNeeded
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import Author, Plan, ToolFacts
from planwarden.agent.core.plan.plan_parser import Parsed, ParsingNeeded, PlanIntake, is_large_plan, parse_plan
from planwarden.agent.ports.policy import PathsNeeded
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.artifact_reader import read_wanted
from planwarden.agent.runtime.real_paths import find_real_paths
from planwarden.agent.runtime.thread_results import Load, find_thread_results

Needed = PartsNeeded | OnceNeeded | PathsNeeded | EarlierNeeded | ParsingNeeded
"""Not errors: what must be read before the judgement can be made."""


class TransactionContext(msgspec.Struct, frozen=True):
    """What every judgement of one engine shares."""

    approval: ApprovalContext
    facts: Callable[[], dict[str, ToolFacts]]
    """The tools that a plan may name now."""
    max_steps: int


class LookedUp:
    """What was read for one judgement."""

    def __init__(self, context: TransactionContext) -> None:
        self._context = context
        self.approval = context.approval
        """With parts of artifacts, paths and business keys, as far as they were read."""
        self.earlier: Mapping[Reference, EarlierResult | str] = {}
        self.spent: Mapping[str, BudgetSpent] = {}
        """By budget, what the store refused."""
        self._parsed: list[tuple[object, Parsed | Exception]] = []

    def build_plan_intake(self, execution: ExecutionState) -> PlanIntake:
        """Return what reads a plan in the execution, with the earlier results that it takes values from already."""
        facts, earlier = self._context.facts(), {**self.earlier, **execution.earlier}
        return PlanIntake(tools=facts, max_steps=self._context.max_steps, parsed=self._parsed, earlier=earlier)


class LookupReader:
    """Reads for all executions of one process."""

    def __init__(self, store: Store, load: Load) -> None:
        self._store = store
        self._load = load
        self._parsers = anyio.CapacityLimiter(1)

    async def read(
        self, need: Needed, execution: ExecutionState, lookups: LookedUp, artifacts: Sequence[Artifact] = ()
    ) -> None:
        """Read what is needed into `lookups`. `artifacts` are those that the store does not have yet."""
        approval = lookups.approval
        match need:
            case PartsNeeded(wanted=missing):
                new = {artifact.artifact_id: artifact for artifact in artifacts}
                parts = await read_wanted(self._store, execution.thread_id, missing, new)
                lookups.approval = replace(approval, parts={**(approval.parts or {}), **parts})
            case OnceNeeded(wanted=missing):
                refusals = {key.key: key.as_refusal() for key in await self._store.find_once(missing)}
                lookups.approval = replace(approval, once={**approval.once, **dict.fromkeys(missing), **refusals})
            case PathsNeeded(wanted=missing):
                paths = await find_real_paths(missing)
                lookups.approval = replace(approval, paths={**(approval.paths or {}), **paths})
            case ParsingNeeded():
                await anyio.to_thread.run_sync(need.parse, limiter=self._parsers)
            case EarlierNeeded(wanted=missing):
                lookups.earlier = {**lookups.earlier, **await self.find_thread_results(execution, missing)}

    async def find_thread_results(self, execution: ExecutionState, references: frozenset[Reference]) -> Earlier:
        """Return what the other executions of its owner's thread have for references of the execution's plan."""
        return await find_thread_results(self._store, self._load, execution, references)

    async def parse_plan(
        self,
        document: JsonValue,
        *,
        author: Author,
        tools: Mapping[str, ToolFacts],
        max_steps: int,
        earlier: Earlier | None,
        earlier_plan: Plan | None = None,
    ) -> Parsed:
        """As `parse_plan`; a large plan in a thread, one at a time, so that other requests are answered."""
        parse = partial(
            parse_plan,
            document,
            author=author,
            tools=tools,
            max_steps=max_steps,
            earlier=earlier,
            earlier_plan=earlier_plan,
        )
        return await anyio.to_thread.run_sync(parse, limiter=self._parsers) if is_large_plan(document) else parse()
