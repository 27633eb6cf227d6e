"""The engine: it runs plans and decides what happens next, without knowing where logs live or how people are asked.

Nothing in `agent/` imports `storage`, `tools` or `server`. CONTRIBUTING.md has the direction of all imports.
"""
