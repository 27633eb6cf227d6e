"""What every other room stands on: errors, canonical JSON, bounded JSON Schema checks, artifacts, ids.

Enters: code that knows no plan, no execution and no tool. Does not enter: anything that only one room uses.
"""
