"""Files that commands copy unchanged: for the home of a beginner or of the demo, and to keep a server running.

`planwarden.service` and `compose.yaml` are also in `deploy/`; a test keeps the copies equal.
"""
