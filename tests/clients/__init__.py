"""Real clients over the real command: each lists the tools, starts a plan that stops for a person, loses its server to SIGKILL,
finds the question again through a new one, and reads the result. `make clients` runs it and writes docs/clients.md.
"""
