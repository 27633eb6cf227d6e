"""Hooks: requests that start saved plans."""
