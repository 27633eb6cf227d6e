"""Models that answer prompts: the caller, a script, and `provider/` for models behind an API."""
