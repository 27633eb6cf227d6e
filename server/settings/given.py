"""What `planwarden.toml` says, as values; the defaults are those of a home without it, where nothing has to be read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from planwarden.tools.downstream.config import ServerSettings

RETENTION_DAYS = 90


class FileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one file."""

    settings: Mapping[str, Any] = {}
    """Fields of `Settings` that no argument and no variable changes."""
    policy: Mapping[str, Any] = {}
    """Fields of `OperatorPolicy`."""
    telemetry: Mapping[str, Any] = {}
    """Arguments of `build_telemetry_settings`."""
    servers: "Mapping[str, ServerSettings]" = {}
    """What the operator decides about each downstream server."""
    model: str | None = None
    store_url: str | None = None
    control_url: str | None = None
