"""Stores: the implementations of `agent/ports/store.py`, and what all of them share.

`memory/` and `sqlite/` each implement the same ports; `projection` says which rows follow from events, `codec` how events
become bytes. A new store is a folder here and an entry in `tests/storage/suite.py`.
"""
