"""What every test module shares: one event loop back end, no network by default."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
