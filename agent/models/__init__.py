"""Models that answer prompts: a script, and `provider/` for models behind an API."""
