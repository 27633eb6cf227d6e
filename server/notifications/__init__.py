"""Notifications about questions: the operator's channels, the messages, the outbox, and their delivery."""
