"""Several processes on one PostgreSQL: planwarden, what people would take instead, and a model of many more.

Run as `python -m benchmarks.scale.run`. Each side is a module `*_side.py` with the same job; `child.py` is a process of
a side, `measure.py` starts them and lets the sides take turns.
"""
