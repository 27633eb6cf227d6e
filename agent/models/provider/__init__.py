"""Models of providers, over `pydantic_ai.direct`."""
