"""Which executions went on from another one: retries, and branches from a step on."""

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.runtime.engine import Engine

MAX_LOOKED_AT = 50
"""Later executions of the thread."""


async def find_branches(engine: Engine, execution: ExecutionState) -> tuple[str, ...]:
    """Returns the ids of the executions that go on from this one, oldest first, among the next ones of its thread."""
    headers = await engine.store.thread(execution.thread_id)
    ids = [header.execution_id for header in headers]
    following = ids[ids.index(execution.execution_id) + 1 :] if execution.execution_id in ids else []
    found: list[str] = []
    for execution_id in following[:MAX_LOOKED_AT]:
        # A damaged execution must not hide the page of another one.
        try:
            later = await engine.find(execution_id)
        except StoreError:
            continue
        if later.retry_of == execution.execution_id:
            found.append(execution_id)
    return tuple(found)
