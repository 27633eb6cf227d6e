"""Telling people outside about questions: which channels, what is sent, and sending it."""
