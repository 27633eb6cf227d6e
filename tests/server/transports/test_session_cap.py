"""Sessions of the older protocol over real HTTP: each caller has so many, and its own oldest idle one makes room."""

from pathlib import Path

import httpx2
import pytest

from planwarden.server.settings.configuration import Settings
from planwarden.server.transports.session_cap import MAX_SESSIONS
from tests.requirements import requirement
from tests.server.mcp.http_support import HEADERS, LIST, bearing, serving, token_for

pytestmark = pytest.mark.anyio

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


async def _open(client: httpx2.AsyncClient, token: str) -> str:
    answer = await client.post("/mcp", json=INITIALIZE, headers={**HEADERS, **bearing(token)})
    assert answer.status_code == 200
    return answer.headers["mcp-session-id"]


async def _use(client: httpx2.AsyncClient, token: str, session: str) -> int:
    headers = {**HEADERS, **bearing(token), "mcp-session-id": session}
    return (await client.post("/mcp", json=LIST, headers=headers)).status_code


@requirement("http:session-cap")
async def test_a_caller_that_opens_too_many_sessions_closes_its_own_oldest_idle_one(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    eve, ann = await token_for(settings, "eve"), await token_for(settings, "ann")
    async with (
        serving(settings) as address,
        httpx2.AsyncClient(base_url=address.removesuffix("/mcp"), timeout=60) as client,
    ):
        hers = await _open(client, ann)
        sessions = [await _open(client, eve) for _ in range(MAX_SESSIONS)]
        # The first one was used last.
        assert await _use(client, eve, sessions[0]) == 200
        more = [await _open(client, eve) for _ in range(3)]
        assert [await _use(client, eve, session) for session in sessions[1:5]] == [404, 404, 404, 200]
        assert [await _use(client, eve, session) for session in (sessions[0], *more)] == [200] * 4
        assert await _use(client, ann, hers) == 200


@requirement("http:session-cap")
async def test_a_session_that_its_client_ended_counts_no_more(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    eve = await token_for(settings, "eve")
    async with (
        serving(settings) as address,
        httpx2.AsyncClient(base_url=address.removesuffix("/mcp"), timeout=60) as client,
    ):
        first = await _open(client, eve)
        for _ in range(MAX_SESSIONS):
            ended = await _open(client, eve)
            headers = {**HEADERS, **bearing(eve), "mcp-session-id": ended}
            assert (await client.delete("/mcp", headers=headers)).status_code == 200
        assert await _use(client, eve, first) == 200
