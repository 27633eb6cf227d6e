"""WebAuthn signatures over approvals."""
