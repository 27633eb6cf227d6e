"""A model behind a provider's API: request, answer, faults and retries, independent of the wire format."""
