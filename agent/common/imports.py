"""Imports that somebody waits for."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


def import_quickly(name: str) -> ModuleType:
    """Returns the module, imported with the collector at rest."""
    with collector_at_rest():
        return import_module(name)


class LazyModule:
    """A module that is imported when one of its attributes is first read: a border to a package that loads slowly.

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


@contextmanager
def collector_at_rest() -> Generator[None]:
    """The collector of cycles finds nothing in what is only being defined, and takes a tenth of the time.

    At the end it counts all that lives as old, or its next turn would look through what was defined.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                # Together they move every object to the oldest generation, and look at none.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
