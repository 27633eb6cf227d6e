"""From settings to a model: names, addresses, keys and modes; errors are reported at the start, without the key."""

import sys
from pathlib import Path

import pytest

import planwarden
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.models.endpoint import read_endpoint
from planwarden.server.settings.models import build_model
from tests.kit import Settings

KEY = "sk-secret-0123456789abcdefghijklmnopqrstuv"
OPENAI = {"OPENAI_API_KEY": KEY}
OPENAI_URL = "https://api.openai.com/v1"
LOCAL = "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("name", "environment", "wire", "url"),
    [
        ("anthropic:m", {"ANTHROPIC_API_KEY": KEY}, "anthropic", "https://api.anthropic.com"),
        ("openai:m", OPENAI, "openai-responses", OPENAI_URL),
        ("google:m", {"GEMINI_API_KEY": KEY}, "google", "https://generativelanguage.googleapis.com"),
        ("ollama:llama3.2:3b", {}, "openai-chat", "http://localhost:11434/v1"),
        ("openai:m", {"OPENAI_BASE_URL": LOCAL}, "openai-chat", LOCAL),
        ("openai:m", {"PLANWARDEN_MODEL_URL": LOCAL, "OPENAI_BASE_URL": "http://other"}, "openai-chat", LOCAL),
        ("openai-responses:m", {"PLANWARDEN_MODEL_URL": LOCAL}, "openai-responses", LOCAL),
        ("ollama:m", {"OLLAMA_BASE_URL": "http://box:11434"}, "openai-chat", "http://box:11434/v1"),
        ("anthropic:m", {"PLANWARDEN_MODEL_URL": "https://gateway/a/"}, "anthropic", "https://gateway/a"),
    ],
)
def test_a_name_and_the_environment_describe_an_endpoint(
    name: str, environment: dict[str, str], wire: str, url: str
) -> None:
    endpoint = read_endpoint(name, environment)
    # A model's own colons belong to its name.
    assert (endpoint.name, endpoint.model) == (name, name.split(":", 1)[1])
    assert (endpoint.wire, endpoint.url, endpoint.mode) == (wire, url, "tools")
    assert endpoint.key in (KEY, "") and KEY not in repr(endpoint) and KEY not in str(endpoint)
    later = read_endpoint(name, environment | {"PLANWARDEN_MODEL_MODE": "text", "PLANWARDEN_MODEL_TIMEOUT_S": "7.5"})
    assert (later.mode, later.timeout_s) == ("text", 7.5)


@pytest.mark.parametrize(
    ("name", "environment", "expected"),
    [
        ("gpt-5", {}, "unknown model 'gpt-5'; use 'caller', 'scripted:FILE', or one of 'anthropic:MODEL'"),
        ("anthropic:", {"ANTHROPIC_API_KEY": KEY}, "names no model"),
        ("anthropic:m", {}, "needs a key; set ANTHROPIC_API_KEY"),
        ("openai:m", {"OPENAI_API_KEY": f"{KEY}\n{KEY}"}, "OPENAI_API_KEY holds no key"),
        ("openai:m", {**OPENAI, "OPENAI_BASE_URL": "file:///etc/passwd"}, "OPENAI_BASE_URL is not an address"),
        ("openai:m", {**OPENAI, "PLANWARDEN_MODEL_URL": f"https://u:{KEY}@h/v1"}, "must hold neither a password"),
        ("openai:m", {**OPENAI, "PLANWARDEN_MODEL_URL": f"https://h/v1?key={KEY}"}, "must hold neither a password"),
        ("openai:m", {**OPENAI, "PLANWARDEN_MODEL_MODE": "prose"}, "PLANWARDEN_MODEL_MODE is 'prose'"),
        ("openai:m", {**OPENAI, "PLANWARDEN_MODEL_TIMEOUT_S": "nan"}, "PLANWARDEN_MODEL_TIMEOUT_S is 'nan'"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_at_the_start_in_one_sentence(
    name: str, environment: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        build_model(name, environment)
    assert expected in caught.value.message and "\n" not in caught.value.message
    assert KEY not in caught.value.message


@pytest.mark.parametrize("missing", ["pydantic_ai", "anthropic"])
def test_a_missing_extra_is_named_at_the_start(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidArguments, match=r"'anthropic:m' needs an extra: pip install 'planwarden\[anthropic\]'"):
        build_model("anthropic:m", {"ANTHROPIC_API_KEY": KEY})


def test_a_warden_takes_its_key_from_its_settings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    planwarden.Warden(settings=Settings(home=tmp_path, model="openai:m", environment=OPENAI))
    planwarden.Warden(settings=Settings(home=tmp_path, environment=OPENAI), model="openai:m")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(InvalidArguments, match="needs a key; set OPENAI_API_KEY"):
        planwarden.Warden(settings=Settings(home=tmp_path, model="openai:m"))
