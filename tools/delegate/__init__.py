"""`delegate_to_agent`: goals handed to other agents over MCP, and their questions asked here."""
