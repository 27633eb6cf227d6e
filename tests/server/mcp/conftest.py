"""A client that shows no forms. Modules about what the eras of the protocol do differently name both of them."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.kit import first_only
from tests.server.mcp.support import Desk, Era, open_desk


@pytest.fixture(params=first_only("auto", "legacy"))
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@pytest.fixture
async def desk(tmp_path: Path, era: Era) -> AsyncGenerator[Desk]:
    async with open_desk(tmp_path, era) as opened:
        yield opened
