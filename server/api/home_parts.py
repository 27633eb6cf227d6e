"""What one home holds: settings, tools, downstream servers, saved plans and model. Each is made when needed."""

from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from planwarden.agent.common.imports import LazyModule
from planwarden.server.settings.configuration import PLAN_FOLDER, Settings
from planwarden.server.views.suspension import Program, name_program

# Every command imports this, and most of them need little of it.
if TYPE_CHECKING:
    from planwarden.agent.ports.model import Model
    from planwarden.server.plans import library
    from planwarden.server.settings import catalogue, models, secrets
    from planwarden.tools.downstream.servers import DownstreamServers
    from planwarden.tools.registry import Registry
else:
    library = LazyModule("planwarden.server.plans.library")
    catalogue = LazyModule("planwarden.server.settings.catalogue")
    models = LazyModule("planwarden.server.settings.models")
    secrets = LazyModule("planwarden.server.settings.secrets")


class HomeParts:
    """The settings, tools, downstream servers, saved plans and model of one home.

    What is made raises `UsageError` when it is not usable.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        tools: Sequence[object] = (),
        model: "Model | None" = None,
        program: Program = name_program,
    ) -> None:
        """`tools` join those of the settings, `model` replaces theirs, and `program` begins a person's command."""
        self.settings = settings
        self.program = program
        self._given_tools = tools
        self._given_model = model

    @cached_property
    def tools(self) -> "Registry":
        """All tools that are known without starting a server, which includes those that servers listed before."""
        tools = self._registry
        if self.settings.servers.configs:
            _ = self.downstream
        return tools

    @cached_property
    def downstream(self) -> "DownstreamServers":
        return catalogue.build_downstream(self.settings, self._registry)

    @cached_property
    def _registry(self) -> "Registry":
        return catalogue.build_registry(self.settings, self._given_tools)

    @cached_property
    def library(self) -> "library.PlanLibrary":
        """The saved plans."""
        return library.build_library(self.settings.home / PLAN_FOLDER, self.settings.plan_folders)

    @cached_property
    def model(self) -> "Model":
        return self._given_model or models.build_model(self.settings.model, self.settings.environment)

    async def open_servers(
        self, store: object, enter: "Callable[[DownstreamServers], Awaitable[DownstreamServers]]"
    ) -> None:
        """Open the downstream servers, with the secrets of the store, unless they are open."""
        if not self.downstream.is_open:
            self.downstream.secrets = secrets.find_secrets(self.settings, store)
            await enter(self.downstream)
