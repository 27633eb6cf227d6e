"""Measurements of planwarden against its peers and its floor; `python -m benchmarks.run` makes them all."""
