"""The tool that hands goals to other agents over MCP, and asks their questions here."""
