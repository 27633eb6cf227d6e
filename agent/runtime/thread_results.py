"""Looking up what a plan takes from earlier executions of its thread.

The newest completed step with the id counts. What is found goes into the event that accepts the plan, so nothing that
happens to the earlier execution afterwards changes it.
"""

from collections.abc import Awaitable, Callable, Mapping

import anyio.lowlevel

from planwarden.agent.common.errors import InvalidArguments, StoreError, UnknownThread
from planwarden.agent.core.binding.bindings import Earlier, EarlierResult, Reference
from planwarden.agent.core.binding.pointers import ParsedTexts
from planwarden.agent.core.execution.references import find_address, find_result
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.store import Header, Store
from planwarden.agent.runtime.artifact_reader import read_wanted

MAX_EXECUTIONS = 50
"""Executions of a thread that are searched, newest first."""

Load = Callable[[str], Awaitable[ExecutionState]]
"""From an execution's id to its state. Raises `StoreError` when its log is damaged."""


async def find_thread_results(
    store: Store, load: Load, asking: ExecutionState, references: frozenset[Reference]
) -> Earlier:
    """Return for each reference what the thread and owner of the execution have for it, or why it cannot be had.

    The execution itself need not exist yet.
    """
    try:
        headers = await store.thread(asking.thread_id)
        others = [h for h in headers if h.principal == asking.principal and h.execution_id != asking.execution_id]
        sources = await _find_sources(load, others, {reference.step_id for reference in references})
    except (StoreError, UnknownThread) as error:
        return dict.fromkeys(references, f"earlier executions of the thread cannot be read: {error.message}")
    results: dict[Reference, EarlierResult | str] = {}
    for step_id in sorted({reference.step_id for reference in references}):
        mine = [reference for reference in references if reference.step_id == step_id]
        source = sources.get(step_id)
        if source is None:
            results |= dict.fromkeys(mine, _explain_absence(step_id, bool(others)))
        elif source.steps[step_id].status != "completed":
            text = f"'$from' names step {step_id!r} of execution {source.execution_id!r}, which has no result to take"
            results |= dict.fromkeys(mine, f"{text}: it is {source.steps[step_id].status}")
        else:
            results |= await _read_results(store, source, mine)
        # Each step may cost as much as one turn of the loop should.
        await anyio.lowlevel.checkpoint()
    return results


async def _find_sources(load: Load, headers: list[Header], step_ids: set[str]) -> Mapping[str, ExecutionState]:
    """Return the newest execution in which each step is completed, else the newest one that has it at all."""
    sources: dict[str, ExecutionState] = {}
    remaining = set(step_ids)
    for header in reversed(headers[-MAX_EXECUTIONS:]):
        if not remaining:
            break
        execution = await load(header.execution_id)
        for step_id in remaining & execution.steps.keys():
            if execution.steps[step_id].status == "completed":
                sources[step_id] = execution
                remaining.discard(step_id)
            else:
                sources.setdefault(step_id, execution)
    return sources


def _explain_absence(step_id: str, has_earlier: bool) -> str:
    if not has_earlier:
        return f"'$from' names step {step_id[:64]!r}, which is not in the plan, and the thread has no earlier execution"
    return (
        f"'$from' names step {step_id[:64]!r}, which neither the plan nor an earlier execution of its thread has; "
        "results of other threads and of pruned executions cannot be taken"
    )


async def _read_results(
    store: Store, source: ExecutionState, references: list[Reference]
) -> dict[Reference, EarlierResult | str]:
    """Return what the references take from one completed step."""
    state, texts = source.steps[references[0].step_id], ParsedTexts()
    addresses = {address for reference in references if (address := find_address(state, reference)) is not None}
    parts = await read_wanted(store, source.thread_id, frozenset(addresses), {})
    results: dict[Reference, EarlierResult | str] = {}
    for reference in references:
        try:
            value = find_result(state, reference, parts, texts)
        except InvalidArguments as error:
            results[reference] = f"{error.message} (execution {source.execution_id!r})"
        else:
            results[reference] = EarlierResult(
                step_id=reference.step_id,
                execution_id=source.execution_id,
                value=value,
                pointer=reference.pointer,
                parse=reference.parse,
            )
    return results
