"""Settings of telemetry: `[otel]` and `[logging]` in `planwarden.toml`, and OpenTelemetry's environment variables.

The environment wins over the file, as for every setting. OTLP is sent over HTTP or, with an extra, over gRPC.
"""

from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from planwarden.agent.common.errors import InvalidArguments

PREFIX = "OTEL_EXPORTER_OTLP"
LOG_FORMAT = "PLANWARDEN_LOG_FORMAT"
"""`text`, or `json` for one object per line on stderr; wins over `[logging] format`."""

Protocol = Literal["http/protobuf", "grpc"]
Signal = Literal["traces", "metrics"]


class OtelTable(BaseModel):
    """`[otel]`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    endpoint: Annotated[str, Field(max_length=2_000)] | None = None
    """Collector for spans and metrics over OTLP, such as `http://127.0.0.1:4318`; needs `planwarden[otel]`."""
    protocol: Protocol | None = None
    """Protocol of the collector: `http/protobuf`, or `grpc`, which needs `planwarden[otel-grpc]`."""
    record_arguments: bool = False
    """Spans record the arguments of tool calls."""

    @model_validator(mode="after")
    def _check_endpoint(self) -> "OtelTable":
        if self.endpoint is not None and not _is_collector(self.endpoint):
            raise ValueError(
                "endpoint must be http://host:4318 or https://host; keys go into OTEL_EXPORTER_OTLP_HEADERS"
            )
        return self


def _is_collector(endpoint: str) -> bool:
    try:
        return urlsplit(endpoint).scheme in ("http", "https") and "@" not in endpoint
    except ValueError:
        return False


class LoggingTable(BaseModel):
    """`[logging]`."""

    model_config = OtelTable.model_config
    format: Literal["text", "json"] | None = None
    """Format of the servers' lines on stderr; default plain text."""
    level: Literal["debug", "info", "warning", "error"] | None = None
    """Lowest level that is logged; default `warning`."""


class ExportTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where one signal is sent."""

    url: str
    protocol: Protocol = "http/protobuf"


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans and metrics are sent, and the format of lines on stderr."""

    traces: ExportTarget | None = None
    metrics: ExportTarget | None = None
    problems: tuple[str, ...] = ()
    """Messages to the operator about settings that planwarden does not support."""
    is_demanded: bool = False
    """True if the file names an endpoint: then a missing package is an error. Variables may be for other programs."""
    record_arguments: bool = False
    service_name: str | None = None
    """None when OpenTelemetry's own variables name the service."""
    log_format: Literal["text", "json"] | None = None
    log_level: str | None = None

    @property
    def is_on(self) -> bool:
        return self.traces is not None or self.metrics is not None


def build_telemetry_settings(environment: Mapping[str, str], otel: OtelTable, lines: LoggingTable) -> TelemetrySettings:
    """Return the settings; variables win. See https://opentelemetry.io/docs/specs/otel/protocol/exporter/.

    Raises `InvalidArguments`: `PLANWARDEN_LOG_FORMAT` has a wrong value.
    """
    is_disabled = _read_variable(environment, "OTEL_SDK_DISABLED") == "true"
    problems: list[str] = []
    traces = None if is_disabled else _find_target("traces", otel, environment, problems)
    metrics = None if is_disabled else _find_target("metrics", otel, environment, problems)
    is_named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    word = environment.get(LOG_FORMAT) or lines.format
    if word not in (None, "text", "json"):
        raise InvalidArguments(f"{LOG_FORMAT} is {word[:40]!r}; use 'text' or 'json'")
    return TelemetrySettings(
        traces=traces,
        metrics=metrics,
        problems=tuple(dict.fromkeys(problems)),
        is_demanded=otel.endpoint is not None,
        record_arguments=otel.record_arguments,
        service_name=None if is_named else "planwarden",
        log_format=word,
        log_level=lines.level,
    )


def _find_target(
    signal: Signal, otel: OtelTable, environment: Mapping[str, str], problems: list[str]
) -> ExportTarget | None:
    """Return where the signal is sent, if anywhere; add a message to `problems` if a setting is not supported."""
    own = environment.get(f"{PREFIX}_{signal.upper()}_ENDPOINT")
    base = environment.get(f"{PREFIX}_ENDPOINT") or otel.endpoint
    if not (own or base):
        return None
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    exporters = {word.strip() for word in _read_variable(environment, variable, "otlp").split(",")}
    if "otlp" not in exporters:
        if exporters != {"none"}:
            problems.append(f"{variable}={environment[variable]!r} is not supported; use otlp or none")
        return None
    names = (f"{PREFIX}_{signal.upper()}_PROTOCOL", f"{PREFIX}_PROTOCOL")
    name = next((name for name in names if _read_variable(environment, name)), None)
    protocol = otel.protocol or "http/protobuf" if name is None else _read_variable(environment, name)
    if protocol == "grpc":
        return ExportTarget(url=own or base or "", protocol="grpc")
    if protocol == "http/protobuf":
        return ExportTarget(url=own or f"{(base or '').rstrip('/')}/v1/{signal}")
    problems.append(f"{name}={protocol[:40]!r} is not supported; use http/protobuf or grpc")
    return None


def _read_variable(environment: Mapping[str, str], name: str, otherwise: str = "") -> str:
    """Return a variable's value in lower case; `otherwise` if unset or empty, which the specification treats alike."""
    return environment.get(name, "").strip().lower() or otherwise
