"""Packages that load slowly, imported at their first use."""

from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when one of its attributes is first read, because its package loads slowly.

    Type checkers see a plain import:

        if TYPE_CHECKING:
            import mcp
        else:
            mcp = LazyModule("mcp")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
