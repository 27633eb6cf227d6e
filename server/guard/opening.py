"""Builds the guard of a process: of a server, from what is open in it, and of a command, from as little as it needs."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from planwarden.agent.models.caller import CallerModel
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.service import Service
from planwarden.server.guard.guard import HostGuard
from planwarden.server.guard.judging import Judge
from planwarden.server.guard.protected_paths import OwnThings
from planwarden.server.notifications.messages import build_outbox
from planwarden.server.settings.catalogue import build_command_prefix
from planwarden.server.settings.configuration import Settings
from planwarden.storage.opening import open_store
from planwarden.tools.registry import Registry


def build_judge(settings: Settings) -> Judge:
    return Judge(settings.policy, OwnThings(settings.home, settings.environment))


def build_guard(settings: Settings, service: Service) -> HostGuard:
    """Return the guard of a server. A question that it asks opens the inbox, as every other does."""

    return HostGuard(service, build_judge(settings), service.open_inbox, build_command_prefix(settings.home, None))


@asynccontextmanager
async def open_guard(settings: Settings, inbox: str | None) -> AsyncGenerator[HostGuard]:
    """Open the store and an engine that knows no tool of plans, for one command. `inbox` is where one may be.

    Raises:
        StoreError: the store cannot be used.
    """
    async with open_store(settings.store) as store:
        outbox = build_outbox(settings.channels)
        engine = Engine(store, Registry(), CallerModel(), settings.policy, adopts=False, outbox=outbox)
        async with engine:
            yield HostGuard(engine, build_judge(settings), lambda: inbox, build_command_prefix(settings.home, None))
