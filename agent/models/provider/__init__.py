"""Models behind a provider's API: requests, answers, failures and retries, for every wire format."""
