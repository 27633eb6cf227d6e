"""Builds the provider's own client for an endpoint, through pydantic-ai's model classes.

Importing a client takes seconds, so each import is at its use. The key and the address are always passed in, so that no
client reads them from the environment of the process.

Source: https://pydantic.dev/docs/ai/models/openai/#openai-compatible-models.
"""

from typing import TYPE_CHECKING, assert_never

import httpx2

from planwarden.agent.models.provider.endpoint import Endpoint
from planwarden.agent.models.provider.transport import build_http_client

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic_ai.models import Model
    from pydantic_ai.providers import Provider

NO_KEY = "no-key"
"""The clients require a key; servers that need none ignore it."""


def build_client(endpoint: Endpoint) -> "Model":
    """Return the client. Raises `ImportError` if the extra is not installed."""
    http = build_http_client(endpoint.timeout_s)
    key = endpoint.key or NO_KEY
    match endpoint.wire:
        case "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            provider = AnthropicProvider(api_key=key, base_url=endpoint.url, http_client=http)
            return AnthropicModel(endpoint.model, provider=provider)
        case "google":
            from pydantic_ai.models.google import GoogleModel
            from pydantic_ai.providers.google import GoogleProvider

            return GoogleModel(
                endpoint.model, provider=GoogleProvider(api_key=key, base_url=endpoint.url, http_client=http)
            )
        case "openai-chat":
            from pydantic_ai.models.openai import OpenAIChatModel

            return OpenAIChatModel(endpoint.model, provider=_build_openai_provider(endpoint, key, http))
        case "openai-responses":
            from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings

            # Every prompt is complete in itself, so the provider need not store anything.
            settings = OpenAIResponsesModelSettings(openai_store=False)
            return OpenAIResponsesModel(
                endpoint.model, provider=_build_openai_provider(endpoint, key, http), settings=settings
            )
        case _:
            assert_never(endpoint.wire)


def _build_openai_provider(endpoint: Endpoint, key: str, http: httpx2.AsyncClient) -> "Provider[AsyncOpenAI]":
    """Return the provider whose features beyond the common ones the server has."""
    match endpoint.provider:
        case "ollama":
            from pydantic_ai.providers.ollama import OllamaProvider

            return OllamaProvider(base_url=endpoint.url, api_key=key, http_client=http)
        case "vllm":
            from pydantic_ai.providers.vllm import VLLMProvider

            return VLLMProvider(base_url=endpoint.url, api_key=key, http_client=http)
        case _ if endpoint.is_own:
            from pydantic_ai.providers.openai import OpenAIProvider

            return OpenAIProvider(base_url=endpoint.url, api_key=key, http_client=http)
        case _:
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            return OpenAICompatibleProvider("openai-compatible", base_url=endpoint.url, api_key=key, http_client=http)
