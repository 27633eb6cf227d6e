"""The plugin of opencode, which asks planwarden before each tool and throws unless the call may pass."""

import json
import re
from importlib.resources import files

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError

PLUGIN_MARK = "planwarden guard: this file is written by `planwarden guard install opencode`"


def build_plugin(command: tuple[str, ...], added: tuple[str, ...]) -> str:
    """Returns the plugin that runs the command, and remembers which permissions were added with it."""
    source = (files("planwarden.server.guard.install") / "opencode_plugin.js").read_text(encoding="utf-8")
    source = source.replace('["ADDED"]', json.dumps(list(added)))
    return source.replace('["COMMAND"]', json.dumps(list(command), ensure_ascii=True))


def read_added(text: str) -> tuple[str, ...]:
    """Returns the permissions that were added with the plugin; none where the text does not say."""
    found = re.search(r"^const ADDED = (\[[^\n]*\])$", text, re.MULTILINE)
    try:
        names = read_json(found[1]) if found is not None else []
    except PlanwardenError:
        return ()
    return tuple(str(name) for name in names) if isinstance(names, list) else ()
