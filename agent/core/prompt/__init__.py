"""Prompts for models, and how their replies are read."""
