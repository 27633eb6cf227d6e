"""Real clients with the real command: each lists the tools and starts a plan that stops for a person. Then its server
is killed. Through a new server it finds the question and reads the result. `make clients` runs this and writes
docs/clients.md.
"""
