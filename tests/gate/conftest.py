"""What tests of the gate share."""

from collections.abc import AsyncGenerator

import anyio
import pytest
from anyio.abc import TaskGroup


@pytest.fixture
async def tasks() -> AsyncGenerator[TaskGroup]:
    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            yield group
            group.cancel_scope.cancel()
