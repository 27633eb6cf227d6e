"""What most tests need, from one import: a warden with tools that keep a ledger, plans, and a person who decides.

What serves MCP, draws pages or runs commands is imported when a test names it: most test processes need none of it.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from planwarden import Decision, Execution, Warden
from planwarden.agent.approval.answers import Authority
from planwarden.agent.core import events as ev
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.views.suspension import Suspension
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.memory import MemoryStore
from tests.requirements import requirement
from tests.support.wardens import (
    Ledger,
    PausingTool,
    calls,
    confirm,
    model_step,
    plan,
    says,
    statuses,
    tool_step,
    warden,
)

if TYPE_CHECKING:
    from mcp import Client

    from tests.server.cli.support import Cli, make_home
    from tests.server.inbox.support import Browser, inbox, open_inbox
    from tests.server.mcp.support import ok, open_desk, refused, served

__all__ = ["NO", "NOWHERE", "YES", "Authority", "Browser", "Cli", "Client", "Decision", "Execution", "Ledger"]
__all__ += ["ManualClock", "MemoryStore", "OperatorPolicy", "PausingTool", "Settings", "Suspension", "Warden", "by"]
__all__ += ["calls", "confirm", "decide", "governed", "inbox", "make_home", "model_step", "ok", "open_desk"]
__all__ += ["open_inbox", "plan", "refused", "requirement", "says", "served", "statuses", "tool_step", "warden"]

_BORDERS = {
    "mcp": ("Client",),
    "tests.server.cli.support": ("Cli", "make_home"),
    "tests.server.inbox.support": ("Browser", "inbox", "open_inbox"),
    "tests.server.mcp.support": ("ok", "open_desk", "refused", "served"),
}
"""The names that each heavy module gives."""

NOWHERE = Path("/nonexistent")
YES, NO = Decision(approved=True), Decision(approved=False, reason="too risky")


def __getattr__(name: str) -> object:
    """Return a name of a heavy module, which is imported now."""
    for module, names in _BORDERS.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(name)


def governed(home: Path = NOWHERE, /, **policy: object) -> Settings:
    """Return settings whose operator wrote this policy."""
    # The fields are the policy's own; a wrong one raises at once.
    return Settings(home=home, policy=OperatorPolicy(**policy))  # pyright: ignore[reportArgumentType]


def by(
    principal: str = "ann", assurance: ev.Assurance = "human", channel: str = "test", digest: str | None = None
) -> Authority:
    """Return what the word of somebody is worth, a person's unless a test says otherwise."""
    return Authority(assurance=assurance, channel=channel, principal=principal, digest=digest)


async def decide(
    warden: Warden,
    question: Execution | Suspension,
    decision: Decision = YES,
    authority: Authority | None = None,
    *,
    principal: str | None = None,
    wait_seconds: float = 60,
) -> Execution:
    """Answer a question, or the one open question of an execution, as a person does."""
    if isinstance(question, Execution):
        [question] = question.suspensions
    return await warden.service.answer(
        question.thread_id,
        question.suspension_id,
        decision,
        authority or by(),
        wait_seconds=wait_seconds,
        principal=principal,
    )
