"""Principals that have a name of their own."""

LOCAL = "local"
"""The principal of every request without authentication: somebody who can use this machine."""
