"""Elicitation: how a client asks its person a question, as a form or as an address to open."""
