"""What a plan may call: the contract for tool authors, the registry, and the tools themselves.

Imports `agent` only. `guarded/` knows the tools of hosts; each other folder is one kind of tool: `builtin/`, `web/`,
`downstream/` (MCP servers), `delegate/` (agents).
"""
