"""Builds the model that a setting names: `caller` (the default), `scripted:FILE`, or a provider's model.

`planwarden.agent.models.endpoint` says how providers' models are named. `build_model` checks the name, the key
and the installed extra right away, so that a server with a wrong setting does not start. The provider's client takes
seconds to import, so it is loaded only at the first prompt, on another thread.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec

import anyio

from planwarden.agent.common.errors import InvalidArguments, ModelError
from planwarden.agent.common.paths import expand_home
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.models.endpoint import Endpoint, read_endpoint
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.agent.ports.model import AskCaller, CallerModel, Model, StreamingModel
from planwarden.server.settings.configuration import CALLER


def build_model(name: str, environment: Mapping[str, str]) -> Model:
    """Return the model that `name` describes; the environment holds its key.

    Raises:
        InvalidArguments: there is no such model, its key or its extra is missing, or the script is not usable.
    """
    if name == CALLER:
        return CallerModel()
    kind, _, rest = name.partition(":")
    if kind == "scripted" and rest:
        return ScriptedModel.from_file(expand_home(rest))
    endpoint = read_endpoint(name, environment)
    if not (_is_installed("pydantic_ai") and _is_installed(endpoint.sdk)):
        raise InvalidArguments(_explain_missing(endpoint))
    return LazyModel(endpoint)


class LazyModel:
    """A provider's model that the first prompt loads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._loading = anyio.Lock()
        self._model: StreamingModel | None = None

    def __repr__(self) -> str:
        return f"LazyModel({self._endpoint.name!r})"

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        return await (await self._get_model()).reply(prompt, tools)

    async def reply_streaming(
        self, prompt: Prompt, tools: Sequence[ToolDefinition], on_text: Callable[[str], None]
    ) -> Reply | AskCaller:
        return await (await self._get_model()).reply_streaming(prompt, tools, on_text)

    async def _get_model(self) -> StreamingModel:
        async with self._loading:
            if self._model is None:
                self._model = await anyio.to_thread.run_sync(self._load, abandon_on_cancel=True)
        return self._model

    def _load(self) -> StreamingModel:
        try:
            module = import_module("planwarden.agent.models.provider")
            return module.ProviderModel(self._endpoint)
        except ImportError:
            raise ModelError(_explain_missing(self._endpoint)) from None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _explain_missing(endpoint: Endpoint) -> str:
    return f"the model {endpoint.name!r} needs an extra: pip install 'planwarden[{endpoint.extra}]'"
