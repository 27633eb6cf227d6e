"""WebAuthn signatures over decisions: people's keys, challenges, verification, and the check of the audit.

The library webauthn is an extra, which is imported when it is used.
"""
