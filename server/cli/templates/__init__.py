"""Files that commands copy: for the home of a beginner or of the demo, and to keep a server running.

`planwarden.service` and `compose.yaml` are the originals of those in `deploy/`; a test keeps them equal.
"""
