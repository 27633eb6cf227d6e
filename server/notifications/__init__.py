"""Notices that leave this machine when a question waits."""
