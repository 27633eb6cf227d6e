"""The list of downstream servers, for the many homes that have none: it imports nothing of what configures one."""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from planwarden.tools.downstream.config import ServerConfig


class ServerList(msgspec.Struct, frozen=True):
    """All configured servers in the order of the file, and notes about what was not read."""

    configs: "tuple[ServerConfig, ...]" = ()
    notes: tuple[str, ...] = ()
