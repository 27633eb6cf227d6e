"""WebAuthn signatures over decisions: people's keys, challenges, verification, and checking the audit.

The library webauthn is an extra; modules import it when they use it.
"""
