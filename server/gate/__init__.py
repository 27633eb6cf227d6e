"""The gate: a server that people already have, wrapped, with its own tools unchanged and a person before what matters.

`frames.py` reads and writes messages, `upstream.py` runs the wrapped server, and `address.py` connects to one behind an
address. `relay.py` passes messages between it and the host, `server_group.py` those of all servers of the home, and
`tools.py` makes tools part of the catalogue. `calls.py` decides what becomes of a call: it passes, or it is an
execution of one step. `answers.py` writes what the host reads, `serving.py` serves the host, `judging.py` opens what
judges its calls, and `endpoint.py` serves hosts over HTTP.
"""
