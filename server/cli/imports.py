"""Imports for a command that somebody waits for."""

import gc
from importlib import import_module
from types import ModuleType


def import_quickly(name: str) -> ModuleType:
    """Returns the module. The collector of cycles rests meanwhile: it finds nothing in what is only being defined, and
    took a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_enabled:
            gc.enable()
