"""Finds the entry points of installed packages that bring tools.

Most machines have none. To import `importlib.metadata`, which brings `email` and `zipfile`, and to let it read every
package would take a twentieth of a command. So the files that it would read are searched for the name of the group
first. It has the word where one of them names the group, and wherever packages may be that this search does not see.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "planwarden.tools"


def find_entry_points() -> "Sequence[EntryPoint]":
    """Returns the entry points of our group, as `importlib.metadata` does."""
    if not (_has_other_finders() or any(map(_may_have_some, sys.path))):
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _has_other_finders() -> bool:
    """Whether packages may be installed elsewhere than below `sys.path`."""
    return any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path)


def _may_have_some(place: str) -> bool:
    """Returns False for a place of `sys.path` where certainly no package has entry points of our group."""
    if place.lower().endswith(".egg"):
        return True
    try:
        with os.scandir(place or ".") as entries:
            return any(map(_names_group, entries))
    except FileNotFoundError:
        return False
    except OSError:
        # An archive, or a folder that cannot be read.
        return True


def _names_group(entry: "os.DirEntry[str]") -> bool:
    if not entry.name.lower().endswith((".dist-info", ".egg-info")):
        return False
    try:
        with open(os.path.join(entry.path, "entry_points.txt"), "rb") as file:
            return GROUP.encode() in file.read()
    except (FileNotFoundError, NotADirectoryError):
        return False
