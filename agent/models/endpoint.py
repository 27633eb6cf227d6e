"""Reads the settings of the model: its provider, its name, its address and its key. Imports no provider's client.

`PLANWARDEN_MODEL` (or `--model`) is `PROVIDER:MODEL`:

* `anthropic:MODEL`: the Messages API;
* `openai:MODEL`: the Responses API at OpenAI's own address, Chat Completions at any other, because that is what
  compatible servers speak; `openai-responses:MODEL` and `openai-chat:MODEL` select one API explicitly;
* `google:MODEL`: the Gemini API;
* `ollama:MODEL` and `vllm:MODEL`: Chat Completions at the default addresses of these servers.

Keys come from the variables that the providers' own clients read (`ANTHROPIC_API_KEY`, `OPENAI_API_KEY`,
`GOOGLE_API_KEY` or `GEMINI_API_KEY`, `OLLAMA_API_KEY`, `VLLM_API_KEY`). Further settings, all optional:

* `PLANWARDEN_MODEL_URL`: an address to use instead of the provider's own. It overrides the provider's variable
  (`ANTHROPIC_BASE_URL`, `OPENAI_BASE_URL`, `GOOGLE_GEMINI_BASE_URL`, `OLLAMA_BASE_URL`, `VLLM_BASE_URL`). A key is then
  optional, but is sent if it is set.
* `PLANWARDEN_MODEL_MODE`: `tools` (the default) uses the provider's tool calling; `text` is for models without it and
  asks for JSON between two markers instead.
* `PLANWARDEN_MODEL_TIMEOUT_S`: seconds that one request may take; default 120.

No `repr` and no message contains the key. Nothing here checks that the model exists: only the provider knows, and if
the name is wrong, the first prompt fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec

from planwarden.agent.common.errors import InvalidArguments

Wire = Literal["anthropic", "openai-responses", "openai-chat", "google"]
"""The wire format that an endpoint speaks."""

Mode = Literal["tools", "text"]

URL_VARIABLE = "PLANWARDEN_MODEL_URL"
"""An address to use instead of the provider's own, for any server that speaks the provider's format."""
MODE_VARIABLE = "PLANWARDEN_MODEL_MODE"
"""`tools` (default), or `text`, which asks a model without tool calling for JSON between two markers."""
TIMEOUT_VARIABLE = "PLANWARDEN_MODEL_TIMEOUT_S"
"""Seconds that one request to a provider may take; default 120."""
TIMEOUT_S = 120.0
MAX_TIMEOUT_S = 3600.0


class _Provider(msgspec.Struct, frozen=True):
    wire: Wire
    extra: str
    """The optional dependency (extra) that installs the provider's client."""
    url: str
    url_variable: str
    keys: tuple[str, ...]
    """Variables that may hold the key; the first that is set counts. `Endpoint.key_variable` is always `keys[0]`."""
    is_local: bool = False
    """Whether the operator runs this server, so that it needs no key."""

    @property
    def sdk(self) -> str:
        """The Python module of the provider's client."""
        return "google.genai" if self.extra == "google" else self.extra


_OPENAI = ("openai", "https://api.openai.com/v1", "OPENAI_BASE_URL", ("OPENAI_API_KEY",))
_GOOGLE_URL, _GOOGLE_KEYS = "https://generativelanguage.googleapis.com", ("GOOGLE_API_KEY", "GEMINI_API_KEY")
PROVIDERS: dict[str, _Provider] = {
    "anthropic": _Provider(
        "anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_BASE_URL", ("ANTHROPIC_API_KEY",)
    ),
    "openai": _Provider("openai-responses", *_OPENAI),
    "openai-responses": _Provider("openai-responses", *_OPENAI),
    "openai-chat": _Provider("openai-chat", *_OPENAI),
    "google": _Provider("google", "google", _GOOGLE_URL, "GOOGLE_GEMINI_BASE_URL", _GOOGLE_KEYS),
    "ollama": _Provider(
        "openai-chat", "openai", "http://localhost:11434/v1", "OLLAMA_BASE_URL", ("OLLAMA_API_KEY",), is_local=True
    ),
    "vllm": _Provider(
        "openai-chat", "openai", "http://localhost:8000/v1", "VLLM_BASE_URL", ("VLLM_API_KEY",), is_local=True
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One model at one address."""

    provider: str
    """The name of the provider, as in the setting."""
    wire: Wire
    model: str
    url: str
    key: str = field(repr=False)
    """Empty if no key is set."""
    key_variable: str
    extra: str
    sdk: str
    is_default_url: bool
    """Whether the address is the provider's own."""
    mode: Mode = "tools"
    timeout_s: float = TIMEOUT_S

    @property
    def name(self) -> str:
        """`PROVIDER:MODEL`, as in the setting."""
        return f"{self.provider}:{self.model}"


def read_endpoint(name: str, environment: Mapping[str, str]) -> Endpoint:
    """Return the endpoint that `name` and the environment describe.

    Raises `InvalidArguments` for an unknown provider, a missing model, a missing required key, or an unusable setting.
    """
    prefix, _, model = name.partition(":")
    provider = PROVIDERS.get(prefix)
    if provider is None:
        examples = ", ".join(f"'{provider_name}:MODEL'" for provider_name in PROVIDERS)
        raise InvalidArguments(
            f"unknown model {name[:80]!r}; use 'caller', 'scripted:FILE', or one of {examples} (PLANWARDEN_MODEL or "
            "--model)"
        )
    if not model or len(model) > 200 or not model.isprintable() or " " in model:
        raise InvalidArguments(f"{name[:80]!r} names no model; write {prefix}:MODEL (PLANWARDEN_MODEL or --model)")
    url, is_default_url = _read_url(provider, environment)
    key = _read_key(provider, environment)
    if not key and is_default_url and not provider.is_local:
        raise InvalidArguments(f"the model {name!r} needs a key; set {' or '.join(provider.keys)}")
    return Endpoint(
        provider=prefix,
        wire="openai-chat" if prefix == "openai" and not is_default_url else provider.wire,
        model=model,
        url=url,
        key=key,
        key_variable=provider.keys[0],
        extra=provider.extra,
        sdk=provider.sdk,
        is_default_url=is_default_url,
        mode=_read_mode(environment),
        timeout_s=_read_timeout_s(environment),
    )


def _read_url(provider: _Provider, environment: Mapping[str, str]) -> tuple[str, bool]:
    """Return the address without a trailing slash, and whether it is the provider's own."""
    variable = next((name for name in (URL_VARIABLE, provider.url_variable) if environment.get(name, "").strip()), None)
    if variable is None:
        return provider.url, True
    # Messages do not repeat the value: an address may hold a password or a token.
    try:
        parts = urlsplit(environment[variable].strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidArguments(f"{variable} is not an address; write http(s)://HOST[:PORT]/PATH") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidArguments(f"{variable} is not an address; write http(s)://HOST[:PORT]/PATH")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidArguments(f"{variable} must hold neither a password nor a query; a key goes into its own variable")
    path = parts.path.rstrip("/") or ("/v1" if provider.is_local else "")
    url = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    return url, url == provider.url


def _read_key(provider: _Provider, environment: Mapping[str, str]) -> str:
    for variable in provider.keys:
        key = environment.get(variable, "").strip()
        if key and not (key.isascii() and key.isprintable() and " " not in key):
            raise InvalidArguments(f"{variable} holds no key: it has characters that a header cannot hold")
        if key:
            return key
    return ""


def _read_mode(environment: Mapping[str, str]) -> Mode:
    word = environment.get(MODE_VARIABLE, "").strip() or "tools"
    if word not in ("tools", "text"):
        raise InvalidArguments(f"{MODE_VARIABLE} is {word[:40]!r}; use 'tools' or 'text'")
    return word


def _read_timeout_s(environment: Mapping[str, str]) -> float:
    text = environment.get(TIMEOUT_VARIABLE, "").strip()
    try:
        seconds = float(text) if text else TIMEOUT_S
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise InvalidArguments(
            f"{TIMEOUT_VARIABLE} is {text[:40]!r}; use seconds, more than 0, at most {MAX_TIMEOUT_S:g}"
        )
    return seconds
