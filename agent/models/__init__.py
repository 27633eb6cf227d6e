"""Models that answer prompts: a script, and a model behind a provider's API, whatever its wire format."""
