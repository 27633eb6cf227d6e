"""Logins to downstream servers: a person logs in once, plans only use and refresh the stored token."""
