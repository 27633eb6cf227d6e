"""What commands write, copied as it is: the files of `init` and of `demo`, and the files of `service print`.

`planwarden.service` and `compose.yaml` are the one source of those in `deploy/`; a test holds them equal.
"""
