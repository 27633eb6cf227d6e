"""The gate: a server that people already have, wrapped, with its own tools unchanged and a person before what matters.

`frames.py` reads and writes messages, `upstream.py` runs the wrapped server, `relay.py` passes messages between it and
the host, and `tools.py` makes its tools part of the catalogue. `calls.py` decides what becomes of a call: it passes, or
it is an execution of one step. `answers.py` writes what the host reads, and `serving.py` opens all of it.
"""
