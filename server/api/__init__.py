"""The Python API, and the service behind every channel: one method for each thing that a caller can ask.

MCP, inbox and command line call `Service`; no channel reaches the engine around it.
"""
