"""Fixtures of the login tests: an authorization server with an MCP server, and a home that names them."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.doubles.login_server import LoginServer, login_server
from tests.tools.downstream.support import Place


@pytest.fixture
async def server() -> AsyncGenerator[LoginServer]:
    async with login_server() as double:
        yield double


@pytest.fixture
def place(tmp_path: Path, server: LoginServer) -> Place:
    made = Place(tmp_path, settings='[tools."d_note"]\nrisk = "read"\n')
    made.configure({"d": {"url": server.url}})
    return made
