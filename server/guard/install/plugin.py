"""The plugin of opencode, which asks planwarden before each tool and throws unless the call may pass."""

import json
from importlib.resources import files

PLUGIN_MARK = "planwarden guard: this file is written by `planwarden guard install opencode`"


def build_plugin(command: tuple[str, ...]) -> str:
    """Returns the plugin that runs the command."""
    source = (files("planwarden.server.guard.install") / "opencode_plugin.js").read_text(encoding="utf-8")
    return source.replace('["COMMAND"]', json.dumps(list(command), ensure_ascii=True))
