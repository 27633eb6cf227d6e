"""OpenTelemetry spans and metrics, and logs, of what an engine commits."""
