"""The gate wraps a server that people already have. Its tools stay unchanged, and a person decides about risky calls.

`frames.py` reads and writes messages, `upstream.py` runs the wrapped server, and `address.py` connects to one behind an
address. `relay.py` passes messages between this server and the host, `server_group.py` does so for all servers of the
home, and `tools.py` puts the tools into the catalogue. `calls.py` decides whether a call passes or becomes an execution
of one step. `answers.py` writes what the host reads, `serving.py` serves the host, `judging.py` opens the judge of its
calls, and `endpoint.py` serves hosts over HTTP.
"""
