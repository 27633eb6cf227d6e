"""Who looks on at an engine, chosen without importing anything that is not needed."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from planwarden.server.telemetry.telemetry import Telemetry

_OF_EXTRAS = frozenset({"opentelemetry", "grpc", "google"})
"""Top-level packages that the extras bring."""

logger = logging.getLogger(__name__)


def observer_of(
    observation: TelemetrySettings,
    model: str,
    *,
    tracer_provider: "TracerProvider | None" = None,
    meter_provider: "MeterProvider | None" = None,
    whole_process: bool = False,
) -> "Telemetry | None":
    """The observer, to be closed by the caller; None when nobody asked for one. Given providers win over the settings.

    Raises:
        InvalidArguments: the settings ask for what is not installed or not spoken.
    """
    is_given = tracer_provider is not None or meter_provider is not None
    if not is_given:
        for problem in observation.problems:
            if observation.is_demanded:
                raise InvalidArguments(f"[otel] endpoint: {problem}")
            logger.warning("%s; nothing is sent", problem)
        if not observation.is_on:
            return None
    try:
        from planwarden.server.telemetry.telemetry import Telemetry, exported

        if is_given:
            records = observation.record_arguments
            return Telemetry(tracer_provider, meter_provider, model=model, record_arguments=records)
        return exported(observation, model, whole_process=whole_process)
    except ImportError as error:
        if is_given or not _is_of_others(error):
            raise
        why = _why(error, observation)
        if observation.is_demanded:
            raise InvalidArguments(f"[otel] endpoint {why}") from error
        # Variables like OTEL_EXPORTER_OTLP_ENDPOINT are often inherited from a host that means itself.
        logger.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but sending anything there %s", why)
        return None


def _is_of_others(error: ImportError) -> bool:
    """False for a module of our own that cannot be imported, which no extra would mend."""
    return (error.name or "").partition(".")[0] != "planwarden"


def _why(error: ImportError, observation: TelemetrySettings) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_EXTRAS:
        return f"needs an extra: pip install 'planwarden[{_extra(observation)}]'"
    extra = _extra(observation)
    return f"fails because OpenTelemetry cannot be imported ({error}): pip install --upgrade 'planwarden[{extra}]'"


def _extra(observation: TelemetrySettings) -> str:
    targets = (observation.traces, observation.metrics)
    return "otel-grpc" if any(found is not None and found.protocol == "grpc" for found in targets) else "otel"


@asynccontextmanager
async def closing(observer: "Telemetry | None") -> "AsyncGenerator[Telemetry | None]":
    """The observer, closed at the end."""
    try:
        yield observer
    finally:
        if observer is not None:
            await observer.aclose()
