"""What commands write, copied as it is: for the home of a beginner or of the demo, and to keep a server running.

`planwarden.service` and `compose.yaml` are the one source of those in `deploy/`; a test holds them equal.
"""
