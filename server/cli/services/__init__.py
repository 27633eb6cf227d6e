"""What keeps a server running: the files that `planwarden service print` prints.

`planwarden.service` and `compose.yaml` are the one source of those in `deploy/`; a test holds them equal.
"""
