"""A `ProviderModel` that uses a double, with a sleep that returns at once."""

from collections.abc import Callable
from dataclasses import replace

from planwarden.agent.models.provider.endpoint import Mode, read_endpoint
from planwarden.agent.models.provider.model import ProviderModel
from planwarden.agent.models.provider.retry import Retries, RetryLimits
from tests.support.doubles.server import ProviderDouble

RETRY_LIMITS = RetryLimits(attempts=3)


def build_provider_model(
    double: ProviderDouble,
    *,
    model: str | None = None,
    mode: Mode = "tools",
    timeout_s: float = 30.0,
    patience: RetryLimits = RETRY_LIMITS,
    waits_s: list[float] | None = None,
    clock: Callable[[], float] | None = None,
) -> ProviderModel:
    """Returns the model. It appends waits to `waits_s` instead of waiting. The double may not know `model`."""

    async def wait(seconds: float) -> None:
        if waits_s is not None:
            waits_s.append(seconds)

    endpoint = read_endpoint(double.wire.setting, double.environment | {"PLANWARDEN_MODEL_MODE": mode})
    retries = Retries(patience, sleep=wait, clock=clock, random_fraction=lambda: 1.0)
    changed = replace(endpoint, timeout_s=timeout_s, model=model or endpoint.model)
    return ProviderModel(changed, retries=retries)
