"""Reads what judgements need from outside the execution: artifacts, paths, keys, plans and earlier results.

A judgement is a pure function. If it raises `Needed`, read what it needs into the same `LookedUp`, and call it again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.business_keys import OnceNeeded
from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import BudgetExceeded, InvalidArguments, Needed, StoreError, UnknownThread
from planwarden.agent.common.struct import copy_fields
from planwarden.agent.core.binding.bindings import Earlier, EarlierNeeded, EarlierResult, Reference
from planwarden.agent.core.binding.pointers import ParsedTexts
from planwarden.agent.core.execution.references import PartsNeeded, find_address, find_result
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import ToolFacts
from planwarden.agent.core.plan.plan_parser import Parsed, ParsingNeeded, PlanIntake
from planwarden.agent.ports.policy import PathsNeeded
from planwarden.agent.ports.store import Header, Store
from planwarden.agent.runtime.artifact_reader import read_wanted
from planwarden.agent.runtime.real_paths import find_real_paths

MAX_EXECUTIONS = 50
"""The most executions of a thread to search for results; the newest are searched."""

Load = Callable[[str], Awaitable[ExecutionState]]
"""Returns the state of the execution with this id. Raises `StoreError` when its log is damaged."""
Result = TypeVar("Result")


class TransactionContext(msgspec.Struct, frozen=True):
    """What all judgements of one engine share."""

    approval: ApprovalContext
    facts: Callable[[], dict[str, ToolFacts]]
    """The tools that a plan may name now."""
    max_steps: int


class LookedUp:
    """What was read for one judgement."""

    def __init__(self, context: TransactionContext) -> None:
        self._context = context
        self.approval = context.approval
        """The context, with what was read of artifacts, paths and business keys."""
        self.earlier: Mapping[Reference, EarlierResult | str] = {}
        self.spent: Mapping[str, BudgetExceeded] = {}
        """For each budget that the store found used up: its refusal."""
        self._parsed: list[tuple[object, Parsed | Exception]] = []

    def build_plan_intake(self, execution: ExecutionState, facts: Mapping[str, ToolFacts] | None = None) -> PlanIntake:
        """Return the `PlanIntake` for plans of the execution, with the earlier results that it has or that were read.

        A plan may name the tools of `facts`; with None, those that exist now. Without a thread, there are no results.
        """
        return PlanIntake(
            tools=self._context.facts() if facts is None else facts,
            unavailable={d.name: d.unavailable for d in self.approval.tools.definitions() if d.unavailable},
            max_steps=self._context.max_steps,
            goal_and_inputs=execution.goal_and_inputs,
            parsed=self._parsed,
            earlier={**self.earlier, **execution.earlier} if execution.thread_id else None,
        )


class LookupReader:
    """Reads what judgements need, for all executions of one process."""

    def __init__(self, store: Store, load: Load, context: TransactionContext) -> None:
        self.context = context
        self._store = store
        self._load = load
        self._parsers = anyio.CapacityLimiter(1)

    async def read(
        self, need: Needed, execution: ExecutionState, lookups: LookedUp, artifacts: Sequence[Artifact] = ()
    ) -> None:
        """Read what is needed into `lookups`. `artifacts` are those that the store does not have yet."""
        approval = lookups.approval
        match need:
            case PartsNeeded(keys=missing):
                new = {artifact.artifact_id: artifact for artifact in artifacts}
                parts = await read_wanted(self._store, execution.thread_id, missing, new)
                lookups.approval = replace(approval, parts={**(approval.parts or {}), **parts})
            case OnceNeeded(keys=missing):
                holders = {key.key: key for key in await self._store.find_once(missing)}
                lookups.approval = replace(approval, holders={**approval.holders, **dict.fromkeys(missing), **holders})
            case PathsNeeded(keys=missing):
                paths = await find_real_paths(missing)
                lookups.approval = replace(approval, paths={**(approval.paths or {}), **paths})
            case ParsingNeeded(keys=parsers):
                # Parse in a worker thread, one plan at a time, so that other requests go on.
                for parse in parsers:
                    await anyio.to_thread.run_sync(parse, limiter=self._parsers)
            case EarlierNeeded(keys=missing):
                lookups.earlier = {**lookups.earlier, **await self._find_thread_results(execution, missing)}
            case _:
                raise need

    async def resolve(self, execution: ExecutionState, judge: Callable[[LookedUp], Result]) -> Result:
        """Return what `judge` returns. Whenever it raises `Needed`, read what it needs and call it again."""
        lookups = LookedUp(self.context)
        while True:
            try:
                return judge(lookups)
            except Needed as needed:
                await self.read(needed, execution, lookups)

    async def explain_conflict(self, execution: ExecutionState) -> str:
        """Return why the store refuses every attempt to go on: a row that does not fit the log, or too many writers."""
        execution_id, edited = execution.execution_id, list[str]()
        for suspension in execution.open_suspensions:
            row = await self._store.find_suspension(suspension.question.suspension_id)
            if row is None or not row.fits(suspension):
                edited.append(repr(suspension.question.suspension_id))
        header = await self._store.header(execution_id)
        if not edited or header is None or header.version != execution.version:
            return f"execution {execution_id!r} is being changed by too many others; try again"
        return (
            f"the stored row of suspension {', '.join(edited)} does not match the log of execution {execution_id!r} "
            "(digest mismatch), so nothing is decided; see `planwarden audit verify`, and restore a backup"
        )

    async def _find_thread_results(self, asking: ExecutionState, references: frozenset[Reference]) -> Earlier:
        """Return each reference's result from other executions of the same thread and owner, or why there is none.

        The newest completed step with the id counts. The asking execution need not exist yet. The event that accepts
        the plan stores the results, so later changes of the earlier execution do not affect them.
        """
        try:
            headers = await self._store.thread(asking.thread_id)
            others = [h for h in headers if h.principal == asking.principal and h.execution_id != asking.execution_id]
            sources = await self._find_sources(others, {reference.step_id for reference in references})
        except (StoreError, UnknownThread) as error:
            return dict.fromkeys(references, f"earlier executions of the thread cannot be read: {error.message}")
        results: dict[Reference, EarlierResult | str] = {}
        for step_id in sorted({reference.step_id for reference in references}):
            mine = [reference for reference in references if reference.step_id == step_id]
            source = sources.get(step_id)
            if source is None:
                results |= dict.fromkeys(mine, _explain_absence(step_id, bool(others)))
            elif (status := source.steps[step_id].status) != "completed":
                text = f"'$from' names step {step_id!r} of execution {source.execution_id!r}, which has no result"
                results |= dict.fromkeys(mine, f"{text} to take: it is {status}")
            else:
                results |= await self._read_results(source, mine)
            # Let other tasks run, because reading one step may already take long.
            await anyio.lowlevel.checkpoint()
        return results

    async def _find_sources(self, headers: list[Header], step_ids: set[str]) -> Mapping[str, ExecutionState]:
        """Return for each step the newest execution that completed it, else the newest one that has the step."""
        sources: dict[str, ExecutionState] = {}
        remaining = set(step_ids)
        for header in reversed(headers[-MAX_EXECUTIONS:]):
            if not remaining:
                break
            execution = await self._load(header.execution_id)
            for step_id in remaining & execution.steps.keys():
                if execution.steps[step_id].status == "completed":
                    sources[step_id] = execution
                    remaining.discard(step_id)
                else:
                    sources.setdefault(step_id, execution)
        return sources

    async def _read_results(
        self, source: ExecutionState, references: list[Reference]
    ) -> dict[Reference, EarlierResult | str]:
        """Return what the references take from one completed step."""
        state, texts = source.steps[references[0].step_id], ParsedTexts()
        addresses = {address for reference in references if (address := find_address(state, reference)) is not None}
        parts = await read_wanted(self._store, source.thread_id, frozenset(addresses), {})
        results: dict[Reference, EarlierResult | str] = {}
        for reference in references:
            try:
                value = find_result(state, reference, parts, texts)
            except InvalidArguments as error:
                results[reference] = f"{error.message} (execution {source.execution_id!r})"
            else:
                results[reference] = copy_fields(
                    EarlierResult, reference, execution_id=source.execution_id, value=value
                )
        return results


def _explain_absence(step_id: str, has_earlier: bool) -> str:
    if not has_earlier:
        return f"'$from' names step {step_id[:64]!r}, which is not in the plan, and the thread has no earlier execution"
    return (
        f"'$from' names step {step_id[:64]!r}, which neither the plan nor an earlier execution of its thread has; "
        "results of other threads and of pruned executions cannot be taken"
    )
