"""The engine: it runs plans and decides what happens next, without knowing where logs live or how people are asked.

Imports point one way, checked: `runtime | models -> approval -> ports -> core -> common`. Nothing in `agent/` imports
`storage`, `tools` or `server`.
"""
