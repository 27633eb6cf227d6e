"""OpenTelemetry: spans, metrics and log lines about what planwarden commits. No result depends on it."""
