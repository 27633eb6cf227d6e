"""A goal that names, as where it comes from, an execution of somebody else."""

from pathlib import Path

import pytest
from mcp.types import RequestParamsMeta

from planwarden.agent.common.errors import LimitExceeded
from planwarden.agent.core.requester import Requester
from planwarden.server.settings.configuration import Settings
from planwarden.storage.memory.store import MemoryStore
from planwarden.tools.delegate.chain import CHAIN
from tests.requirements import requirement
from tests.server.auth.test_owners import NOWHERE
from tests.server.mcp.http_support import client_of, serving, token_for
from tests.server.mcp.support import Document, ok
from tests.support.fakes import StoreCall, WatchedStore
from tests.support.wardens import Ledger, confirm, plan, warden

pytestmark = [pytest.mark.anyio, requirement("access:owners")]

SCHEDULED = ("due", "changes", "expire_dead", "claim_many", "orphans")
"""What the scheduler asks the store, whoever calls meanwhile."""
ASKED = plan(confirm("a"))


async def test_a_chain_with_a_foreign_execution_is_answered_like_one_with_an_unknown_one(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ann, bob = await token_for(settings, "ann"), await token_for(settings, "bob")
    async with serving(settings) as url, client_of(url, ann, "auto") as hers, client_of(url, bob, "auto") as his:
        foreign = (await ok(hers, "execute_plan", plan=ASKED))["executionId"]
        own = (await ok(his, "execute_plan", plan=ASKED))["executionId"]
        for name, given in (("execute_plan", {"plan": ASKED}), ("run_goal", {"goal": "x"})):
            answers: list[tuple[bool | None, str]] = []
            for execution_id in (foreign, NOWHERE, own):
                meta = RequestParamsMeta(**{CHAIN: [execution_id]})  # pyright: ignore[reportArgumentType]
                result = await his.call_tool(name, given, meta=meta)
                document: Document = result.structured_content or {}
                answers.append((result.is_error, str(document.get("status") or document)))
            assert answers[0] == answers[1] and not answers[0][0]
            assert answers[2][0] and "comes back" in answers[2][1]


async def test_a_foreign_execution_in_a_chain_costs_the_same_queries_as_an_unknown_one() -> None:
    async def nothing(moment: StoreCall) -> None:
        """Watches only."""

    watched = WatchedStore(MemoryStore(), nothing)
    async with warden(Ledger(), store=watched) as w:
        foreign = (await w.execute_plan(ASKED, principal="ann")).execution_id
        costs: list[list[str]] = []
        for execution_id in (foreign, NOWHERE):
            before = len(watched.calls)
            await w.service.execute_plan(ASKED, requester=Requester("bob", chain=(execution_id,)))
            costs.append([name for name in watched.calls[before:] if name not in SCHEDULED])
        assert costs[0] == costs[1]
        with pytest.raises(LimitExceeded):
            await w.service.execute_plan(ASKED, requester=Requester("ann", chain=(foreign,)))
