"""What a plan may call: the contract for tool authors, the registry, and the tools themselves.

Imports `agent` only. Each folder is one kind of tool: `builtin/`, `web/`, `downstream/` (MCP servers), `delegate/`
(agents).
"""
