"""Stores: the implementations of `agent/ports/store.py`, and what all of them share.

`memory/` and `sqlite/` implement the same ports. `projection` says which rows follow from events, `codec` how events
become text. A new store is a folder here and an entry in `tests/storage/suite.py`.
"""
