"""What hosts do themselves, as far as planwarden is asked about it: their tools, and what can be seen of a command.

Pure tables and functions, which the policy and the guard both need. Nothing here runs a tool of a host.
"""
