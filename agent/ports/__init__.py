"""What the engine needs from outside, one protocol a module: store, model, toolbox, policy, watchers, clock and ids.

The docstrings hold the laws that every implementation keeps; a test suite checks them. The only implementation here
makes random ids.
"""
