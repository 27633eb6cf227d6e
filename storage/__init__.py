"""Stores: the implementations of `agent/ports/store.py`, and what all of them share.

`sqlite/` and `postgres/` implement the same ports over `sql/`. `sql/rows` says how events become text; `hosts`, `keys`,
`schedules`, `sealing`, `sessions` and `tokens` define kinds of records (`sql/records`). A new store is a folder here
and an entry in `tests/storage/suite.py`.
"""
