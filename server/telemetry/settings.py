"""What the operator says about observation: `[otel]` and `[logging]` in `planwarden.toml`, and OpenTelemetry's variables.

The environment wins over the file, as everywhere. Only OTLP over HTTP is spoken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
LOG_FORMAT = "PLANWARDEN_LOG_FORMAT"
"""`text`, or `json` for one object per line on stderr; wins over `[logging] format`."""


class OtelSettings(BaseModel):
    """The `[otel]` table."""

    model_config = ConfigDict(extra="forbid", strict=True)
    endpoint: Annotated[str, Field(max_length=2_000)] | None = None
    """Collector for spans and metrics over OTLP/HTTP, such as `http://127.0.0.1:4318`; needs `planwarden[otel]`."""
    record_arguments: bool = False
    """Arguments of tool calls stand in spans."""

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and (urlsplit(endpoint).scheme not in ("http", "https") or "@" in endpoint):
            raise ValueError("write http://host:4318 or https://host; keys go into OTEL_EXPORTER_OTLP_HEADERS")
        return endpoint


class LoggingSettings(BaseModel):
    """The `[logging]` table."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["text", "json"] | None = None
    """Of the servers' lines on stderr; default plain text."""
    level: Literal["debug", "info", "warning", "error"] | None = None
    """From which level on; default `warning`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Where spans and metrics go and what lines on stderr look like."""

    traces_url: str | None = None
    metrics_url: str | None = None
    is_demanded: bool = False
    """The file asks for it, so that a missing extra is an error; variables may have been meant for other programs."""
    record_arguments: bool = False
    service_name: str | None = None
    """None when OpenTelemetry's own variables name the service."""
    log_format: Literal["text", "json"] | None = None
    log_level: str | None = None

    @property
    def is_on(self) -> bool:
        return self.traces_url is not None or self.metrics_url is not None


def observation(otel: OtelSettings, logs: LoggingSettings, environment: Mapping[str, str]) -> Observation:
    """The variables over the file, as in https://opentelemetry.io/docs/specs/otel/protocol/exporter/.

    Addresses in variables that are meant for gRPC, which is not spoken here, are not used.
    """
    if environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip().lower() == "grpc":
        environment = {name: value for name, value in environment.items() if not name.endswith("_ENDPOINT")}
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    base = environment.get(BASE) or otel.endpoint
    urls: dict[str, str | None] = {}
    for signal in ("traces", "metrics"):
        own = environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
        is_left_out = environment.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower() == "none"
        url = own or (f"{base.rstrip('/')}/v1/{signal}" if base else None)
        urls[signal] = None if is_disabled or is_left_out else url
    is_named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    told: Literal["text", "json"] | None = "json" if environment.get(LOG_FORMAT) == "json" else None
    return Observation(
        traces_url=urls["traces"],
        metrics_url=urls["metrics"],
        is_demanded=otel.endpoint is not None,
        record_arguments=otel.record_arguments,
        service_name=None if is_named else "planwarden",
        log_format=told or ("text" if environment.get(LOG_FORMAT) == "text" else logs.format),
        log_level=logs.level,
    )
