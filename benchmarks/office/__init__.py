"""A small office for real language models: goals, tools with a ledger, a person who decides, and what was counted.

`python -m benchmarks.office --help` says how a model takes its seat. It sees what an MCP client sees and nothing else.
"""
