"""What a plan may call: the tool contract for authors, the registry, and the built-in tools."""
