"""WebAuthn signatures over decisions: keys, challenges, and checking a signature."""
