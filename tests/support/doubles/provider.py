"""The provider's model over a double, with a sleep that does not sleep."""

from collections.abc import Callable
from dataclasses import replace

from planwarden.agent.models.provider.endpoint import Mode, read_endpoint
from planwarden.agent.models.provider.model import ProviderModel
from planwarden.agent.models.provider.retry import Retries, RetryLimits
from tests.support.doubles.server import Double

PATIENCE = RetryLimits(attempts=3)


def provider_of(
    double: Double,
    *,
    model: str | None = None,
    mode: Mode = "tools",
    timeout_s: float = 30.0,
    patience: RetryLimits = PATIENCE,
    waits_s: list[float] | None = None,
    clock: Callable[[], float] | None = None,
) -> ProviderModel:
    """Waits between attempts are appended to `waits_s` instead of waited. `model` is one that the double may not know."""

    async def wait(seconds: float) -> None:
        if waits_s is not None:
            waits_s.append(seconds)

    endpoint = read_endpoint(double.wire.setting, double.environment | {"PLANWARDEN_MODEL_MODE": mode})
    retries = Retries(patience, sleep=wait, clock=clock, dice=lambda: 1.0)
    changed = replace(endpoint, timeout_s=timeout_s, model=model or endpoint.model)
    return ProviderModel(changed, retries=retries)
