"""The home and the store that a command line names."""

import shlex
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import anyio

from planwarden.server.api.home import Home
from planwarden.server.cli.arguments import read_settings
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.suspension import name_program
from planwarden.storage.opening import CompleteStore, open_store

Resource = TypeVar("Resource")
Result = TypeVar("Result")


def open_home(arguments: Namespace) -> Home:
    """Return the home that a command line names. Raises `UsageError` when the settings are not usable."""
    settings = read_settings(arguments)
    words = [] if arguments.home is None else ["--home", str(settings.home)]
    return Home(settings, program=lambda: shlex.join([name_program(), *words, *settings.other_options]))


def use_store(settings: Settings, work: Callable[[CompleteStore], Awaitable[Result]]) -> Result:
    """Open the store, creating it if it is missing, call `work` with it, and return the result. No engine runs."""
    return run_with(open_store(settings.store, settings.policy.policy_digest), work)


def run_with(context: AbstractAsyncContextManager[Resource], work: Callable[[Resource], Awaitable[Result]]) -> Result:
    """Enter the context, call `work` with the resource that it yields, and return the result."""

    async def run() -> Result:
        async with context as resource:
            return await work(resource)

    return anyio.run(run)
