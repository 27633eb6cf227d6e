"""Builds the engine's observer from the settings; imports OpenTelemetry only if telemetry is configured."""

import logging
from typing import TYPE_CHECKING

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from planwarden.server.telemetry.telemetry import Telemetry

_EXTRA_PACKAGES = frozenset({"opentelemetry", "grpc", "google"})
"""Top-level packages that the extras install."""

logger = logging.getLogger(__name__)


def build_observer(
    observation: TelemetrySettings,
    model: str,
    *,
    tracer_provider: "TracerProvider | None" = None,
    meter_provider: "MeterProvider | None" = None,
    whole_process: bool = False,
) -> "Telemetry | None":
    """Return an observer, which the caller closes; None without telemetry. Given providers win over settings.

    Raises:
        InvalidArguments: the settings need a package that is not installed, or a protocol that is not supported.
    """
    is_given = tracer_provider is not None or meter_provider is not None
    if not is_given:
        for problem in observation.problems:
            if observation.is_demanded:
                raise InvalidArguments(f"[otel] endpoint: {problem}")
            logger.warning("%s; no telemetry is sent", problem)
        if not observation.is_on:
            return None
    try:
        from planwarden.server.telemetry.telemetry import Telemetry, build_exporting_telemetry

        if is_given:
            records = observation.record_arguments
            return Telemetry(tracer_provider, meter_provider, model=model, record_arguments=records)
        return build_exporting_telemetry(observation, model, whole_process=whole_process)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        # No extra provides a module of planwarden.
        if is_given or package == "planwarden":
            raise
        targets = (observation.traces, observation.metrics)
        is_grpc = any(target is not None and target.protocol == "grpc" for target in targets)
        extra = f"'planwarden[{'otel-grpc' if is_grpc else 'otel'}]'"
        why = f"fails because OpenTelemetry cannot be imported ({error}): pip install --upgrade {extra}"
        if isinstance(error, ModuleNotFoundError) and package in _EXTRA_PACKAGES:
            why = f"needs an extra: pip install {extra}"
        if observation.is_demanded:
            raise InvalidArguments(f"[otel] endpoint {why}") from error
        # A host often sets variables like OTEL_EXPORTER_OTLP_ENDPOINT for itself, and this process inherits them.
        logger.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but sending anything there %s", why)
        return None
