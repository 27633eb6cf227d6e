"""OpenTelemetry: spans, metrics and log lines about what planwarden commits. Nothing depends on it."""
