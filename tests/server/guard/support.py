"""What tests of the guard share: a guard on a warden, calls of hosts, and a person who decides."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core import events as ev
from planwarden.agent.ports.store import Store
from planwarden.server.api.service import Service
from planwarden.server.auth.principals import LOCAL
from planwarden.server.guard.calls import GuardedCall, read_event
from planwarden.server.guard.guard import HostGuard
from planwarden.server.guard.opening import build_guard
from planwarden.server.guard.verdict import Verdict
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.storage.sqlite.memory import MemoryStore


@dataclass(frozen=True)
class Guarded:
    """A guard, and the service behind it."""

    guard: HostGuard
    service: Service
    folder: str

    def call(
        self, command: str = "rm -rf build", tool: str = "Bash", host: str = "claude-code", session: str = "s"
    ) -> GuardedCall:
        return self.event({"command": command}, tool, host, session)

    def event(
        self, arguments: dict[str, JsonValue], tool: str = "Bash", host: str = "claude-code", session: str = "s"
    ) -> GuardedCall:
        event = {"tool_name": tool, "tool_input": arguments, "cwd": self.folder, "session_id": session}
        return read_event(host, json.dumps(event).encode())

    async def decide(self, call: GuardedCall) -> Verdict:
        return await self.guard.decide(call, LOCAL)

    async def answer(
        self,
        verdict: Verdict,
        approved: bool = True,
        assurance: ev.Assurance = "human",
        by: str = "ann",
        **decision: JsonValue,
    ) -> planwarden.Execution:
        """A person, or what claims to be one, decides the question of the verdict."""
        assert verdict.suspension_id is not None
        row = await self.service.engine.store.find_suspension(verdict.suspension_id)
        assert row is not None
        return await self.service.answer(
            row.thread_id,
            verdict.suspension_id,
            Decision(approved=approved, **decision),  # pyright: ignore[reportArgumentType]  # fields by name
            Authority(assurance=assurance, channel="inbox", principal=by),
            wait_seconds=60,
            principal=None,
        )

    async def audited(self) -> list[str]:
        """The answers that the audit has of the guard, the oldest first."""
        rows = await self.service.engine.store.audit_rows()
        return [str(row.entry.facts["answer"]) for row in rows if row.entry.kind == "guarded"]


@asynccontextmanager
async def guarded(
    home: Path, *, store: Store | None = None, toml: str = "", on_disk: bool = False
) -> AsyncGenerator[Guarded]:
    """A guard with the settings of the home."""
    settings, folder = _make_home(home, toml)
    async with planwarden.Warden(settings=settings, store=None if on_disk else store or MemoryStore()) as made:
        yield Guarded(build_guard(settings, made.service), made.service, str(folder))


def _make_home(home: Path, toml: str) -> tuple[Settings, Path]:
    home.mkdir(exist_ok=True)
    if toml:
        (home / "planwarden.toml").write_text(toml, encoding="utf-8")
    folder = home.parent / "project"
    folder.mkdir(exist_ok=True)
    return load_settings(home=home, environment={"HOME": str(home.parent)}), folder
