"""Whom an execution waits for that should run and that no process of a shared store has."""

from collections.abc import Collection

from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.execution.verify import find_needed_tools
from planwarden.agent.ports.store import Lookups
from planwarden.storage.ports.processes import ProcessFacts, merge_tools, registry_of


async def describe_waiting(store: Lookups, execution: ExecutionState) -> str | None:
    """Return a sentence; None for an execution that does not wait for a process, and on a store of one machine."""
    registry = registry_of(store)
    if registry is None or execution.status != "running":
        return None
    header = await store.header(execution.execution_id)
    if header is None or header.status != "running" or header.owner is not None:
        return None
    return describe_missing(execution, await registry.living())


def describe_missing(execution: ExecutionState, living: tuple[ProcessFacts, ...]) -> str:
    """Return what the living processes lack to continue an execution that none of them has.

    What counts is the policy of the process that started last, and each tool as the last one with it has it.
    """
    runners = [process for process in living if process.role != "front"]
    if not runners:
        return "It waits for a process that runs executions: `planwarden worker`, or `serve` without `--role front`."
    newest, current = living[0], merge_tools(living)
    needed = {(name, current.get(name, "")) for name in find_needed_tools(execution)}
    drained = [process for process in runners if process.policy != newest.policy]
    lacking = [needed - process.tools.items() for process in runners if process.policy == newest.policy]
    if not all(lacking):
        return "It waits for a process that can take it."
    if any(needed <= process.tools.items() for process in drained):
        tools = f", and has {_join(needed)}" if lacking else ""
        return f"It waits for a process that runs under the policy of {_name(newest)}, which started last{tools}."
    missing = needed.intersection(*lacking)
    everywhere = {name for process in runners for name in process.tools}
    if nowhere := {found for found in missing if found[0] not in everywhere}:
        return f"It waits for a process that has {_join(nowhere)}; no living one that runs executions does."
    for process in living:
        if has := missing & process.tools.items():
            return (
                f"It waits for a process that has {_join(has)} as {_name(process)}, which started last with it, has it."
            )
    return f"It waits for one process that has all of {_join(needed)}; each living one lacks some, or has an older one."


def _join(tools: Collection[tuple[str, str]]) -> str:
    return ", ".join(sorted(name for name, _ in tools))


def _name(process: ProcessFacts) -> str:
    return f"{process.host}:{process.pid}"
