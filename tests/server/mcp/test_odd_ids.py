"""NUL in what a caller sends, over every store: refused in ids as any unknown id is, kept in values."""

from pathlib import Path

import anyio
import pytest
from mcp import Client

from planwarden.agent.ports.store import Store
from tests.server.mcp.support import approving, ids_of, ok, refused, served
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = pytest.mark.anyio
ODD = "a\0b"


async def test_nul_is_refused_in_ids_and_kept_in_values(store: Store, tmp_path: Path) -> None:
    ledger = Ledger()
    note = tool_step("act", "note", {"text": ODD})
    with anyio.fail_after(60):
        async with (
            served(tmp_path, tools=ledger.tools(), store=store) as running,
            Client(running.server, elicitation_callback=approving()) as client,
        ):
            asked = await ok(client, "execute_plan", plan=plan(confirm("ask", ODD), note))
            decision = {"approved": True}
            for code, name, arguments in (
                ("unknown_thread", "get_execution", {"threadId": ODD}),
                ("unknown_thread", "execute_plan", {"threadId": ODD, "plan": plan(note)}),
                ("unknown_thread", "cancel_execution", {"threadId": ODD}),
                ("unknown_thread", "list_suspensions", {"threadId": ODD}),
                ("invalid_arguments", "list_suspensions", {"cursor": ODD}),
                ("invalid_arguments", "execute_plan", {"key": ODD, "plan": plan(note)}),
                (
                    "unknown_suspension",
                    "resume_execution",
                    {**ids_of(asked), "suspensionId": ODD, "decision": decision},
                ),
            ):
                assert (await refused(client, name, **arguments))["code"] == code, (name, arguments)
            done = await ok(client, "resume_execution", **ids_of(asked), decision={**decision, "reason": ODD})
            assert (done["status"], ledger.lines) == ("completed", [f"note {ODD}"])
