"""References in arguments: what they name, templates, pointers, conditions, and placeholders that are refused."""
