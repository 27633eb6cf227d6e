"""What planwarden needs from outside, as protocols: store, model, toolbox, policy, watchers, clock and secrets.

The docstrings hold the guarantees that every implementation gives; a test suite checks them.
"""
